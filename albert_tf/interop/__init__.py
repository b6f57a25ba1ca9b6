"""Checkpoints of other implementations: google-research/albert and Hugging Face."""
