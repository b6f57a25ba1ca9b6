"""What a run's directory says of the run, and whether it may go on.

    RUN/config.json                the resolved configuration
    RUN/training_records.json      shards of each phase, with their checksums
    RUN/records_metadata.json      of the first of them, where known
    RUN/spiece.model               their vocabulary, where known
    RUN/warm_start.json            by warm_start.py
    RUN/checkpoints/, RUN/best/    written by checkpoints.py
    RUN/rollbacks.json             by rollback.py
    RUN/corrupt_records.json       by corrupt_records.py
    RUN/metrics.jsonl, RUN/events.jsonl, RUN/tensorboard/   by run_log.py

A run that goes on with changed settings is another run from there on. So each
setting declares what a change of it affects: see `config/settings.py`.
"""

import json
import posixpath
from collections import Counter
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.config import (
    PretrainingConfig,
    TrainingConfig,
    flatten,
    settings_by_path,
)
from albert_tf.errors import UserError
from albert_tf.input.record_sets import RecordSet, TrainingData
from albert_tf.io.files import (
    load_json,
    load_json_if_any,
    open_existing,
    write_bytes,
    write_text,
)
from albert_tf.records import features
from albert_tf.runs.checkpoint_files import CHECKPOINTS_DIR, list_checkpoints

CONFIG_FILE = "config.json"
TRAINING_RECORDS_FILE = "training_records.json"
RECORDS_METADATA_FILE = "records_metadata.json"


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
    if not has_checkpoints(run_dir):
        return
    _check_settings(run_dir, load_config(run_dir), config)
    for phase in data.phases:
        check_vocabulary(run_dir, phase.records)
    path = posixpath.join(run_dir, TRAINING_RECORDS_FILE)
    stored, now = load_json_if_any(path), _describe_records(data)
    if stored is not None and stored != now:
        _refuse_unless_allowed(path, _differences(stored, now), config.training)


def check_evaluation(config: PretrainingConfig, held_out: RecordSet) -> None:
    """Checks that the run of a directory may be evaluated on records.

    Raises:
        UserError: If it is of another architecture or vocabulary.
    """
    run_dir = config.training.output_dir
    if has_checkpoints(run_dir):
        _check_architecture(run_dir, load_config(run_dir), config)
        check_vocabulary(run_dir, held_out)


def check_vocabulary(run_dir: str, records: RecordSet) -> None:
    """Checks that records are of the vocabulary of a run, where known.

    Raises:
        UserError: If they are not.
    """
    path = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    metadata = load_json_if_any(path)
    if metadata is not None:
        features.check_agreement(path, metadata, records.text_settings())


def has_checkpoints(run_dir: str) -> bool:
    """Whether a run has saved a checkpoint, which makes it resumable."""
    return bool(list_checkpoints(posixpath.join(run_dir, CHECKPOINTS_DIR)))


def _describe_records(data: TrainingData) -> list[dict[str, Any]]:
    """What is trained on, in the order read, wherever it lies: JSON.

    Where there are several sets of shards, which one each is of.
    """

    def sets(records: RecordSet) -> dict[str, list[int]]:
        set_of = {
            file: number
            for number, files in enumerate(records.sets)
            for file in files
        }
        numbers = [set_of[file] for file in records.files]
        return {"sets": numbers} if len(records.sets) > 1 else {}

    return [
        {
            "first_step": phase.first_step,
            "shards": [
                [posixpath.basename(file), count, checksum]
                for file, count, checksum in zip(
                    phase.records.files,
                    phase.records.counts,
                    phase.records.checksums,
                    strict=True,
                )
            ],
            **sets(phase.records),
        }
        for phase in data.phases
    ]


def _differences(stored: list[Any], now: list[Any]) -> str:
    if len(stored) != len(now):
        return f"{len(stored)} phases of data before, and {len(now)} now"
    for before, after in zip(stored, now, strict=True):
        had, has = (Counter(map(tuple, p["shards"])) for p in (before, after))
        gone = [name for name, *_ in (had - has).elements()]
        new = [name for name, *_ in (has - had).elements()]
        if gone or new:
            return (
                f"from step {after['first_step']}: without "
                f"{', '.join(gone[:3]) or 'none'} of {len(gone)} shards that "
                f"it began with, and with {', '.join(new[:3]) or 'none'} of "
                f"{len(new)} new ones"
            )
        if before["shards"] != after["shards"]:
            return (
                f"from step {after['first_step']}: the same shards, whose "
                "paths now sort in another order, in which they are read"
            )
        if before.get("sets") != after.get("sets"):
            return (
                f"from step {after['first_step']}: the same shards, in other "
                "sets, whose records alternate"
            )
    return "phases of data begin at other steps"


def write(config: PretrainingConfig, data: TrainingData) -> None:
    """Saves the resolved settings and what is known of the records."""
    run_dir = config.training.output_dir
    records = data.phases[0].records
    write_config(run_dir, config)
    write_text(
        posixpath.join(run_dir, TRAINING_RECORDS_FILE),
        json.dumps(_describe_records(data), indent=2) + "\n",
    )
    metadata = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    kept_vocabulary = posixpath.join(run_dir, features.TOKENIZER_FILE)
    if tf.io.gfile.exists(metadata) and not has_checkpoints(run_dir):
        # Of an attempt that ended too early to be continued.
        for file in filter(tf.io.gfile.exists, (kept_vocabulary, metadata)):
            tf.io.gfile.remove(file)
    if records.metadata is None:
        return
    write_text(metadata, records.metadata.to_json())
    vocabulary = posixpath.join(records.directory, features.TOKENIZER_FILE)
    if tf.io.gfile.exists(vocabulary):
        with open_existing(vocabulary, "rb") as source:
            write_bytes(kept_vocabulary, source.read())


def write_config(run_dir: str, config: PretrainingConfig) -> None:
    """Saves the resolved settings, which make a directory that of a run."""
    tf.io.gfile.makedirs(run_dir)
    write_text(
        posixpath.join(run_dir, CONFIG_FILE),
        json.dumps(config.to_dict(), indent=2) + "\n",
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
    changed = _changed(stored, config, "result")
    if changed:
        _refuse_unless_allowed(run_dir, changed, config.training)
    elsewhere = _changed(stored, config, "nothing")
    if elsewhere:
        logging.info("changed since this run began: %s", elsewhere)


def _check_architecture(
    run_dir: str, stored: PretrainingConfig, config: PretrainingConfig
) -> None:
    changed = _changed(stored, config, "model")
    if changed:
        raise UserError(
            f"the run in {run_dir} must be continued with its own settings",
            received=changed,
            remedy="Choose another --output_dir or restore the settings.",
        )


def _changed(
    stored: PretrainingConfig, config: PretrainingConfig, affects: str
) -> str:
    """The settings that differ and affect the model, the result or nothing."""
    settings = settings_by_path(PretrainingConfig)
    before, now = flatten(stored.to_dict()), flatten(config.to_dict())
    return "; ".join(
        f"{name} was {before[name]!r} and is {value!r}"
        for name, value in now.items()
        if value != before[name]
        # An undeclared setting must not change a run silently.
        and (settings[name].metadata["affects"] or "result") == affects
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
