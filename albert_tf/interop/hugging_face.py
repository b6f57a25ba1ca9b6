"""Folders of Hugging Face transformers: a model read, and written.

    config.json                    the architecture
    model.safetensors              the weights; or several files, and
    model.safetensors.index.json   which weight is in which of them
    spiece.model and others        see hugging_face_tokenizer.py
    README.md                      see model_card.py

Neither transformers nor PyTorch is needed. Nothing but JSON and safetensors is
read: files of pickled Python run code when they are read.
"""

import dataclasses
import json
import posixpath
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
from absl import logging
from safetensors.numpy import save

from albert_tf.config import SENTENCE_OBJECTIVES, ModelConfig
from albert_tf.errors import UserError, first_line
from albert_tf.interop.hugging_face_tokenizer import is_cased, tokenizer_files
from albert_tf.interop.model_card import make_model_card
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.interop.weight_names import list_weights
from albert_tf.io.files import (
    exists,
    load_json,
    load_json_if_any,
    open_existing,
    write_bytes,
)
from albert_tf.records.features import CLS_ID, PAD_ID, SEP_ID, TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.directory import RECORDS_METADATA_FILE

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CARD_FILE = "README.md"

# Other files that weights come in.
_REFUSED_FILES = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)

# Theirs by ours: what they call "gelu" is by the error function, not by tanh.
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

# Settings that both have by one name, and what it means where a config.json
# leaves one out.
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

# Settings of theirs for which our model has one value.
_FIXED_SETTINGS = {
    "model_type": "albert",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "is_decoder": False,
}

_PREFIX = "albert."
_POOLER = "albert.pooler."
_SENTENCE_HEAD = "sop_classifier."
_MASKED_LM_HEAD = "predictions."

# They always project the embeddings, we only where the widths differ.
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"

# The same numbers under two names, or constants, where they are there at all.
_TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
_CONSTANTS = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_NAMED_IN_ERRORS = 5


def read(directory: str) -> ModelWeights:
    """The model of a folder: of pretraining, or a part of it.

    A sentence head that is missing where there is a pooler, as in
    `AlbertModel`, begins as zeros; where there is neither, as in
    `AlbertForMaskedLM`, the sentence objective is "none". A masked-LM head
    that is missing begins as in a new run.

    Args:
        directory: The folder, local or gs://.

    Raises:
        UserError: If a file is missing, is not whole, or is of a format that
            can run code, or if the model is not one that ours can be.
    """
    config, objective = _read_config(posixpath.join(directory, CONFIG_FILE))
    tensors = _plain_names(_read_tensors(directory), directory)
    if not _has(tensors, _SENTENCE_HEAD):
        if _has(tensors, _POOLER):
            logging.warning(
                "%s has no sentence head; it gets one of zeros, which takes "
                "both orders for equally likely",
                directory,
            )
            tensors |= _zero_sentence_head(config)
        else:
            objective = "none"
    if not _has(tensors, _MASKED_LM_HEAD):
        logging.warning(
            "%s has no masked-LM head: it begins as that of a new run",
            directory,
        )
        tensors |= _new_masked_lm_head(config)
    if config.embedding_size == config.hidden_size:
        _remove_projection(tensors, directory)
    values = _to_values(config, objective, tensors, directory)
    vocabulary = posixpath.join(directory, TOKENIZER_FILE)
    if not exists(vocabulary):
        vocabulary = ""
    elif is_cased(directory, vocabulary):
        logging.warning(
            "THE VOCABULARY OF %s KEEPS UPPER CASE, which does not go along: "
            "what is made of the model alone takes text in lower case. Records "
            "of a run that begins with it need --nodo_lower_case",
            directory,
        )
    return ModelWeights(
        config,
        objective,
        values,
        vocabulary=vocabulary,
        source=directory,
    )


