"""The directory of a run: its files, whether it may resume, its model.

    RUN/config.json                the resolved settings
    RUN/training_records.json      the shards, with checksums
    RUN/records_metadata.json      their metadata, where known
    RUN/spiece.model               vocabulary of the records, where known
    RUN/warm_start.json            see training/warm_start.py
    RUN/null_threshold.json        null odds above which no answer is given
    RUN/checkpoints/, RUN/best/    see checkpoints.py
    RUN/metrics.jsonl, RUN/events.jsonl, RUN/tensorboard/    see log.py
    RUN/predictions/               see finetuning/run.py

Each setting declares what a change of its value affects, which decides whether
a run may resume with the new value: see `config/settings.py`.
"""

import math
import posixpath
from collections import Counter
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import FinetuningConfig, PretrainingConfig, TrainingConfig
from albert_tf.config.task import ALWAYS_ANSWERABLE
from albert_tf.errors import UserError, name_faults
from albert_tf.input.record_sets import RecordSet
from albert_tf.io.artifact import differences
from albert_tf.io.files import (
    exists,
    load_json,
    load_json_if_any,
    open_existing,
    write_bytes,
    write_json,
    write_text,
)
from albert_tf.modeling.models import AlbertForTask, AlbertPretrainer
from albert_tf.records import features
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoints import (
    BEST_DIR,
    CHECKPOINTS_DIR,
    Checkpoint,
    CheckpointStore,
    list_checkpoints,
    model_variables,
)

CONFIG_FILE = "config.json"
TRAINING_RECORDS_FILE = "training_records.json"
RECORDS_METADATA_FILE = "records_metadata.json"
NULL_THRESHOLD_FILE = "null_threshold.json"

_COMMANDS = {
    PretrainingConfig: "python -m albert_tf.run_pretraining",
    FinetuningConfig: "python -m albert_tf.run_finetuning",
}


def check(config: PretrainingConfig, records: RecordSet) -> list[Checkpoint]:
    """Checks that a run may resume with these settings and records.

    Returns:
        The checkpoints, sorted by step. Without any, the run is new.

    Raises:
        UserError: If the architecture or the vocabulary has changed; without
            `allow_config_change`, also if records or settings that affect the
            result have changed. The error names what has changed. Also if
            `num_train_steps` is below the step of the newest checkpoint, or if
            the directory holds a converted model, or parts of an earlier run.
    """
    run_dir = config.training.output_dir
    checkpoints = list_checkpoints(posixpath.join(run_dir, CHECKPOINTS_DIR))
    if not checkpoints:
        _check_is_new(run_dir)
        return []
    if not checkpoints[-1].notes and not checkpoints[-1].fault:
        raise UserError(
            f"{run_dir} must hold a run that can resume",
            received="a converted model",
            remedy="Choose a new --output_dir, and start from this model: "
            f"--init_checkpoint={run_dir}.",
        )
    intact = [c for c in checkpoints if not c.fault]
    if intact and intact[-1].step > config.training.num_train_steps:
        # The run would end at once, with other weights than those of its last
        # step.
        raise UserError(
            f"num_train_steps must be at least {intact[-1].step}, the step of "
            f"the newest checkpoint in {run_dir}",
            received=config.training.num_train_steps,
            remedy="Raise it, choose another --output_dir, or move the later "
            "checkpoints to another directory.",
        )
    stored_config = load_config(run_dir, type(config))
    if changed := _changed(stored_config, config, "model", "start"):
        raise UserError(
            f"the run in {run_dir} must resume with its own settings",
            received=changed,
            remedy="Choose another --output_dir or restore the settings.",
        )
    if changed := _changed(stored_config, config, "result"):
        _refuse_unless_allowed(run_dir, changed, config.training)
    check_vocabulary(run_dir, records)
    path = posixpath.join(run_dir, TRAINING_RECORDS_FILE)
    stored, now = load_json_if_any(path), _describe_records(records)
    if stored is not None and stored != now:
        _refuse_unless_allowed(
            path, _describe_changed_records(stored, now), config.training
        )
    return checkpoints


