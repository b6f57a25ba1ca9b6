"""Folders of Hugging Face transformers: reads and writes models.

    config.json                    the architecture; hugging_face_config.py
    model.safetensors              all weights; or several files, and
    model.safetensors.index.json   the name of the file that holds each weight
    spiece.model and others        the vocabulary; hugging_face_tokenizer.py
    README.md                      the model card; model_card.py

Neither transformers nor PyTorch is needed. Only JSON, safetensors and the
vocabulary are read: files of pickled Python can run code when they are read.
"""

import dataclasses
import posixpath
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import safetensors
from absl import logging
from safetensors.numpy import save

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError, first_line
from albert_tf.interop.hugging_face_config import (
    format_config,
    read_config,
    read_task,
)
from albert_tf.interop.hugging_face_tokenizer import is_cased, tokenizer_files
from albert_tf.interop.model_card import make_model_card
from albert_tf.interop.weight_names import (
    MODEL_NAME,
    ModelWeights,
    Weight,
    check_groups,
    list_weights,
    weights_in_file,
)
from albert_tf.io.files import (
    exists,
    load_json,
    open_existing,
    write_bytes,
)
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer

CONFIG_FILE = "config.json"
CARD_FILE = "README.md"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_PREFIX = "albert."
_POOLER = "albert.pooler."
_HEADS = ("predictions.", "sop_classifier.")
_MASKED_LM_HEAD = f"{MODEL_NAME}/masked_lm/"

# transformers always projects the embeddings to the hidden size. This project
# does so only where embedding_size differs from hidden_size.
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"

# Second names of tied weights, which a file may have in addition.
_TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}

# Buffers that old versions of transformers saved next to the weights.
_CONSTANTS = ("embeddings.position_ids", "embeddings.token_type_ids")

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


# --- reading ----------------------------------------------------------------


def read(directory: str) -> ModelWeights:
    """Reads a pretrained model, with or without heads, or a fine-tuned model.

    A missing sentence head is filled with zeros if the model has a pooler, e.g.
    in `AlbertModel`. Without both, e.g. in `AlbertForMaskedLM`, the sentence
    objective is "none". A missing masked-LM head gets initial random values.
    A warning is logged for each head that is filled.

    Args:
        directory: The folder, local or gs://.

    Raises:
        UserError: If a file is missing, truncated, or of a format that can
            run code, or if this project does not support the model.
    """
    config_file = posixpath.join(directory, CONFIG_FILE)
    stored = load_json(config_file)
    config, objective = read_config(stored, config_file)
    head, settings = read_task(stored, config, config_file)
    tensors = read_tensors(directory)
    if not any(name.startswith(_PREFIX) for name in tensors):
        # An `AlbertModel`, whose names have no prefix.
        tensors = {
            name if name.startswith(_HEADS) else _PREFIX + name: value
            for name, value in tensors.items()
        }
    if head is not None and not head.has_pooler:
        # Old versions of transformers wrote one.
        tensors.pop(f"{_POOLER}weight", None)
        tensors.pop(f"{_POOLER}bias", None)
    if config.embedding_size == config.hidden_size:
        _remove_projection(tensors, directory)
    arrays = _by_path(tensors, list_weights(config, head=head), directory)
    if head is not None:
        objective = "none"
    else:
        found, _ = weights_in_file(config, arrays)
        objective = objective if found != "none" else "none"
        if not any(path.startswith(_MASKED_LM_HEAD) for path in arrays):
            logging.warning(
                "%s has no masked-LM head: it is initialized as in a new run",
                directory,
            )
            arrays |= _new_masked_lm_head(config)
    vocabulary = posixpath.join(directory, TOKENIZER_FILE)
    is_known = exists(vocabulary)
    cased = is_known and is_cased(directory, vocabulary)
    if cased:
        logging.warning(
            "the vocabulary of %s keeps upper case: records for pretraining "
            "this model further need --nodo_lower_case",
            directory,
        )
    return ModelWeights.of_arrays(
        config,
        objective,
        arrays,
        vocabulary=vocabulary if is_known else "",
        source=directory,
        head=head,
        settings=settings,
        do_lower_case=False if cased else None,
    )


def read_tensors(directory: str) -> dict[str, np.ndarray]:
    """Reads all weights of a folder, local or gs://.

    Returns:
        float32 arrays by the names in the files.

    Raises:
        UserError: If a file is missing or truncated, or if a tensor holds
            integers.
    """
    index = posixpath.join(directory, INDEX_FILE)
    names = [WEIGHTS_FILE]
    if not exists(posixpath.join(directory, WEIGHTS_FILE)) and exists(index):
        names = _files_of_index(index)
    return {
        name: values
        for file in names
        for name, values in _read_file(posixpath.join(directory, file))
    }


def _files_of_index(path: str) -> list[str]:
    """The files that an index names, which must be in its own folder."""
    index = load_json(path)
    file_of_weight = index.get("weight_map") if isinstance(index, dict) else ""
    if not isinstance(file_of_weight, dict) or not file_of_weight:
        raise UserError(f"{path} must have a weight_map")
    names = sorted({str(name) for name in file_of_weight.values()})
    for name in names:
        has_no_path = name == posixpath.basename(name) and "\\" not in name
        if not has_no_path or not name.endswith(".safetensors"):
            raise UserError(
                f"{path} must name .safetensors files in its own folder",
                received=repr(name),
            )
    return names


