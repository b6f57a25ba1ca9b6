"""SavedModels: export, signatures, and clients in Python and C."""
