"""The architecture of a model as the config.json of Hugging Face.

A config.json may leave settings out; they then have the default values of
transformers' `AlbertConfig`, not those of `ModelConfig`.
"""

import json
from collections.abc import Mapping
from typing import Any

from albert_tf.config import SENTENCE_OBJECTIVES, ModelConfig, TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.interop.hugging_face_task import format_head
from albert_tf.interop.layer_groups import check_layer_groups
from albert_tf.interop.task_settings import format_settings
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
        settings: Of a fine-tuned model, as in `task_settings`.
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
        **(format_head(head) if head else {}),
        **format_settings(settings or {}),
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
