"""Devices and workers: strategies, lost workers, preemption."""
