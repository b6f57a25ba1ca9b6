"""What a run keeps: settings, vocabulary, checkpoints, and their order.

    RUN/config.json              the resolved configuration
    RUN/records_metadata.json    of the training records, where known
    RUN/spiece.model             their vocabulary, where known
    RUN/checkpoints/ckpt-STEP.*  tf.train.Checkpoint, the newest few
    RUN/metrics.jsonl, RUN/tensorboard/   written by run_log.py

A checkpoint is a flat dictionary {variable path: variable}: the
tf.train.Checkpoint of a Keras 3 model silently drops layers held in lists.
Data order and dropout are functions of (seed, step), so variables and the
step are all there is to save.
"""

import json
import os
import posixpath
import socket
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf import features
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.files import (
    load_json,
    load_json_if_any,
    open_existing,
    write_bytes,
    write_text,
)
from albert_tf.input_pipeline import Records
from albert_tf.modeling.pretrainer import AlbertPretrainer

CONFIG_FILE = "config.json"
RECORDS_METADATA_FILE = "records_metadata.json"
CHECKPOINTS_DIR = "checkpoints"

# A run that differs in these is another run, whatever its directory.
FIXED_IN_A_RUN = ("model.", "training.sentence_objective")
# These say where and how to run, not what is computed.
FREE_IN_A_RUN = ("training.mode", "training.output_dir", "distribution.")


def check_run_dir(config: PretrainingConfig, records: Records) -> None:
    """Checks that a run may go on in its directory, if there is one.

    A directory without a checkpoint holds nothing that a new run could
    contradict.

    Args:
        config: The settings now.
        records: What it is to train on, or to be evaluated on.

    Raises:
        UserError: If the run there is of another architecture, naming each
            difference, or of another vocabulary.
    """
    run_dir = config.training.output_dir
    directory = posixpath.join(run_dir, CHECKPOINTS_DIR)
    if tf.train.latest_checkpoint(directory) is None:
        return
    _compare_settings(
        run_dir, load_json(posixpath.join(run_dir, CONFIG_FILE)), config
    )
    path = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    stored = load_json_if_any(path)
    if stored is not None and records.metadata is not None:
        features.check_agreement(path, stored, records.text_settings())


def write_run_dir(config: PretrainingConfig, records: Records) -> None:
    """Saves the resolved settings and what is known of the records."""
    run_dir = config.training.output_dir
    tf.io.gfile.makedirs(run_dir)
    write_text(
        posixpath.join(run_dir, CONFIG_FILE),
        json.dumps(config.to_dict(), indent=2) + "\n",
    )
    if records.metadata is None:
        return
    path = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    stored = load_json_if_any(path)
    if stored and stored["inputs_sha256"] != records.metadata.inputs_sha256:
        logging.warning(
            "the records have changed since this run began: their "
            "inputs_sha256 was %s and is %s",
            stored["inputs_sha256"],
            records.metadata.inputs_sha256,
        )
    write_text(path, records.metadata.to_json())
    vocabulary = posixpath.join(records.directory, features.TOKENIZER_FILE)
    if tf.io.gfile.exists(vocabulary):
        with open_existing(vocabulary, "rb") as file:
            write_bytes(
                posixpath.join(run_dir, features.TOKENIZER_FILE), file.read()
            )


def _compare_settings(
    run_dir: str, stored: Mapping[str, Any], config: PretrainingConfig
) -> None:
    stored = _flatten(stored)
    wanted = _flatten(config.to_dict())
    changed = {
        name: f"{name} was {stored.get(name)!r} and is {wanted.get(name)!r}"
        for name in sorted({*stored, *wanted})
        if stored.get(name) != wanted.get(name)
        and not name.startswith(FREE_IN_A_RUN)
    }
    refused = [
        text
        for name, text in changed.items()
        if name.startswith(FIXED_IN_A_RUN)
    ]
    if refused:
        raise UserError(
            f"the run in {run_dir} must be continued with its own settings",
            received="; ".join(refused),
            remedy="Choose another --output_dir or restore the settings.",
        )
    for text in changed.values():
        logging.warning("setting changed since this run began: %s", text)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


