"""Trains twice with the same settings: the trainer, and `pytorch_training`."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.config import PretrainingConfig
from albert_tf.training.objective import Objective
from albert_tf.training.pretraining import Pretraining
from tests.helpers import pytorch_training
from tests.helpers.step_program import StepProgram, make_dataset

LOSSES = ("masked_lm_loss", "sentence_order_loss")


class Training(NamedTuple):
    """The result of a training.

    Attributes:
        losses: Losses of the batch of each step, `(steps, names)`.
        initial, trained: Weights by path.
    """

    losses: np.ndarray
    initial: Mapping[str, np.ndarray]
    trained: Mapping[str, np.ndarray]


def train(
    config: PretrainingConfig,
    objective: Objective | None = None,
    loss_names: tuple[str, ...] = LOSSES,
) -> Training:
    """Trains all steps of a run with the trainer, without dropout."""
    program = StepProgram(config, objective)
    variables = program.state.model.variables
    initial = {v.path: v.value.numpy() for v in variables}
    losses = []
    for _ in range(config.training.num_train_steps):
        totals = program.run()
        losses.append([float(totals[name]) for name in loss_names])
    trained = {v.path: v.value.numpy() for v in variables}
    return Training(np.array(losses), initial, trained)


def train_in_pytorch(
    config: PretrainingConfig, initial: Mapping[str, np.ndarray]
) -> Training:
    """Trains with PyTorch on the same batches, from given weights.

    Args:
        config: The run; its model, records and optimizer settings are used.
        initial: Weights by path.
    """
    dataset = make_dataset(config, Pretraining(config))(
        tf.distribute.InputContext()
    )
    losses, trained = pytorch_training.train(
        config.model,
        initial,
        dataset.take(config.training.num_train_steps).as_numpy_iterator(),
        pytorch_training.recipe_of(config),
    )
    return Training(losses, initial, trained)


def loss_differences(one: Training, other: Training) -> np.ndarray:
    """Relative differences of the losses, `(steps, 2)`."""
    return np.abs(one.losses - other.losses) / np.abs(other.losses)


def weight_difference(one: Training, other: Training) -> float:
    """Norm of the difference of all weights over the norm of their change."""

    def distance(
        these: Mapping[str, np.ndarray], those: Mapping[str, np.ndarray]
    ) -> float:
        return np.linalg.norm(
            [np.linalg.norm(these[path] - those[path]) for path in those]
        )

    return distance(one.trained, other.trained) / distance(
        other.trained, other.initial
    )
