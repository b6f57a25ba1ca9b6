"""Configs of runs that are compiled for a TPU only."""

import pathlib

from tests.helpers import tiny_run


def tiny_config(**changes):
    """Names no existing files: only the step is compiled."""
    return tiny_run.make_config(
        pathlib.Path("records"),
        pathlib.Path("run"),
        **{"dropout_schedule": "0:0.0", **changes},
    )