class CheckpointStore:
    """Saves and restores the variables of a run.

    Args:
        run_dir: `--output_dir` of the run.
        variables: By path; the step among them is named `step`.
        keep_max: Newest checkpoints kept.
        writes: Whether this process' files are kept. Every worker of a
            multi-worker run has to take part in saving, the chief alone
            keeps what it wrote.
    """

    def __init__(
        self,
        run_dir: str,
        variables: Mapping[str, tf.Variable],
        keep_max: int = 5,
        writes: bool = True,
    ) -> None:
        self._directory = posixpath.join(run_dir, CHECKPOINTS_DIR)
        self._variables = dict(variables)
        self._checkpoint = tf.train.Checkpoint(variables=self._variables)
        self._writes = writes
        directory = self._directory
        if not writes:
            name = f"scratch_{socket.gethostname()}_{os.getpid()}"
            directory = posixpath.join(run_dir, name)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            directory,
            max_to_keep=keep_max,
            checkpoint_name="ckpt",
        )

    def save(self, step: int) -> str:
        """Saves all variables; returns the path without its suffixes.

        If it fails, e.g. for a full disk, older checkpoints stay as they are.
        """
        path = self._manager.save(checkpoint_number=step)
        if not self._writes:
            tf.io.gfile.rmtree(self._manager.directory)
        return path

    def restore(self, step: int = 0) -> str | None:
        """Restores the checkpoint of a step, or the newest for 0.

        Returns:
            Its path, or None if there is none yet.

        Raises:
            UserError: If `step` is not there, or if the checkpoint holds
                variables of other names or shapes.
        """
        state = tf.train.get_checkpoint_state(self._directory)
        paths = list(state.all_model_checkpoint_paths) if state else []
        if step:
            wanted = posixpath.join(self._directory, f"ckpt-{step}")
            if wanted not in paths:
                steps = [path.rpartition("-")[2] for path in paths]
                raise UserError(
                    f"checkpoint_step must be a checkpoint of {wanted[:-5]}",
                    received=step,
                    remedy=f"There are: {', '.join(steps) or 'none'}.",
                )
            paths = [wanted]
        if not paths:
            return None
        self._check_contents(paths[-1])
        status = self._checkpoint.read(paths[-1])
        status.assert_existing_objects_matched()
        status.expect_partial()  # a model alone is read without its moments
        return paths[-1]

    def _check_contents(self, path: str) -> None:
        """Names what differs before TensorFlow would say it at length."""
        stored = {
            key.split("/")[1].replace(".S", "/"): shape
            for key, shape in tf.train.load_checkpoint(path)
            .get_variable_to_shape_map()
            .items()
            if key.startswith("variables/")
        }
        differences = [
            f"{name} has shape {stored.get(name, 'none')} there and "
            f"{variable.shape.as_list()} here"
            for name, variable in self._variables.items()
            if stored.get(name) != variable.shape.as_list()
        ]
        if differences:
            raise UserError(
                f"checkpoint {path} must hold the variables of this model",
                received="; ".join(differences[:5]),
            )


def model_variables(pretrainer: AlbertPretrainer) -> dict[str, tf.Variable]:
    """The model's variables by path."""
    by_path = {
        variable.path: variable.value for variable in pretrainer.variables
    }
    assert len(by_path) == len(pretrainer.variables), "paths must be unique"
    return by_path


def load_config(run_dir: str) -> PretrainingConfig:
    """The resolved configuration of a run.

    Raises:
        UserError: If there is no run.
    """
    path = posixpath.join(run_dir, CONFIG_FILE)
    return PretrainingConfig.from_dict(load_json(path), source=path)


def load_run(
    run_dir: str, step: int = 0
) -> tuple[PretrainingConfig, AlbertPretrainer, int]:
    """A trained model, in the current strategy's scope.

    Args:
        run_dir: `--output_dir` of the run.
        step: Checkpoint to load; 0 is the newest.

    Returns:
        The run's configuration, the model, and the checkpoint's step.

    Raises:
        UserError: If there is no such run or checkpoint.
    """
    config = load_config(run_dir)
    pretrainer = AlbertPretrainer(
        config.model,
        config.training.sentence_objective,
        dtype=config.distribution.precision,
    )
    pretrainer.build()
    step_variable = tf.Variable(0, dtype=tf.int64)
    store = CheckpointStore(
        run_dir, {**model_variables(pretrainer), "step": step_variable}
    )
    path = store.restore(step)
    if path is None:
        raise UserError(
            f"{run_dir} must hold a checkpoint",
            received="none",
            remedy="Train with python -m albert_tf.run_pretraining first.",
        )
    logging.info("loaded %s", path)
    return config, pretrainer, int(step_variable.read_value())
