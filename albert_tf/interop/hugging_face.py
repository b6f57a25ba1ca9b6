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
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
from absl import logging
from safetensors.numpy import save

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError, first_line, name_faults
from albert_tf.interop.hugging_face_config import (
    NUM_CHOICES,
    check_groups,
    format_config,
    parse_settings,
    read_config,
    read_head,
)
from albert_tf.interop.hugging_face_tokenizer import is_cased, tokenizer_files
from albert_tf.interop.model_card import make_model_card
from albert_tf.interop.model_weights import (
    ModelWeights,
    warn_of_zero_sentence_head,
)
from albert_tf.interop.weight_names import Weight, list_weights
from albert_tf.io.files import (
    exists,
    load_json,
    load_json_if_any,
    open_existing,
    write_bytes,
)
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.directory import RECORDS_METADATA_FILE

CONFIG_FILE = "config.json"
CARD_FILE = "README.md"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_PREFIX = "albert."
_POOLER = "albert.pooler."
_SENTENCE_HEAD = "sop_classifier."
_MASKED_LM_HEAD = "predictions."

# transformers always projects the embeddings to the hidden size. This project
# does so only where embedding_size differs from hidden_size.
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"

# Second names of tied weights, which a file may have in addition.
_TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}

# Other formats of weights.
_REFUSED_FILES = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)

# Buffers that old versions of transformers saved next to the weights.
_CONSTANTS = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


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
    config, objective = read_config(config_file)
    stored = load_json(config_file)
    head, settings = read_head(stored), {}
    tensors = _with_plain_names(read_tensors(directory), directory)
    if head is not None:
        objective = "none"
        settings = parse_settings(stored, head.kind, config, config_file)
        if not head.has_pooler:  # old versions of transformers wrote one
            tensors.pop(f"{_POOLER}weight", None)
            tensors.pop(f"{_POOLER}bias", None)
    elif not _has(tensors, _SENTENCE_HEAD):
        if _has(tensors, _POOLER):
            warn_of_zero_sentence_head(directory)
            tensors |= _zero_sentence_head(config)
        else:
            objective = "none"
    if head is None and not _has(tensors, _MASKED_LM_HEAD):
        logging.warning(
            "%s has no masked-LM head: it is initialized as in a new run",
            directory,
        )
        tensors |= _new_masked_lm_head(config)
    if config.embedding_size == config.hidden_size:
        _remove_projection(tensors, directory)
    weights = list_weights(config, objective, head)
    _check_tensors(weights, tensors, directory)
    return ModelWeights(
        config,
        objective,
        values={
            w.path: np.ascontiguousarray(
                tensors[w.hugging_face].T
                if w.transposed
                else tensors[w.hugging_face]
            )
            for w in weights
        },
        vocabulary=_find_vocabulary(directory),
        source=directory,
        head=head,
        settings=settings,
    )


def read_tensors(directory: str) -> dict[str, np.ndarray]:
    """Reads all weights of a folder, local or gs://.

    Returns:
        float32 arrays by the names in the files.

    Raises:
        UserError: If a file is missing or truncated, if a tensor holds
            integers, or if the folder has only formats that can run code.
    """
    index = posixpath.join(directory, INDEX_FILE)
    names = [WEIGHTS_FILE]
    if not exists(posixpath.join(directory, WEIGHTS_FILE)):
        if not exists(index):
            _refuse_other_formats(directory)
        names = _files_of_index(index)
    tensors: dict[str, np.ndarray] = {}
    for name in names:
        tensors |= _read_file(posixpath.join(directory, name))
    return tensors


def _refuse_other_formats(directory: str) -> None:
    found = [
        name
        for name in _REFUSED_FILES
        if exists(posixpath.join(directory, name))
    ]
    if not found:
        raise UserError(
            f"{directory} must hold {WEIGHTS_FILE}", received="none"
        )
    raise UserError(
        f"{directory} must hold {WEIGHTS_FILE}",
        received=f"{', '.join(found)}, which albert_tf does not read, since "
        "such files can run code",
        remedy="If you trust the model, load it with transformers and call "
        "save_pretrained, which writes safetensors.",
    )


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


def _read_file(path: str) -> dict[str, np.ndarray]:
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
        with np.errstate(over="ignore"):  # a large float64 becomes infinite
            values = np.frombuffer(content, _FLOATS[dtype]).astype(np.float32)
    else:
        raise UserError(
            f"{name} in {path} must hold floating-point numbers", received=dtype
        )
    return values.reshape(tensor["shape"])


def knows_num_choices(directory: str) -> bool:
    """Whether a folder stores the number of choices of a question."""
    return NUM_CHOICES in load_json(posixpath.join(directory, CONFIG_FILE))


