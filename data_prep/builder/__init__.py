"""Documents to shards of masked, serialized records."""
