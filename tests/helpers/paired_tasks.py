"""Trains a task twice from the same weights: the trainer, and PyTorch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import torch
import transformers

from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.input.batch_stream import BatchStream
from albert_tf.interop.weight_names import list_weights
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import (
    make_state,
    make_train_steps,
    metric_names,
)
from tests.helpers import pytorch_training
from tests.helpers.random_task import LENGTH, Task

_CLASSES = {
    "classification": transformers.AlbertForSequenceClassification,
    "regression": transformers.AlbertForSequenceClassification,
    "multiple_choice": transformers.AlbertForMultipleChoice,
    "question_answering": transformers.AlbertForQuestionAnswering,
}

Values = dict[str, np.ndarray]


def train(task: Task) -> tuple[np.ndarray, Values]:
    """Trains with the trainer; returns each loss, and the initial weights."""
    config, objective = task
    strategy = make_strategy(config.distribution)
    with strategy.scope():
        state = make_state(config, objective)
        train_steps = make_train_steps(strategy, state, config)
    initial = {v.path: v.value.numpy() for v in state.model.variables}
    batches = iter(strategy.distribute_datasets_from_function(_open(task)))
    zeros = {n: tf.constant(0.0) for n in metric_names(config, objective)}
    rates = DropoutRates(0.0, 0.0)
    losses = []
    for _ in range(config.training.num_train_steps):
        steps = train_steps(batches, zeros, tf.constant(1), rates)
        losses.append(float(steps.totals["loss"]))
    return np.array(losses), initial


def first_outputs(task: Task, initial: Values) -> dict[str, np.ndarray]:
    """The outputs of our model for the first batch."""
    model = task.objective.make_model()
    for variable in model.variables:
        variable.assign(initial[variable.path])
    batch = next(iter(_open(task)(tf.distribute.InputContext())))
    return {name: v.numpy() for name, v in model(batch).items()}


def train_in_pytorch(
    task: Task, initial: Values, **departures: Any
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Trains with PyTorch; returns each loss, and the first batch's outputs."""
    config = task.config
    model = make_pytorch_model(config, initial)
    settings = {
        "optimizer": "adamw",
        "learning_rate": config.optimizer.learning_rate,
        "num_warmup_steps": config.optimizer.num_warmup_steps,
        "num_train_steps": config.training.num_train_steps,
    }
    recipe = pytorch_training.Recipe(**settings | departures)
    parameters = dict(model.named_parameters())
    moments = pytorch_training.zero_moments(parameters)
    losses, first = [], {}
    batches = _open(task)(tf.distribute.InputContext())
    for step, batch in enumerate(
        batches.take(config.training.num_train_steps).as_numpy_iterator()
    ):
        model.zero_grad()
        outputs = run_pytorch(model, config.head, batch)
        if not step:
            first = {
                name: outputs[name].detach().numpy()
                for name in ("logits", "start_logits", "end_logits")
                if name in outputs
            }
        outputs.loss.backward()
        losses.append(outputs.loss.item())
        with torch.no_grad():
            pytorch_training.update(parameters, moments, recipe, step)
    return np.array(losses), first


def make_pytorch_model(
    config: FinetuningConfig, values: Values
) -> transformers.PreTrainedModel:
    """Hugging Face's model of the kind, with given weights."""
    head = config.head
    model = _CLASSES[head.kind](
        pytorch_training.make_config(config.model, num_labels=head.num_outputs)
        if head.has_pooler
        else pytorch_training.make_config(config.model)
    )
    weights = list_weights(config.model, head=head)
    pytorch_training.assign(model, weights, values)
    # PyTorch would not train the embedding of padding. The plain head scores
    # padding, too, so that its embedding has a gradient.
    model.albert.embeddings.word_embeddings.padding_idx = None
    return model.train()


def run_pytorch(
    model: transformers.PreTrainedModel,
    head: TaskHeadConfig,
    batch: Mapping[str, np.ndarray],
) -> Any:
    """The outputs of Hugging Face's model, with the loss."""
    shape = (-1, LENGTH)
    if head.kind == "multiple_choice":
        shape = (-1, head.num_choices, LENGTH)
    ids, mask, segments = (
        torch.tensor(batch[name].reshape(shape)).long()
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    names = {"labels": "label"}
    if not head.has_pooler:
        names = {
            "start_positions": "start_position",
            "end_positions": "end_position",
        }
    labels = {
        theirs: torch.tensor(batch[ours][:, 0])
        for theirs, ours in names.items()
    }
    if head.kind != "regression":
        labels = {name: values.long() for name, values in labels.items()}
    return model(
        input_ids=ids, attention_mask=mask, token_type_ids=segments, **labels
    )


def _open(task: Task) -> Any:
    stream = BatchStream(
        task.objective.find_training_data(),
        task.config.data,
        task.config.training.seed,
        format_of=task.objective.record_format,
    )
    return stream.open(0)