def _with_plain_names(
    tensors: Mapping[str, np.ndarray], directory: str
) -> dict[str, np.ndarray]:
    """The tensors by their names in `AlbertForPreTraining`, each once."""
    heads = (_PREFIX, _MASKED_LM_HEAD, _SENTENCE_HEAD)
    if not any(name.startswith(_PREFIX) for name in tensors):
        # An `AlbertModel`, whose names have no prefix.
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
                f"{name} in {directory} must equal {other}: the two are tied "
                "in albert_tf",
                received="different values",
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
    """Initial values, as in a new run.

    Kernels are normal, truncated at two standard deviations; LayerNorm's
    gamma is 1; biases are 0.
    """
    generator = np.random.default_rng(0)
    head = {}
    for weight in list_weights(config, "none"):
        if not weight.hugging_face.startswith(_MASKED_LM_HEAD):
            continue
        values = np.full(weight.shape, weight.path.endswith("gamma"), float)
        if weight.transposed:
            values = generator.normal(size=weight.shape)
            while (far := np.abs(values) > 2).any():
                values[far] = generator.normal(size=far.sum())
            values = (config.initializer_range * values).T
        head[weight.hugging_face] = values.astype(np.float32)
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


def _check_tensors(
    weights: Sequence[Weight],
    tensors: Mapping[str, np.ndarray],
    directory: str,
) -> None:
    """Refuses missing and unknown tensors, and wrong shapes."""
    shapes = {
        w.hugging_face: w.shape[::-1] if w.transposed else w.shape
        for w in weights
    }
    faults = [
        f"{name} has shape {list(tensors[name].shape)}, not {list(shape)} as "
        f"in {CONFIG_FILE}"
        for name, shape in shapes.items()
        if name in tensors and tensors[name].shape != shape
    ]
    faults += [f"{name} is missing" for name in shapes if name not in tensors]
    faults += [f"{n} is unknown" for n in sorted(tensors) if n not in shapes]
    if faults:
        raise UserError(
            f"{directory} must hold the weights of the ALBERT that its "
            f"{CONFIG_FILE} describes, for pretraining, fine-tuned or without "
            "heads",
            received=name_faults(faults),
        )


def _find_vocabulary(directory: str) -> str:
    """The vocabulary's file, or "".

    Logs a warning if the vocabulary keeps upper case, because records for
    pretraining the model further must then keep it, too.
    """
    vocabulary = posixpath.join(directory, TOKENIZER_FILE)
    if not exists(vocabulary):
        return ""
    if is_cased(directory, vocabulary):
        logging.warning(
            "the vocabulary of %s keeps upper case: records for pretraining "
            "this model further need --nodo_lower_case",
            directory,
        )
    return vocabulary


# --- writing ----------------------------------------------------------------


def write(
    weights: ModelWeights,
    directory: str,
    run_dir: str = "",
    licence: str = "",
    with_sentence_head: bool = True,
    dtype: str = "float32",
) -> None:
    """Writes a folder.

    The folder holds exactly the weights of `AlbertForPreTraining`.
    `AlbertForMaskedLM` reports pooler and sentence head as unexpected and
    ignores them. Without the two, the folder holds exactly the weights of
    `AlbertForMaskedLM`. A fine-tuned model has the class of its task, e.g.
    `AlbertForSequenceClassification`.

    The caller must ensure that no reader mistakes an incomplete folder for a
    complete one.

    Args:
        weights: The model. Layers that share only some weights become groups;
            see `ModelWeights.regrouped`. The format has no moments.
        directory: A new directory.
        run_dir: The run that trained the model, for the model card's data,
            settings and metrics; "" if unknown.
        licence: Licence of the weights, for the model card: an identifier
            from the Hub's list, e.g. apache-2.0; "" if unknown.
        with_sentence_head: Whether to write pooler and sentence head.
        dtype: Type of the stored weights, "float32" or "float16".

    Raises:
        UserError: If transformers would build a different model, or if the
            vocabulary has the wrong size.
    """
    weights = weights.regrouped()
    if not with_sentence_head and weights.head is None:
        weights = _without_sentence_head(weights)
    config = weights.config
    check_groups(config, weights.source)
    files: dict[str, bytes] = {}
    if weights.vocabulary:
        files = tokenizer_files(
            _load_tokenizer(weights.vocabulary, config, run_dir),
            weights.vocabulary,
            config.max_position_embeddings,
        )
    else:
        logging.warning(
            "the vocabulary is unknown, so %s has no tokenizer", directory
        )
    files[CONFIG_FILE] = format_config(
        config, weights.sentence_objective, weights.head, weights.settings
    )
    files[CARD_FILE] = make_model_card(weights, run_dir, licence).encode()
    tensors = {
        name: values.astype(dtype)
        for name, values in _to_tensors(weights).items()
    }
    files[WEIGHTS_FILE] = save(tensors, {"format": "pt"})
    for name, content in files.items():
        write_bytes(posixpath.join(directory, name), content)


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
    return tensors


def _load_tokenizer(
    vocabulary: str, config: ModelConfig, run_dir: str
) -> Tokenizer:
    """The tokenizer, with the case that the run's records were built with."""
    records = run_dir and load_json_if_any(
        posixpath.join(run_dir, RECORDS_METADATA_FILE)
    )
    tokenizer = Tokenizer(
        vocabulary, records["do_lower_case"] if records else None
    )
    if tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"the vocabulary {vocabulary} must have vocab_size pieces",
            received=f"{tokenizer.vocab_size} pieces and vocab_size "
            f"{config.vocab_size}",
        )
    return tokenizer
