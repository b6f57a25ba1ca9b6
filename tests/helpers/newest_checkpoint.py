"""The content of the newest checkpoint of a run."""

import pathlib

import numpy as np
import tensorflow as tf

from albert_tf.runs.checkpoint_files import list_checkpoints


def read_variables(run_dir: pathlib.Path) -> dict[str, np.ndarray]:
    """Everything that it holds, by path."""
    newest = list_checkpoints(str(run_dir / "checkpoints"))[-1]
    reader = tf.train.load_checkpoint(f"{newest.path}/variables")
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
    }
