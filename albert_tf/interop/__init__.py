"""Checkpoints of google-research/albert and of Hugging Face."""
