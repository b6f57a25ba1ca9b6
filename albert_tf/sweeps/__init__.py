"""Sweeps: runs of pretraining that are compared in one table."""
