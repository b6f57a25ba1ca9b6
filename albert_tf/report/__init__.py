"""Draws the learning curves of runs."""