def write(
    weights: ModelWeights,
    directory: str,
    run_dir: str = "",
    licence: str = "",
    with_sentence_head: bool = True,
) -> None:
    """Writes a folder.

    `AlbertForPreTraining` finds its weights there, no more and no less. To
    `AlbertForMaskedLM`, pooler and sentence head are unexpected, which it
    tells and passes over; left out, it finds its own.

    The caller sees to it that nothing takes a half-written one for whole.

    Args:
        weights: Layers that share only a part, or nothing, become groups; see
            `ModelWeights.regrouped`. Moments of the optimizer have no place.
        directory: A new one.
        run_dir: The run that trained it, which tells the model card its
            data, settings and figures; "" if unknown.
        licence: Of the weights, for the model card, an identifier of the
            Hub's list, e.g. apache-2.0; "" if unknown.
        with_sentence_head: Whether to write pooler and sentence head.

    Raises:
        UserError: If transformers would build another model of it, or the
            vocabulary is of another size.
    """
    weights = weights.regrouped()
    if not with_sentence_head:
        weights = _without_sentence_head(weights)
    config = weights.config
    _check_groups(config, weights.source)
    records = run_dir and load_json_if_any(
        posixpath.join(run_dir, RECORDS_METADATA_FILE)
    )
    files: dict[str, bytes] = {}
    if weights.vocabulary:
        tokenizer = _load_tokenizer(
            weights.vocabulary,
            config,
            records["do_lower_case"] if records else None,
        )
        files = tokenizer_files(
            tokenizer, weights.vocabulary, config.max_position_embeddings
        )
    else:
        logging.warning(
            "the vocabulary is unknown, so %s has no tokenizer", directory
        )
    files[CONFIG_FILE] = _format_config(weights)
    files[CARD_FILE] = make_model_card(weights, run_dir, licence).encode()
    files[WEIGHTS_FILE] = save(_to_tensors(weights), {"format": "pt"})
    for name, content in files.items():
        write_bytes(posixpath.join(directory, name), content)


# --- config.json ------------------------------------------------------------


def _read_config(path: str) -> tuple[ModelConfig, str]:
    """The architecture and the sentence objective."""
    stored = load_json(path)
    if not isinstance(stored, dict):
        raise UserError(f"{path} must hold a JSON object")
    for name, only in _FIXED_SETTINGS.items():
        if stored.get(name, only) != only:
            raise UserError(
                f"{name} in {path} must be {json.dumps(only)}, as this "
                "project's models have it",
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
    _check_groups(config, path)
    return config, objective


def _read_activation(stored: Mapping[str, Any], path: str) -> str:
    theirs = stored.get("hidden_act", "gelu_new")
    if theirs == "gelu":
        raise UserError(
            f"hidden_act in {path} must be gelu_new, GELU by tanh, which this "
            "project's models have",
            received="gelu, which is by the error function there; an "
            "activation differs by up to 0.0005",
            remedy="The published v1 models say gelu and were trained with "
            "tanh: for such a one, or to accept the difference, write gelu_new "
            "in that file.",
        )
    if not isinstance(theirs, str) or theirs not in _OUR_ACTIVATIONS:
        raise UserError(
            f"hidden_act in {path} must be one of "
            f"{', '.join(sorted(_OUR_ACTIVATIONS))}",
            received=json.dumps(theirs),
        )
    return _OUR_ACTIVATIONS[theirs]


def _format_config(weights: ModelWeights) -> bytes:
    has_head = weights.sentence_objective != "none"
    config = weights.config
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
        "sentence_objective": weights.sentence_objective,  # ours
    }
    return (json.dumps(values, indent=2) + "\n").encode()


def _check_groups(config: ModelConfig, source: str) -> None:
    """Refuses layers that transformers would put into other groups.

    It computes the group of layer n as `int(n / (L / G))`, in floating
    point: with 44 layers in 20 groups, layer 33 is in group 14 there.

    Raises:
        UserError: Naming the first such layer.
    """
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    for layer in range(layers):
        here, there = (
            config.group_of_layer(layer),
            int(layer / (layers / groups)),
        )
        if here != there:
            raise UserError(
                f"{source}: transformers must use the group of each layer "
                "that this project uses",
                received=f"for layer {layer} of {layers}, of {groups} groups, "
                f"group {there} there, by a rounding error, and {here} here",
            )


