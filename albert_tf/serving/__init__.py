"""SavedModels: export, signatures, warm-up, and clients in Python and C."""
