"""SavedModels and models of LiteRT: export, signatures, answers."""
