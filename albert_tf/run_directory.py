"""What a run's directory says of the run, and whether it may go on.

    RUN/config.json                the resolved configuration
    RUN/training_records.json      shards of each phase, with their checksums
    RUN/records_metadata.json      of the first of them, where known
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
from albert_tf.config import PretrainingConfig, TrainingConfig
from albert_tf.errors import UserError
from albert_tf.files import (
    load_json,
    load_json_if_any,
    open_existing,
    write_bytes,
    write_text,
)
from albert_tf.training_records import Records, TrainingData

CONFIG_FILE = "config.json"
CHECKPOINTS_DIR = "checkpoints"
COMMIT_FILE = "checkpoint.json"
TRAINING_RECORDS_FILE = "training_records.json"
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
    "data.dataset": Change.SAME_RESULT,
    "data.gradient_accumulation_steps": Change.SAME_RESULT,
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


def check(config: PretrainingConfig, data: TrainingData) -> None:
    """Checks that a run may go on in its directory, if there is one.

    A directory without a checkpoint holds nothing that a new run could
    contradict.

    Args:
        config: The settings now.
        data: What it is to train on.

    Raises:
        UserError: If the run there is of another architecture, of other
            settings or records without `allow_config_change`, naming each
            difference, or of another vocabulary.
    """
    run_dir = config.training.output_dir
    if not _has_checkpoints(run_dir):
        return
    _check_settings(run_dir, load_config(run_dir), config)
    for phase in data.phases:
        check_vocabulary(run_dir, phase.records)
    path = posixpath.join(run_dir, TRAINING_RECORDS_FILE)
    stored, now = load_json_if_any(path), _describe_records(data)
    if stored is not None and stored != now:
        _refuse_unless_allowed(path, _differences(stored, now), config.training)


def check_evaluation(config: PretrainingConfig, held_out: Records) -> None:
    """Checks that the run of a directory may be evaluated on records.

    Raises:
        UserError: If it is of another architecture or vocabulary.
    """
    run_dir = config.training.output_dir
    if _has_checkpoints(run_dir):
        _check_architecture(run_dir, load_config(run_dir), config)
        check_vocabulary(run_dir, held_out)


def check_vocabulary(run_dir: str, records: Records) -> None:
    """Checks that records are of the vocabulary of a run, where known.

    Raises:
        UserError: If they are not.
    """
    path = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    metadata = load_json_if_any(path)
    if metadata is not None:
        features.check_agreement(path, metadata, records.text_settings())


def _has_checkpoints(run_dir: str) -> bool:
    directory = posixpath.join(run_dir, CHECKPOINTS_DIR)
    # No glob: a run's path may hold what is a pattern there.
    return tf.io.gfile.exists(directory) and any(
        tf.io.gfile.exists(posixpath.join(directory, name, COMMIT_FILE))
        for name in tf.io.gfile.listdir(directory)
    )


def _describe_records(data: TrainingData) -> list[dict[str, Any]]:
    """What was trained on, wherever it lies: JSON."""
    return [
        {
            "first_step": phase.first_step,
            "shards": sorted(
                [posixpath.basename(file), count, checksum]
                for file, count, checksum in zip(
                    phase.records.files,
                    phase.records.counts,
                    phase.records.checksums,
                    strict=True,
                )
            ),
        }
        for phase in data.phases
    ]


def _differences(stored: list[Any], now: list[Any]) -> str:
    if len(stored) != len(now):
        return f"{len(stored)} phases of data before, and {len(now)} now"
    for before, after in zip(stored, now, strict=True):
        gone = [s[0] for s in before["shards"] if s not in after["shards"]]
        new = [s[0] for s in after["shards"] if s not in before["shards"]]
        if gone or new:
            return (
                f"from step {after['first_step']}: without "
                f"{', '.join(gone[:3]) or 'none'} of {len(gone)} shards that "
                f"it began with, and with {', '.join(new[:3]) or 'none'} of "
                f"{len(new)} new ones"
            )
    return "phases of data begin at other steps"


def write(config: PretrainingConfig, data: TrainingData) -> None:
    """Saves the resolved settings and what is known of the records."""
    run_dir = config.training.output_dir
    records = data.phases[0].records
    tf.io.gfile.makedirs(run_dir)
    write_text(
        posixpath.join(run_dir, CONFIG_FILE),
        json.dumps(config.to_dict(), indent=2) + "\n",
    )
    write_text(
        posixpath.join(run_dir, TRAINING_RECORDS_FILE),
        json.dumps(_describe_records(data), indent=2) + "\n",
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
    _check_architecture(run_dir, stored, config)
    changed = _changed(stored, config, Change.ANOTHER_RESULT)
    if changed:
        _refuse_unless_allowed(run_dir, changed, config.training)
    elsewhere = _changed(stored, config, Change.SAME_RESULT)
    if elsewhere:
        logging.info("changed since this run began: %s", elsewhere)


def _check_architecture(
    run_dir: str, stored: PretrainingConfig, config: PretrainingConfig
) -> None:
    changed = _changed(stored, config, Change.ANOTHER_RUN)
    if changed:
        raise UserError(
            f"the run in {run_dir} must be continued with its own settings",
            received=changed,
            remedy="Choose another --output_dir or restore the settings.",
        )


def _changed(
    stored: PretrainingConfig, config: PretrainingConfig, meaning: Change
) -> str:
    before, now = _flatten(stored.to_dict()), _flatten(config.to_dict())
    return "; ".join(
        f"{name} was {before[name]!r} and is {value!r}"
        for name, value in now.items()
        if value != before[name] and meaning_of(name) is meaning
    )


def _refuse_unless_allowed(
    path: str, changed: str, config: TrainingConfig
) -> None:
    if not config.allow_config_change:
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
