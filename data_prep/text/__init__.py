"""Reads text files and datasets as documents of sentences."""
