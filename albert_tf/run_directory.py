"""What a run's directory says of the run, and whether it may go on.

    RUN/config.json                the resolved configuration
    RUN/records_metadata.json      of the training records, where known
    RUN/spiece.model               their vocabulary, where known
    RUN/checkpoints/, RUN/best/    written by checkpoints.py
    RUN/rollbacks.json             by rollback.py
    RUN/corrupt_records.json       by corrupt_records.py
    RUN/metrics.jsonl, RUN/events.jsonl, RUN/tensorboard/   by run_log.py

A run that goes on with changed settings is another run from there on. So
`MEANING` says of every setting what a change of it does.
"""

import enum
import json
import posixpath
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
from albert_tf.training_records import Records

CONFIG_FILE = "config.json"
RECORDS_METADATA_FILE = "records_metadata.json"


class Change(enum.Enum):
    """What a changed setting does to a run that goes on."""

    ANOTHER_RUN = "the weights do not fit"
    ANOTHER_RESULT = "from there on it trains otherwise"
    SAME_RESULT = "where and how it runs, not what it computes"


# By the start of the setting's name; the longest that fits decides.
MEANING = {
    "model.": Change.ANOTHER_RUN,
    "training.sentence_objective": Change.ANOTHER_RUN,
    "data.": Change.ANOTHER_RESULT,
    "data.input_file": Change.SAME_RESULT,  # see `_check_records`
    "data.eval_": Change.SAME_RESULT,
    "data.max_eval_steps": Change.SAME_RESULT,
    "data.on_corrupt_record": Change.SAME_RESULT,
    "data.max_corrupt_records": Change.SAME_RESULT,
    "optimizer.": Change.ANOTHER_RESULT,
    "distribution.": Change.SAME_RESULT,
    "distribution.precision": Change.ANOTHER_RESULT,
    "training.num_train_steps": Change.ANOTHER_RESULT,  # of the decay
    "training.dropout_schedule": Change.ANOTHER_RESULT,
    "training.seed": Change.ANOTHER_RESULT,
    "training.mode": Change.SAME_RESULT,
    "training.output_dir": Change.SAME_RESULT,
    "training.steps_per_loop": Change.SAME_RESULT,
    "training.save_checkpoints_steps": Change.SAME_RESULT,
    "training.keep_": Change.SAME_RESULT,
    "training.eval_every_n_steps": Change.SAME_RESULT,
    "training.on_divergence": Change.SAME_RESULT,
    "training.divergence_loss_increase": Change.SAME_RESULT,
    "training.max_rollbacks": Change.SAME_RESULT,
    "training.rollback_learning_rate_scale": Change.SAME_RESULT,
    "training.profile_steps": Change.SAME_RESULT,
    "training.allow_config_change": Change.SAME_RESULT,
    "training.dry_run": Change.SAME_RESULT,
}


def meaning_of(name: str) -> Change:
    """What a change of a setting does, by its name with its group."""
    fitting = [start for start in MEANING if name.startswith(start)]
    return MEANING[max(fitting, key=len)]


def check(config: PretrainingConfig, records: Records) -> None:
    """Checks that a run may go on in its directory, if there is one.

    A directory without a checkpoint holds nothing that a new run could
    contradict.

    Args:
        config: The settings now.
        records: What it is to train on, or to be evaluated on.

    Raises:
        UserError: If the run there is of another architecture, of other
            settings or records without `allow_config_change`, naming each
            difference, or of another vocabulary.
    """
    run_dir = config.training.output_dir
    commits = posixpath.join(run_dir, "checkpoints", "*", "checkpoint.json")
    if not tf.io.gfile.glob(commits):
        return
    _check_settings(run_dir, load_config(run_dir), config)
    path = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    metadata = load_json_if_any(path)
    if metadata is not None and records.metadata is not None:
        features.check_agreement(path, metadata, records.text_settings())
        _check_records(path, metadata, config, records)


def write(config: PretrainingConfig, records: Records) -> None:
    """Saves the resolved settings and what is known of the records."""
    run_dir = config.training.output_dir
    tf.io.gfile.makedirs(run_dir)
    write_text(
        posixpath.join(run_dir, CONFIG_FILE),
        json.dumps(config.to_dict(), indent=2) + "\n",
    )
    if records.metadata is None:
        return
    write_text(
        posixpath.join(run_dir, RECORDS_METADATA_FILE),
        records.metadata.to_json(),
    )
    vocabulary = posixpath.join(records.directory, features.TOKENIZER_FILE)
    if tf.io.gfile.exists(vocabulary):
        with open_existing(vocabulary, "rb") as file:
            write_bytes(
                posixpath.join(run_dir, features.TOKENIZER_FILE), file.read()
            )


def load_config(run_dir: str) -> PretrainingConfig:
    """The resolved configuration of a run.

    Raises:
        UserError: If there is no run.
    """
    path = posixpath.join(run_dir, CONFIG_FILE)
    return PretrainingConfig.from_dict(load_json(path), source=path)


def _check_settings(
    run_dir: str, stored: PretrainingConfig, config: PretrainingConfig
) -> None:
    before, now = _flatten(stored.to_dict()), _flatten(config.to_dict())

    def named(meaning: Change) -> str:
        return "; ".join(
            f"{name} was {before[name]!r} and is {value!r}"
            for name, value in now.items()
            if value != before[name] and meaning_of(name) is meaning
        )

    if named(Change.ANOTHER_RUN):
        raise UserError(
            f"the run in {run_dir} must be continued with its own settings",
            received=named(Change.ANOTHER_RUN),
            remedy="Choose another --output_dir or restore the settings.",
        )
    if named(Change.ANOTHER_RESULT):
        _refuse_unless_allowed(run_dir, named(Change.ANOTHER_RESULT), config)
    if named(Change.SAME_RESULT):
        logging.info(
            "changed since this run began: %s", named(Change.SAME_RESULT)
        )


def _check_records(
    path: str,
    stored: Mapping[str, Any],
    config: PretrainingConfig,
    records: Records,
) -> None:
    """The same records may lie elsewhere; others are another run's."""
    assert records.metadata is not None
    before, now = stored["inputs_sha256"], records.metadata.inputs_sha256
    if before != now and config.training.mode == "train":
        _refuse_unless_allowed(
            path, f"inputs_sha256 was {before} and is {now}", config
        )


def _refuse_unless_allowed(
    path: str, changed: str, config: PretrainingConfig
) -> None:
    if config.training.mode == "eval":
        return
    if not config.training.allow_config_change:
        raise UserError(
            f"the run of {path} must be continued with its own settings",
            received=changed,
            remedy="Restore them, choose another --output_dir, or give "
            "--allow_config_change to go on otherwise from here.",
        )
    logging.warning("changed since this run began, as allowed: %s", changed)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
