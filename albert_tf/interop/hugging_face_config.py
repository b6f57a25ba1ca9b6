"""The config.json of Hugging Face: architecture, head and task of a model.

A config.json may leave settings of the architecture out; they then have the
default values of transformers' `AlbertConfig`, not those of `ModelConfig`.

How a fine-tuned model reads text and answers is an entry of its own, since
transformers has other settings with the same names: its examples of question
answering call the overlap of two windows `doc_stride`.

    "albert_tf": {
      "max_seq_length": 384,
      "doc_stride": 128,
      ...
      "null_threshold": -1.25
    }
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from albert_tf.config import (
    SENTENCE_OBJECTIVES,
    FinetuningConfig,
    ModelConfig,
    TaskHeadConfig,
)
from albert_tf.config.settings import find_setting
from albert_tf.config.task import (
    CLASSIFICATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    FinetuningDataConfig,
)
from albert_tf.errors import UserError
from albert_tf.interop.weight_names import check_layer_groups
from albert_tf.io.files import load_json
from albert_tf.records.features import CLS_ID, PAD_ID, SEP_ID

# Settings that have the same name in both projects, and the default values of
# `AlbertConfig`.
SHARED_SETTINGS = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_hidden_layers": 12,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}

# Settings of `AlbertConfig` for which this project supports one value.
_FIXED_SETTINGS = {
    "model_type": "albert",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "is_decoder": False,
}

# Hugging Face's names by ours. Its "gelu" is the exact function, ours is the
# tanh approximation.
_ACTIVATIONS = {
    "gelu": "gelu_new",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
_OUR_ACTIVATIONS = {theirs: ours for ours, theirs in _ACTIVATIONS.items()} | {
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
}

# Classes of transformers by kind of task.
CLASSES = {
    CLASSIFICATION: "AlbertForSequenceClassification",
    REGRESSION: "AlbertForSequenceClassification",
    MULTIPLE_CHOICE: "AlbertForMultipleChoice",
    QUESTION_ANSWERING: "AlbertForQuestionAnswering",
}
PIPELINES = {
    CLASSIFICATION: "text-classification",
    REGRESSION: "text-classification",
    MULTIPLE_CHOICE: "multiple-choice",
    QUESTION_ANSWERING: "question-answering",
}

# The number of choices in a config.json, which only albert_tf writes, and the
# number if it is missing: that of the documentation of transformers.
NUM_CHOICES = "num_choices"
DEFAULT_NUM_CHOICES = 2

KEY = "albert_tf"
NULL_THRESHOLD = "null_threshold"

# How a model reads text and answers, by kind of its task.
TASK_SETTINGS = {
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


def read_config(path: str) -> tuple[ModelConfig, str]:
    """Reads a config.json.

    Returns:
        The architecture and the sentence objective, "sop" if the file has
        none.

    Raises:
        UserError: If the file is missing or damaged, or describes a model
            that this project does not support.
    """
    stored = load_json(path)
    if not isinstance(stored, dict):
        raise UserError(f"{path} must hold a JSON object")
    for name, supported in _FIXED_SETTINGS.items():
        if stored.get(name, supported) != supported:
            raise UserError(
                f"{name} in {path} must be {json.dumps(supported)}, the only "
                "value that albert_tf supports",
                received=json.dumps(stored[name]),
            )
    objective = stored.get("sentence_objective", "sop")
    if objective not in SENTENCE_OBJECTIVES:
        raise UserError(
            f"sentence_objective in {path} must be one of "
            f"{', '.join(SENTENCE_OBJECTIVES)}",
            received=json.dumps(objective),
        )
    config = ModelConfig.from_dict(
        {
            name: stored.get(name, default)
            for name, default in SHARED_SETTINGS.items()
        }
        | {"hidden_act": _read_activation(stored, path)},
        path,
    )
    check_groups(config, path)
    return config, objective


def format_config(
    config: ModelConfig,
    sentence_objective: str,
    head: TaskHeadConfig | None = None,
    settings: Mapping[str, Any] | None = None,
) -> bytes:
    """Returns the content of a config.json.

    Args:
        settings: Of a fine-tuned model, as in `TASK_SETTINGS`.
    """
    has_head = sentence_objective != "none"
    values = {
        "architectures": [
            "AlbertForPreTraining" if has_head else "AlbertForMaskedLM"
        ],
        **_FIXED_SETTINGS,
        **{name: getattr(config, name) for name in SHARED_SETTINGS},
        "hidden_act": _ACTIVATIONS[config.hidden_act],
        "classifier_dropout_prob": 0.1,
        "pad_token_id": PAD_ID,
        "bos_token_id": CLS_ID,
        "eos_token_id": SEP_ID,
        # Not a setting of transformers, which ignores it.
        "sentence_objective": sentence_objective,
        **(_format_head(head) if head else {}),
        **_format_settings(settings or {}),
    }
    return (json.dumps(values, indent=2) + "\n").encode()


def check_groups(config: ModelConfig, source: str) -> None:
    """Refuses layers that transformers would put into other groups.

    For L layers in G groups, transformers computes the group of layer n as
    `int(n / (L / G))`, in floating point: with 44 layers in 20 groups, layer 33
    is in group 14 there.

    Args:
        config: The architecture, with groups of layers.
        source: The model, for the error message.

    Raises:
        UserError: If there is such a layer; the error names the first.
    """
    layers_per_group = config.num_hidden_layers / config.num_hidden_groups
    check_layer_groups(
        config,
        "transformers",
        lambda layer: int(layer / layers_per_group),
        source,
    )


def _read_activation(stored: Mapping[str, Any], path: str) -> str:
    theirs = stored.get("hidden_act", "gelu_new")
    if theirs == "gelu":
        raise UserError(
            f"hidden_act in {path} must be gelu_new, the tanh approximation "
            "of GELU, which albert_tf computes",
            received="gelu, the exact function in transformers; activations "
            "differ by up to 0.0005",
            remedy="Write gelu_new in that file to accept the difference. The "
            "published v1 models say gelu although they were trained with "
            "the approximation; for them, gelu_new is right.",
        )
    if not isinstance(theirs, str) or theirs not in _OUR_ACTIVATIONS:
        raise UserError(
            f"hidden_act in {path} must be one of "
            f"{', '.join(sorted(_OUR_ACTIVATIONS))}",
            received=json.dumps(theirs),
        )
    return _OUR_ACTIVATIONS[theirs]


def _format_head(head: TaskHeadConfig) -> dict[str, Any]:
    """The settings of a config.json that describe the head.

    Raises:
        UserError: If transformers has no such head.
    """
    if head.is_beam:
        raise UserError(
            "transformers has no ALBERT with the head squad_head=beam",
            remedy="Fine-tune with --squad_head=plain.",
        )
    values: dict[str, Any] = {"architectures": [CLASSES[head.kind]]}
    if head.kind == REGRESSION:
        values |= {"problem_type": "regression", "id2label": {"0": "value"}}
    if head.kind == CLASSIFICATION:
        values |= {
            "problem_type": "single_label_classification",
            "id2label": {str(i): name for i, name in enumerate(head.labels)},
            "label2id": {name: i for i, name in enumerate(head.labels)},
        }
    if head.kind == MULTIPLE_CHOICE:
        # Not a setting of transformers, which ignores it.
        values[NUM_CHOICES] = head.num_choices
    return values


def read_head(stored: Mapping[str, Any]) -> TaskHeadConfig | None:
    """The head that a config.json describes; None for a pretrained model.

    Raises:
        UserError: If the head classifies into several classes at once.
    """
    if stored.get("problem_type") == "multi_label_classification":
        raise UserError(
            "problem_type must be single_label_classification or regression",
            received="multi_label_classification",
            remedy="albert_tf has no head that predicts several classes of "
            "one text.",
        )
    name = (stored.get("architectures") or [""])[0]
    labels = stored.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if name == CLASSES[CLASSIFICATION]:
        if len(labels) == 1 or stored.get("problem_type") == REGRESSION:
            return TaskHeadConfig(REGRESSION)
        return TaskHeadConfig(
            CLASSIFICATION, tuple(labels[str(i)] for i in range(len(labels)))
        )
    if name == CLASSES[MULTIPLE_CHOICE]:
        num_choices = stored.get(NUM_CHOICES, DEFAULT_NUM_CHOICES)
        return TaskHeadConfig(MULTIPLE_CHOICE, num_choices=num_choices)
    if name == CLASSES[QUESTION_ANSWERING]:
        return TaskHeadConfig(QUESTION_ANSWERING)
    return None


def _format_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a config.json; empty without settings.

    JSON has no infinity: null is the threshold of a model that answers every
    question.
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
    known = TASK_SETTINGS[kind]
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
