"""Pretraining records: their features, tokenization and masking."""