def _check_is_new(run_dir: str) -> None:
    """Checks that a directory without checkpoints has no part of another run.

    A run saves its first checkpoint before it trains and evaluates. So if
    there is no checkpoint, the best checkpoint is of a run whose checkpoints
    are missing. A new run must not use it.
    """
    if list_checkpoints(posixpath.join(run_dir, BEST_DIR)):
        raise UserError(
            f"{run_dir} must have checkpoints, since it has {BEST_DIR}/",
            received="none",
            remedy=f"Restore {CHECKPOINTS_DIR}/ to continue the run. To start "
            f"a new run, choose another --output_dir, or remove {BEST_DIR}/.",
        )


def check_evaluation(config: PretrainingConfig, held_out: RecordSet) -> None:
    """Refuses records whose vocabulary differs, and another architecture."""
    run_dir = config.training.output_dir
    if not has_checkpoints(run_dir):
        return
    stored = load_config(run_dir, type(config))
    if changed := _changed(stored, config, "model"):
        raise UserError(
            f"the model in {run_dir} must be evaluated with its own "
            "architecture",
            received=changed,
            remedy="Restore these settings.",
        )
    check_vocabulary(run_dir, held_out)


def check_vocabulary(run_dir: str, records: RecordSet) -> None:
    """Refuses records of another vocabulary than the run's, if it is known."""
    settings = records.text_settings()
    if not settings:
        return
    source = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    vocabulary = posixpath.join(run_dir, features.TOKENIZER_FILE)
    known = load_json_if_any(source)
    if known is None and exists(vocabulary):
        # A converted model has only its vocabulary.
        source = vocabulary
        with open_existing(vocabulary, "rb") as file:
            known = {"vocabulary_sha256": features.sha256_of(file.read())}
    if known is None:
        logging.warning(
            "%s does not exist: the vocabulary of the records is not "
            "compared with that of the model",
            vocabulary,
        )
        return
    features.check_values_match(
        records.directory or ".",
        settings,
        {name: known[name] for name in settings if name in known},
        other=source,
        remedy="Use records that are built with the vocabulary of the run, "
        f"{vocabulary}, and with its --do_lower_case.",
    )


def load_tokenizer(run_dir: str, vocab_size: int) -> Tokenizer:
    """The vocabulary of a run, as its records and its model have it.

    Args:
        vocab_size: That of the model.

    Raises:
        UserError: If it is missing, or another one.
    """
    vocabulary = posixpath.join(run_dir, features.TOKENIZER_FILE)
    source = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    stored = load_json_if_any(source) or {}
    tokenizer = Tokenizer(vocabulary, stored.get("do_lower_case"))
    sha256 = tokenizer.sha256
    features.check_values_match(
        vocabulary,
        {"sha256": sha256, "vocab_size": tokenizer.vocab_size},
        {
            "sha256": stored.get("vocabulary_sha256") or sha256,
            "vocab_size": vocab_size,
        },
        other=f"the run in {run_dir}",
        remedy="Restore the vocabulary of the run.",
    )
    return tokenizer


def has_checkpoints(run_dir: str) -> bool:
    """Whether a run has saved a checkpoint, which makes it resumable."""
    return bool(list_checkpoints(posixpath.join(run_dir, CHECKPOINTS_DIR)))


def write(config: PretrainingConfig, records: RecordSet) -> None:
    """Saves settings, shards, and metadata and vocabulary of the records."""
    run_dir = config.training.output_dir
    write_config(run_dir, config)
    write_json(
        posixpath.join(run_dir, TRAINING_RECORDS_FILE),
        _describe_records(records),
    )
    metadata = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    if records.metadata is None:
        return
    write_text(metadata, records.metadata.to_json())
    vocabulary = posixpath.join(records.directory, features.TOKENIZER_FILE)
    if exists(vocabulary):
        with open_existing(vocabulary, "rb") as source:
            write_bytes(
                posixpath.join(run_dir, features.TOKENIZER_FILE), source.read()
            )


def write_config(run_dir: str, config: PretrainingConfig) -> None:
    """Saves the resolved settings; this creates the directory of a run."""
    tf.io.gfile.makedirs(run_dir)
    write_json(posixpath.join(run_dir, CONFIG_FILE), config.to_dict())