# --- weights ----------------------------------------------------------------


def _read_tensors(directory: str) -> dict[str, np.ndarray]:
    """float32 arrays, named as in the files."""
    index = posixpath.join(directory, INDEX_FILE)
    names = [WEIGHTS_FILE]
    if not exists(posixpath.join(directory, WEIGHTS_FILE)):
        if not exists(index):
            _refuse_other_formats(directory)
        names = _files_of_index(index)
    tensors: dict[str, np.ndarray] = {}
    for name in names:
        tensors |= _read_safetensors(posixpath.join(directory, name))
    return tensors


def _refuse_other_formats(directory: str) -> None:
    found = [
        name
        for name in _REFUSED_FILES
        if exists(posixpath.join(directory, name))
    ]
    raise UserError(
        f"{directory} must hold {WEIGHTS_FILE}",
        received=f"{', '.join(found)}, which this project does not read, since "
        "such files can run code"
        if found
        else "none",
        remedy="Where you trust it, load it with transformers and call "
        "save_pretrained, which writes safetensors."
        if found
        else "",
    )


def _files_of_index(path: str) -> list[str]:
    """The files that an index names, which must be beside it."""
    index = load_json(path)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        raise UserError(f"{path} must have a weight_map")
    names = sorted({str(name) for name in places.values()})
    for name in names:
        plain = name == posixpath.basename(name) and "\\" not in name
        if not plain or not name.endswith(".safetensors"):
            raise UserError(
                f"{path} must name .safetensors files beside it",
                received=repr(name),
            )
    return names


