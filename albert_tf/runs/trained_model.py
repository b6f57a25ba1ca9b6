"""The trained model of a run, loaded from a checkpoint."""

from collections.abc import Mapping

import keras
import numpy as np
from absl import logging

from albert_tf.config import FinetuningConfig, PretrainingConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.modeling.models import AlbertForTask, AlbertPretrainer
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import CheckpointStore, model_variables


def restore_model(
    run_dir: str, model: keras.layers.Layer, step: int = 0
) -> int:
    """Restores a built model from a checkpoint of a run.

    Args:
        run_dir: `--output_dir` of the run.
        model: A model whose variables have the paths and shapes of the run.
        step: Step of a checkpoint that was kept, or of the best one; 0 loads
            the newest.

    Returns:
        The checkpoint's step.

    Raises:
        UserError: If the checkpoint does not exist or does not fit.
    """
    store = CheckpointStore(run_dir, model_variables(model), writes=False)
    checkpoint = store.restore(step)
    if checkpoint is None:
        raise UserError(
            f"{run_dir} must hold a checkpoint",
            received="none",
            remedy="Train first, with python -m albert_tf.run_pretraining or "
            "python -m albert_tf.run_finetuning.",
        )
    values = {v.path: v.numpy() for v in model.variables}
    check_finite(values, checkpoint.path)
    logging.info("loaded %s", checkpoint.path)
    return checkpoint.step


def check_finite(arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Refuses weights, read from `source`, that are NaN or infinite."""
    faults = [name for name, v in arrays.items() if not np.isfinite(v).all()]
    if faults:
        raise UserError(
            f"the weights in {source} must be finite numbers",
            received=f"NaN or infinity in {name_faults(faults)}",
            remedy="Choose an earlier checkpoint, or train again.",
        )


def load_run(
    run_dir: str, step: int = 0
) -> tuple[PretrainingConfig, AlbertPretrainer | AlbertForTask, int]:
    """Loads the trained model of a run.

    Its variables are created in the current scope of tf.distribute.

    Args:
        run_dir: `--output_dir` of the run.
        step: Step of a checkpoint that was kept, or of the best one; 0 loads
            the newest.

    Returns:
        The run's configuration, the model, and the checkpoint's step.

    Raises:
        UserError: If the run or the checkpoint does not exist.
    """
    config = run_directory.load_config(run_dir)
    precision = config.distribution.precision
    model: AlbertPretrainer | AlbertForTask
    if isinstance(config, FinetuningConfig):
        model = AlbertForTask(config.model, config.head, dtype=precision)
    else:
        model = AlbertPretrainer(
            config.model, config.training.sentence_objective, dtype=precision
        )
    model.build()
    return config, model, restore_model(run_dir, model, step)
