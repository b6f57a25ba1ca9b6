"""What `data_prep.inspect_records` finds out about records."""