def _read_safetensors(path: str) -> dict[str, np.ndarray]:
    try:
        with open_existing(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise UserError(f"{path} must exist", received="no such file") from None
    try:
        stored = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise UserError(
            f"{path} must be a whole safetensors file",
            received=f"{len(content):,} bytes; {first_line(error)}",
            remedy="Copy it from where it is whole.",
        ) from None
    return {
        name: _to_float32(path, name, tensor)
        for name, tensor in stored
        if not name.endswith(_CONSTANTS)
    }


def _to_float32(path: str, name: str, tensor: Mapping[str, Any]) -> np.ndarray:
    dtype, content = tensor["dtype"], tensor["data"]
    if dtype == "BF16":  # the upper half of a float32
        values = np.frombuffer(content, "<u2").astype(np.uint32) << 16
        values = values.view(np.float32)
    elif dtype in _FLOATS:
        values = np.frombuffer(content, _FLOATS[dtype]).astype(np.float32)
    else:
        raise UserError(
            f"{name} in {path} must hold floating-point numbers", received=dtype
        )
    return values.reshape(tensor["shape"])


def _plain_names(
    tensors: Mapping[str, np.ndarray], directory: str
) -> dict[str, np.ndarray]:
    """The tensors named as in `AlbertForPreTraining`, each once."""
    heads = (_PREFIX, _MASKED_LM_HEAD, _SENTENCE_HEAD)
    if not any(name.startswith(_PREFIX) for name in tensors):
        # Of an `AlbertModel`: embeddings, encoder, pooler.
        tensors = {
            name if name.startswith(heads) else _PREFIX + name: value
            for name, value in tensors.items()
        }
    plain = dict(tensors)
    for name, other in _TIED.items():
        value = plain.pop(name, None)
        if value is not None and not np.array_equal(
            value, plain.setdefault(other, value)
        ):
            raise UserError(
                f"{name} in {directory} must equal {other}, to which it is "
                "tied in this project's models",
                received="other numbers",
            )
    return plain


def _has(tensors: Mapping[str, np.ndarray], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in tensors)


def _zero_sentence_head(config: ModelConfig) -> dict[str, np.ndarray]:
    return {
        weight.hugging_face: np.zeros(weight.shape, np.float32)
        for weight in list_weights(config)
        if weight.hugging_face.startswith(_SENTENCE_HEAD)
    }


def _new_masked_lm_head(config: ModelConfig) -> dict[str, np.ndarray]:
    """As a new run begins: normal within two deviations, 1 and 0."""
    generator = np.random.default_rng(0)
    made = {}
    for weight in list_weights(config, "none"):
        if not weight.hugging_face.startswith(_MASKED_LM_HEAD):
            continue
        values = np.full(weight.shape, weight.path.endswith("gamma"), float)
        if weight.transposed:
            values = generator.normal(size=weight.shape)
            while (far := np.abs(values) > 2).any():
                values[far] = generator.normal(size=far.sum())
            values = (config.initializer_range * values).T
        made[weight.hugging_face] = values.astype(np.float32)
    return made


def _remove_projection(tensors: dict[str, np.ndarray], directory: str) -> None:
    kernel = tensors.pop(f"{_PROJECTION}.weight", None)
    bias = tensors.pop(f"{_PROJECTION}.bias", None)
    if kernel is None and bias is None:
        return
    changes = kernel is None or not np.array_equal(kernel, np.eye(len(kernel)))
    if changes or bias is None or bias.any():
        raise UserError(
            f"{directory}: {_PROJECTION} must change nothing where "
            "embedding_size equals hidden_size, since this project's models, "
            "as google-research/albert's, have none there",
            received="another matrix, or a bias",
        )


def _to_values(
    config: ModelConfig,
    objective: str,
    tensors: Mapping[str, np.ndarray],
    directory: str,
) -> dict[str, np.ndarray]:
    """Our values of their tensors, which must be those of the architecture."""
    weights = {w.hugging_face: w for w in list_weights(config, objective)}
    shapes = {
        name: w.shape[::-1] if w.transposed else w.shape
        for name, w in weights.items()
    }
    faults = [
        f"{name} has shape {list(tensors[name].shape)} there and "
        f"{list(shape)} by {CONFIG_FILE}"
        for name, shape in shapes.items()
        if name in tensors and tensors[name].shape != shape
    ]
    faults += [f"{name} is missing" for name in shapes if name not in tensors]
    faults += [f"{n} is unknown" for n in sorted(tensors) if n not in shapes]
    if faults:
        more = len(faults) - _NAMED_IN_ERRORS
        raise UserError(
            f"{directory} must hold the weights of an ALBERT as its "
            f"{CONFIG_FILE} describes it, for pretraining or without heads",
            received="; ".join(faults[:_NAMED_IN_ERRORS])
            + (f"; and {more} more" if more > 0 else ""),
        )
    return {
        w.path: np.ascontiguousarray(
            tensors[name].T if w.transposed else tensors[name]
        )
        for name, w in weights.items()
    }


def _without_sentence_head(weights: ModelWeights) -> ModelWeights:
    kept = list_weights(weights.config, "none")
    return dataclasses.replace(
        weights,
        sentence_objective="none",
        values={w.path: weights.values[w.path] for w in kept},
        slots={},
    )


def _to_tensors(weights: ModelWeights) -> dict[str, np.ndarray]:
    config = weights.config
    tensors = {
        w.hugging_face: np.ascontiguousarray(
            weights.values[w.path].T if w.transposed else weights.values[w.path]
        )
        for w in list_weights(config, weights.sentence_objective)
    }
    # transformers 4.46 zeroes the bias, after it has read it, where its other
    # name is missing.
    tensors["predictions.decoder.bias"] = tensors["predictions.bias"]
    if config.embedding_size == config.hidden_size:
        size = config.hidden_size
        tensors[f"{_PROJECTION}.weight"] = np.eye(size, dtype=np.float32)
        tensors[f"{_PROJECTION}.bias"] = np.zeros(size, np.float32)
    return tensors


def _load_tokenizer(
    vocabulary: str, config: ModelConfig, do_lower_case: bool | None
) -> Tokenizer:
    tokenizer = Tokenizer(vocabulary, do_lower_case)
    if tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"the vocabulary {vocabulary} must have vocab_size pieces",
            received=f"{tokenizer.vocab_size} pieces and vocab_size "
            f"{config.vocab_size}",
        )
    return tokenizer
