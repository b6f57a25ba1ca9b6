"""Devices and workers: strategies, lost workers, requests to stop."""
