"""Checks records and collects their statistics, for `inspect_records`."""