def _read_file(path: str) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with open_existing(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise UserError(f"{path} must exist", received="no such file") from None
    try:
        stored = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise UserError(
            f"{path} must be a complete safetensors file",
            received=f"{len(content):,} bytes; {first_line(error)}",
            remedy="Copy it again from its source.",
        ) from None
    for name, tensor in stored:
        if name.endswith(_CONSTANTS):
            continue
        if tensor["dtype"] not in _FLOATS:
            raise UserError(
                f"{name} in {path} must hold floating-point numbers",
                received=tensor["dtype"],
            )
        values = np.frombuffer(tensor["data"], _FLOATS[tensor["dtype"]])
        if tensor["dtype"] == "BF16":  # the upper half of a float32
            values = (values.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):  # a large float64 becomes infinite
            yield name, values.astype(np.float32).reshape(tensor["shape"])


def _by_path(
    tensors: Mapping[str, np.ndarray], weights: Sequence[Weight], directory: str
) -> dict[str, np.ndarray]:
    """The arrays of albert_tf; unknown names remain."""
    weight_of = {weight.hugging_face: weight for weight in weights}
    arrays: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        path = name
        if weight := weight_of.get(_TIED.get(name, name)):
            path = weight.path
            value = np.ascontiguousarray(
                value.T if weight.transposed else value
            )
        if not np.array_equal(arrays.setdefault(path, value), value):
            raise UserError(
                f"{name} in {directory} must equal the other {path}: the two "
                "are tied in albert_tf",
                received="different values",
            )
    return arrays


def _new_masked_lm_head(config: ModelConfig) -> dict[str, np.ndarray]:
    """Initial values, as in a new run.

    Kernels are normal, truncated at two standard deviations; LayerNorm's
    gamma is 1; biases are 0.
    """
    generator = np.random.default_rng(0)
    head = {}
    for weight in list_weights(config):
        if not weight.path.startswith(_MASKED_LM_HEAD):
            continue
        values = np.full(weight.shape, weight.path.endswith("gamma"), float)
        if weight.transposed:
            values = generator.normal(size=weight.shape)
            while (far := np.abs(values) > 2).any():
                values[far] = generator.normal(size=far.sum())
            values *= config.initializer_range
        head[weight.path] = values.astype(np.float32)
    return head


def _remove_projection(tensors: dict[str, np.ndarray], directory: str) -> None:
    """Drops the projection of the embeddings, which must be the identity."""
    kernel = tensors.pop(f"{_PROJECTION}.weight", None)
    bias = tensors.pop(f"{_PROJECTION}.bias", None)
    if kernel is None and bias is None:
        return
    changes = kernel is None or not np.array_equal(kernel, np.eye(len(kernel)))
    if changes or bias is None or bias.any():
        raise UserError(
            f"{directory}: {_PROJECTION} must be the identity where "
            "embedding_size equals hidden_size, since albert_tf and "
            "google-research/albert have no such projection there",
            received="another matrix, or a bias",
        )


# --- writing ----------------------------------------------------------------


def write(
    weights: ModelWeights,
    directory: str,
    licence: str = "",
    with_sentence_head: bool = True,
    dtype: str = "float32",
) -> None:
    """Writes a folder for the class `hugging_face_config.class_name`.

    Args:
        weights: The model. Layers that share only some weights become groups;
            see `ModelWeights.regrouped`. The format has no moments.
        directory: A new directory. The caller must ensure that no reader
            mistakes an incomplete folder for a complete one.
        licence: Licence of the weights, for the model card: an identifier
            from the Hub's list, e.g. apache-2.0; "" if unknown.
        with_sentence_head: Whether to write pooler and sentence head of a
            pretrained model.
        dtype: Type of the stored weights, "float32" or "float16".

    Raises:
        UserError: If transformers would build a different model.
    """
    weights = weights.regrouped()
    config = weights.config
    check_groups(config, "transformers", weights.source)
    if not with_sentence_head and weights.head is None:
        kept = list_weights(config, "none")
        weights = dataclasses.replace(
            weights,
            sentence_objective="none",
            values={w.path: weights.values[w.path] for w in kept},
            slots={},
        )
    files: dict[str, bytes] = {}
    if weights.vocabulary:
        files = tokenizer_files(
            Tokenizer(weights.vocabulary, weights.do_lower_case),
            weights.vocabulary,
            config.max_position_embeddings,
        )
    else:
        logging.warning(
            "the vocabulary is unknown, so %s has no tokenizer", directory
        )
    files[CONFIG_FILE] = format_config(weights)
    files[CARD_FILE] = make_model_card(weights, licence).encode()
    tensors = {
        w.hugging_face: np.ascontiguousarray(
            weights.values[w.path].T if w.transposed else weights.values[w.path]
        )
        for w in weights.list_weights()
    }
    if weights.head is None:
        # transformers 4.46 reads the bias and then sets it to zero if this
        # second name is missing.
        tensors["predictions.decoder.bias"] = tensors["predictions.bias"]
    if config.embedding_size == config.hidden_size:
        size = config.hidden_size
        tensors[f"{_PROJECTION}.weight"] = np.eye(size, dtype=np.float32)
        tensors[f"{_PROJECTION}.bias"] = np.zeros(size, np.float32)
    for name, values in tensors.items():
        with np.errstate(over="ignore"):
            tensors[name] = values.astype(dtype)
        if dtype != "float32" and np.isinf(tensors[name]).any():
            raise UserError(
                f"{name} in {weights.source} must be at most "
                f"{np.finfo(dtype).max:g} to be written as {dtype}",
                received=f"{np.abs(values).max():g}",
            )
    files[WEIGHTS_FILE] = save(tensors, {"format": "pt"})
    for name, content in files.items():
        write_bytes(posixpath.join(directory, name), content)
