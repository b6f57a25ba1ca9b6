"""Records to batches, as a function of (seed, step)."""
