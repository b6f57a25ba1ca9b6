"""Trains SentencePiece vocabularies and reports on them."""
