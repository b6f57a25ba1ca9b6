"""A served model: its warm-up, and clients of it in Python and in C."""