def load_config(
    run_dir: str, config_type: type[PretrainingConfig] | None = None
) -> PretrainingConfig:
    """Loads the resolved settings of a run, of any command or of one.

    Raises:
        UserError: If the directory holds no run, or one of another command.
    """
    path = posixpath.join(run_dir, CONFIG_FILE)
    parent = posixpath.dirname(run_dir.rstrip("/"))
    if not exists(path) and exists(posixpath.join(parent, CONFIG_FILE)):
        raise UserError(
            f"{path} must exist",
            received=f"a directory in the run {parent}",
            remedy=f"Give {parent} instead, and the step of a checkpoint in "
            f"{run_dir} as --checkpoint_step.",
        )
    google_albert = posixpath.join(run_dir, "albert_config.json")
    values, other = {}, "a checkpoint of google-research/albert"
    if exists(path) or not exists(google_albert):
        values = load_json(path)
        other = "a Hugging Face folder" if "model_type" in values else ""
    if other:
        raise UserError(
            f"{run_dir} must be a run of albert_tf",
            received=other,
            remedy="Convert it first: python -m albert_tf.convert_checkpoint "
            f"--from={run_dir} --to=RUN.",
        )
    written_by = FinetuningConfig if "head" in values else PretrainingConfig
    if config_type is not None and config_type is not written_by:
        raise UserError(
            f"{run_dir} must hold a run of the same command",
            received=f"a run of {_COMMANDS[written_by]}",
            remedy="Choose another --output_dir.",
        )
    return written_by.from_dict(values, source=path)


def _changed(
    stored: PretrainingConfig, config: PretrainingConfig, *affects: str
) -> str:
    """Lists changed settings with these `affects`."""
    now = config.settings_affecting(*affects)
    return "; ".join(differences(stored.to_dict(), now))


def _refuse_unless_allowed(
    path: str, changed: str, config: TrainingConfig
) -> None:
    if not config.allow_config_change:
        raise UserError(
            f"the run of {path} must resume with its own settings",
            received=changed,
            remedy="Restore them, choose another --output_dir, or pass "
            "--allow_config_change to continue with the new settings.",
        )
    logging.warning(
        "changed since the last start of this run, as allowed: %s", changed
    )


def _describe_records(records: RecordSet) -> dict[str, Any]:
    """Name, number of records and checksum of each shard.

    If there are several directories, the number of that of each shard, too.
    """
    described: dict[str, Any] = {
        "shards": [
            [posixpath.basename(file), count, records.checksums.get(file, "")]
            for file, count in records.counts.items()
        ]
    }
    directories = records.files_by_directory
    if len(directories) > 1:
        described["directories"] = [
            [file in files for files in directories].index(True)
            for file in records.files
        ]
    return described


def _describe_changed_records(
    stored: Mapping[str, Any], now: Mapping[str, Any]
) -> str:
    """Names the shards in which two results of `_describe_records` differ."""
    old, new = (
        Counter(tuple(shard) for shard in described["shards"])
        for described in (stored, now)
    )
    missing = name_faults([name for name, *_ in (old - new).elements()])
    added = name_faults([name for name, *_ in (new - old).elements()])
    if not missing and not added:
        return (
            "the same shards, read in another order: the paths sort in another "
            "order, or the directories differ"
        )
    return f"missing shards: {missing or 'none'}; new shards: {added or 'none'}"


def null_threshold(run_dir: str, config: FinetuningConfig) -> float:
    """The threshold of the null odds, above which a question has no answer.

    It is stored in the run, or else in its settings. It is infinite for a task
    in which every question has an answer.
    """
    if config.task.task == ALWAYS_ANSWERABLE:
        return math.inf
    stored = load_json_if_any(posixpath.join(run_dir, NULL_THRESHOLD_FILE))
    return (
        stored["null_threshold"] if stored else config.training.null_threshold
    )


def restore_model(
    run_dir: str, model: keras.layers.Layer, step: int = 0
) -> int:
    """Restores a built model from a checkpoint of a run; returns its step.

    Args:
        step: Step of a checkpoint that was kept, or of the best one; 0 loads
            the newest.

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
    run_dir: str, step: int = 0, **changes: Any
) -> tuple[PretrainingConfig, AlbertPretrainer | AlbertForTask, int]:
    """Loads the trained model of a run; see `restore_model`.

    Its variables are created in the current scope of tf.distribute.

    Args:
        changes: Settings that differ from those of training, e.g.
            `precision="float32"`.

    Returns:
        The changed configuration, the model, and the checkpoint's step.
    """
    config = load_config(run_dir).replace(**changes)
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
