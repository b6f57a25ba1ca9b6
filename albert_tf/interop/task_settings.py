"""How a fine-tuned model reads text and answers, beyond its weights and head.

The settings of a run become a part of Hugging Face's config.json, and back:

    "albert_tf": {
      "max_seq_length": 384,
      "doc_stride": 128,
      ...
      "null_threshold": -1.25
    }

They have a key of their own since transformers has other settings with the same
names: its examples of question answering call the overlap of two windows
`doc_stride`.
"""

import math
import posixpath
from collections.abc import Mapping
from typing import Any

from albert_tf.config import FinetuningConfig, ModelConfig
from albert_tf.config.settings import find_setting
from albert_tf.config.task import (
    CLASSIFICATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    FinetuningDataConfig,
)
from albert_tf.errors import UserError
from albert_tf.io.files import write_json
from albert_tf.runs.directory import NULL_THRESHOLD_FILE, null_threshold

KEY = "albert_tf"
NULL_THRESHOLD = "null_threshold"

# Settings of a run, by kind of its task.
_NAMES = {
    CLASSIFICATION: ("max_seq_length",),
    REGRESSION: ("max_seq_length",),
    MULTIPLE_CHOICE: ("max_seq_length", "max_qa_length"),
    QUESTION_ANSWERING: (
        "max_seq_length",
        "doc_stride",
        "max_query_length",
        "max_answer_length",
        "n_best_size",
        NULL_THRESHOLD,
    ),
}


def read_run(run_dir: str, config: FinetuningConfig) -> dict[str, Any]:
    """The settings of a run by name.

    The null threshold is the one that applies to the run; it is infinite if
    every question has an answer.
    """
    settings = {
        name: find_setting(config, name) for name in _NAMES[config.head.kind]
    }
    if NULL_THRESHOLD in settings:
        settings[NULL_THRESHOLD] = null_threshold(run_dir, config)
    return settings


def write_run(
    run_dir: str, config: FinetuningConfig, settings: Mapping[str, Any]
) -> FinetuningConfig:
    """Writes the null threshold of a run.

    Args:
        run_dir: A new run directory.
        config: The settings of the run.
        settings: As `read_run` returns them, or some of them.

    Returns:
        The settings of the run with the other ones.
    """
    lengths = dict(settings)
    threshold = lengths.pop(NULL_THRESHOLD, None)
    if threshold is not None:
        path = posixpath.join(run_dir, NULL_THRESHOLD_FILE)
        write_json(path, {NULL_THRESHOLD: threshold})
    return config.replace(**lengths)


def format_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a config.json; empty without settings.

    JSON has no infinity: null is the threshold of a model that answers every
    question.

    Example:
        >>> format_settings({"doc_stride": 64, "null_threshold": math.inf})
        {'albert_tf': {'doc_stride': 64, 'null_threshold': None}}
    """
    values = {
        name: None if value == math.inf else value
        for name, value in settings.items()
    }
    return {KEY: values} if values else {}


def parse_settings(
    stored: Mapping[str, Any], kind: str, model: ModelConfig, path: str
) -> dict[str, Any]:
    """The inverse of `format_settings`.

    Args:
        stored: The content of a config.json.
        kind: Kind of the task.
        model: The architecture, which limits the length of a sequence.
        path: Of that file, for the error.

    Raises:
        UserError: If a setting is unknown or has an invalid value.
    """
    values = stored.get(KEY, {})
    where = f"{KEY} in {path}"
    known = _NAMES[kind]
    if not isinstance(values, dict) or not set(values) <= set(known):
        raise UserError(
            f"{where} must be an object with settings among {', '.join(known)}",
            received=values,
            remedy=f"Correct it, or remove {KEY}: the settings then have their "
            "defaults.",
        )
    answers_all = values.get(NULL_THRESHOLD, 0) is None
    checked = dict(values)
    if answers_all:
        del checked[NULL_THRESHOLD]
    positions = model.max_position_embeddings
    length = min(FinetuningDataConfig.max_seq_length, positions)
    try:
        config = FinetuningConfig().replace(
            max_position_embeddings=positions,
            **{"max_seq_length": length, **checked},
        )
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    settings = {name: find_setting(config, name) for name in checked}
    return settings | ({NULL_THRESHOLD: math.inf} if answers_all else {})
