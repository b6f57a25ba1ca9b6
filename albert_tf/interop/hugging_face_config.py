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
from typing import Any, NamedTuple

from absl import logging

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
from albert_tf.interop.weight_names import ModelWeights, check_groups
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

# Hugging Face's names -> ours; the last one of each of ours is written. Its
# "gelu" is the exact function, ours is the tanh approximation.
_ACTIVATIONS = {
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "linear": "linear",
    "relu": "relu",
    "tanh": "tanh",
}
_THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}

# The number of choices in a config.json, which only albert_tf writes, and the
# number if it is missing: that of the documentation of transformers.
_NUM_CHOICES = "num_choices"
_DEFAULT_NUM_CHOICES = 2

KEY = "albert_tf"
NULL_THRESHOLD = "null_threshold"


class TaskOfTransformers(NamedTuple):
    """What transformers calls a kind of task, and the settings of `KEY`."""

    class_name: str
    pipeline: str
    settings: tuple[str, ...]


_SEQUENCES = TaskOfTransformers(
    "AlbertForSequenceClassification",
    "text-classification",
    ("max_seq_length",),
)
TASKS = {
    CLASSIFICATION: _SEQUENCES,
    REGRESSION: _SEQUENCES,
    MULTIPLE_CHOICE: TaskOfTransformers(
        "AlbertForMultipleChoice",
        "multiple-choice",
        ("max_seq_length", "max_qa_length"),
    ),
    QUESTION_ANSWERING: TaskOfTransformers(
        "AlbertForQuestionAnswering",
        "question-answering",
        (
            "max_seq_length",
            "doc_stride",
            "max_query_length",
            "max_answer_length",
            "n_best_size",
            NULL_THRESHOLD,
        ),
    ),
}


def class_name(weights: ModelWeights) -> str:
    """The class of transformers that has exactly the weights of a model."""
    if weights.head:
        return TASKS[weights.head.kind].class_name
    has_head = weights.sentence_objective != "none"
    return "AlbertForPreTraining" if has_head else "AlbertForMaskedLM"


def read_config(stored: Any, path: str) -> tuple[ModelConfig, str]:
    """Reads the architecture and the sentence objective of a config.json.

    Args:
        stored: The content; without an objective, it is "sop".
        path: Of the file, for the error.
    """
    if not isinstance(stored, dict):
        raise UserError(f"{path} must hold a JSON object")
    activation = stored.get("hidden_act", "gelu_new")
    if activation == "gelu":
        raise UserError(
            f"hidden_act in {path} must be gelu_new, the tanh approximation "
            "of GELU, which albert_tf computes",
            received="gelu, the exact function; they differ by up to 0.0005",
            remedy="Write gelu_new in that file to accept the difference. For "
            "the published v1 models, which say gelu, gelu_new is right.",
        )
    supported = {name: [value] for name, value in _FIXED_SETTINGS.items()} | {
        "hidden_act": list(_ACTIVATIONS),
        "sentence_objective": list(SENTENCE_OBJECTIVES),
    }
    for name, values in supported.items():
        if name in stored and stored[name] not in values:
            raise UserError(
                f"{name} in {path} must be one of {json.dumps(values)[1:-1]}",
                received=json.dumps(stored[name]),
            )
    config = ModelConfig.from_dict(
        {
            name: stored.get(name, default)
            for name, default in SHARED_SETTINGS.items()
        }
        | {"hidden_act": _ACTIVATIONS[activation]},
        path,
    )
    check_groups(config, "transformers", path)
    return config, stored.get("sentence_objective", "sop")


def format_config(weights: ModelWeights) -> bytes:
    """Returns the content of a config.json.

    Raises:
        UserError: If transformers has no such head.
    """
    config, head = weights.config, weights.head
    values = {
        "architectures": [class_name(weights)],
        **_FIXED_SETTINGS,
        **{name: getattr(config, name) for name in SHARED_SETTINGS},
        "hidden_act": _THEIR_ACTIVATIONS[config.hidden_act],
        "classifier_dropout_prob": 0.1,
        "pad_token_id": PAD_ID,
        "bos_token_id": CLS_ID,
        "eos_token_id": SEP_ID,
        # Not a setting of transformers, which ignores it.
        "sentence_objective": weights.sentence_objective,
    }
    if head and head.is_beam:
        raise UserError(
            "transformers has no ALBERT with the head squad_head=beam",
            remedy="Fine-tune with --squad_head=plain.",
        )
    if head and head.kind == REGRESSION:
        values |= {"problem_type": "regression", "id2label": {"0": "value"}}
    if head and head.kind == CLASSIFICATION:
        values |= {
            "problem_type": "single_label_classification",
            "id2label": {str(i): name for i, name in enumerate(head.labels)},
            "label2id": {name: i for i, name in enumerate(head.labels)},
        }
    if head and head.kind == MULTIPLE_CHOICE:
        # Not a setting of transformers, which ignores it.
        values[_NUM_CHOICES] = head.num_choices
    if weights.settings:
        # JSON has no infinity, the threshold of a model that answers every
        # question.
        values[KEY] = {
            name: None if value == math.inf else value
            for name, value in weights.settings.items()
        }
    return (json.dumps(values, indent=2) + "\n").encode()


def read_task(
    stored: Mapping[str, Any], model: ModelConfig, path: str
) -> tuple[TaskHeadConfig | None, dict[str, Any]]:
    """Reads the head of a fine-tuned model, and how it reads text and answers.

    Args:
        stored: The content of a config.json.
        model: The architecture, which limits the length of a sequence.
        path: Of that file, for the error.

    Returns:
        The head and the settings in `TASKS`; None and {} for a pretrained
        model.
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
    if name == TASKS[CLASSIFICATION].class_name:
        head = TaskHeadConfig(REGRESSION)
        if len(labels) > 1 and stored.get("problem_type") != REGRESSION:
            names = tuple(labels[str(i)] for i in range(len(labels)))
            head = TaskHeadConfig(CLASSIFICATION, names)
    elif name == TASKS[MULTIPLE_CHOICE].class_name:
        if _NUM_CHOICES not in stored:
            logging.warning(
                "%s does not store the number of choices of a question: an "
                "export takes %d, unless a conversion sets --num_choices",
                path,
                _DEFAULT_NUM_CHOICES,
            )
        num_choices = stored.get(_NUM_CHOICES, _DEFAULT_NUM_CHOICES)
        head = TaskHeadConfig(MULTIPLE_CHOICE, num_choices=num_choices)
    elif name == TASKS[QUESTION_ANSWERING].class_name:
        head = TaskHeadConfig(QUESTION_ANSWERING)
    else:
        return None, {}
    settings = stored.get(KEY, {})
    where = f"{KEY} in {path}"
    known = TASKS[head.kind].settings
    if not isinstance(settings, dict) or not set(settings) <= set(known):
        raise UserError(
            f"{where} must be an object with settings among {', '.join(known)}",
            received=settings,
            remedy=f"Correct it, or remove {KEY}: the settings then have their "
            "defaults.",
        )
    infinite = {}
    if settings.get(NULL_THRESHOLD, 0) is None:
        infinite = {NULL_THRESHOLD: math.inf}
    finite = {n: value for n, value in settings.items() if n not in infinite}
    positions = model.max_position_embeddings
    length = min(FinetuningDataConfig.max_seq_length, positions)
    try:
        config = FinetuningConfig().replace(
            max_position_embeddings=positions,
            **{"max_seq_length": length, **finite},
        )
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return head, {n: find_setting(config, n) for n in finite} | infinite
