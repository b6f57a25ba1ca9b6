"""A run: training step, loop, evaluation, optimizers and schedules."""
