"""Runnable comparisons; README.md has their tables."""
