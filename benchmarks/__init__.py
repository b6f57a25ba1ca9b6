"""Runnable comparisons; docs/benchmarks.md has their tables."""
