"""Builds shards of masked, serialized records from documents."""
