"""Compiles the training step for TPUs and GPUs that are not attached."""
