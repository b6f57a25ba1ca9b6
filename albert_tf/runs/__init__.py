"""What a run leaves in its directory: checkpoints, log, notes."""
