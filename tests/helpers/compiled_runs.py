"""Configs of runs that are compiled for a TPU only."""

import dataclasses
import pathlib

from tests.helpers import tiny_run


def tiny_config(**changes):
    """Names no existing files: only the step is compiled."""
    return tiny_run.make_config(
        pathlib.Path("records"),
        pathlib.Path("run"),
        **{"dropout_schedule": "0:0.0", "jit_compile": True, **changes},
    )


def small_config(**changes):
    """Large enough for the compiler to optimize: 4 layers of 128."""
    config = tiny_config(precision="mixed_bfloat16", **changes)
    model = dataclasses.replace(
        config.model,
        hidden_size=128,
        num_hidden_layers=4,
        intermediate_size=512,
        embedding_size=128,
        max_position_embeddings=128,
    )
    data = dataclasses.replace(
        config.data, max_seq_length=128, max_predictions_per_seq=20
    )
    return dataclasses.replace(config, model=model, data=data)
