"""Folders of Hugging Face transformers: reads and writes models.

    config.json                    architecture, head and task of a model
    model.safetensors              the weights
    spiece.model                   the vocabulary, for the slow tokenizer
    tokenizer.json                 the same for the fast tokenizer, with a
                                   pipeline of normalisers that approximates
                                   `Tokenizer`
    tokenizer_config.json          settings of both
    special_tokens_map.json        the special pieces

Neither transformers nor PyTorch is needed. Only JSON, safetensors and the
vocabulary are read: files of pickled Python can run code when they are read.
docs/converting.md lists the text for which ids differ.

How a fine-tuned model reads text and answers is an entry of config.json of its
own, since transformers has other settings with the same names: its examples of
question answering call the overlap of two windows `doc_stride`.

    "albert_tf": {"max_seq_length": 384, "doc_stride": 128, ...}
"""

import base64
import functools
import json
import math
import pathlib
import posixpath
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors
from absl import logging
from safetensors.numpy import save

from albert_tf.config import (
    SENTENCE_OBJECTIVES,
    FinetuningConfig,
    ModelConfig,
    TaskHeadConfig,
    task,
)
from albert_tf.config.settings import find_setting
from albert_tf.errors import UserError, first_line
from albert_tf.interop.weight_names import (
    ModelWeights,
    Weight,
    fill_heads,
    has_sentence_head,
    list_weights,
)
from albert_tf.io.files import (
    exists,
    keep_until_exit,
    load_json,
    load_json_if_any,
    open_existing,
    write_bytes,
)
from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_PIECES,
    TOKENIZER_FILE,
    UNK_ID,
)
from albert_tf.records.tokenization import (
    GOOGLE_ALBERT,
    KEEP_ACCENTS_NAME,
    NORMALIZER_NAMES,
    Tokenizer,
    character_class,
    make_symbols,
)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"

_PREFIX = "albert."
_POOLER = "albert.pooler."
_HEADS = ("predictions.", "sop_classifier.")

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


# --- Reading ------------------------------------------------------------------


def read(directory: str) -> ModelWeights:
    """Reads a pretrained model, with or without heads, or a fine-tuned model.

    Without pooler and sentence head, e.g. in `AlbertForMaskedLM`, the sentence
    objective is "none". Missing heads are filled by `weight_names.fill_heads`.
    """
    _check_modules(directory)
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
    if head is not None or not has_sentence_head(arrays):
        objective = "none"
    if head is None:
        fill_heads(arrays, list_weights(config, objective), config, directory)
    vocabulary, cased = _find_vocabulary(directory)
    if cased:
        logging.warning(
            "the vocabulary of %s keeps upper case: records for pretraining "
            "this model further need --nodo_lower_case",
            directory,
        )
    return ModelWeights(
        config,
        objective,
        arrays,
        vocabulary=vocabulary,
        source=directory,
        head=head,
        settings=settings,
        do_lower_case=False if cased else None,
    )


# The poolings of sentence-transformers that are means, as they are written.
_MEANS = (
    {"pooling_mode_mean_tokens": True},
    {"pooling_mode": "mean"},
    {"pooling_mode": ["mean"]},
)


def _check_modules(directory: str) -> None:
    """Refuses a folder of sentence-transformers with other embeddings.

    `albert_tf.embed` computes the mean of the hidden states of all tokens.
    """
    path = functools.partial(posixpath.join, directory)
    for module in load_json_if_any(path("modules.json"), list) or ():
        kind = str(module["type"]).rpartition(".")[2]
        received = kind
        if kind == "Pooling":
            stored = load_json(path(str(module["path"]), CONFIG_FILE))
            modes = {
                name: value
                for name, value in stored.items()
                if name.startswith("pooling_mode") and value
            }
            if modes in _MEANS and stored.get("include_prompt", True):
                continue
            received = ", ".join(f"{k}={v}" for k, v in modes.items())
        if kind != "Transformer":
            raise UserError(
                f"{directory} must embed texts by the mean of their tokens",
                received=received or "a mean without the prompt",
                remedy="Use it by sentence-transformers. To convert the "
                "encoder alone, remove modules.json.",
            )


def read_tensors(directory: str) -> dict[str, np.ndarray]:
    """The weights of a folder: float32 arrays by the names in the file."""
    path, tensors = posixpath.join(directory, WEIGHTS_FILE), {}
    with open_existing(path, "rb") as file:
        content = file.read()
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
            values = values.astype(np.float32)
        tensors[name] = values.reshape(tensor["shape"])
    return tensors


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
        other = arrays.setdefault(path, value)
        # NaN is refused later, by another message.
        if not np.array_equal(other, value, equal_nan=True):
            raise UserError(
                f"{name} in {directory} must equal the other {path}: the two "
                "are tied in albert_tf",
                received="different values",
            )
    return arrays


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


# --- Writing ------------------------------------------------------------------


def write(weights: ModelWeights, directory: str) -> None:
    """Writes a folder for the class `class_name`, without a model card.

    Args:
        weights: The model. The format has no moments.
        directory: A new directory, in which files appear one by one.

    Raises:
        UserError: If transformers has no such model.
    """
    config = weights.config
    if config.parameter_sharing != "all":
        raise UserError(
            "parameter_sharing must be all to write a Hugging Face folder: "
            "transformers has no model whose layers share only some weights",
            received=config.parameter_sharing,
            remedy="Use python -m albert_tf.export_saved_model.",
        )
    files = {CONFIG_FILE: format_config(weights)}
    if weights.vocabulary:
        files |= tokenizer_files(
            Tokenizer(weights.vocabulary, weights.do_lower_case),
            weights.vocabulary,
            weights.max_seq_length,
        )
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
    files[WEIGHTS_FILE] = save(tensors, {"format": "pt"})
    for name, content in files.items():
        write_bytes(posixpath.join(directory, name), content)


# --- config.json --------------------------------------------------------------

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

KEY = "albert_tf"
NULL_THRESHOLD = "null_threshold"


class TaskOfTransformers(NamedTuple):
    """What transformers calls a kind of task, and the settings of `KEY`."""

    class_name: str
    pipeline: str
    settings: tuple[str, ...] = ("max_seq_length",)


_SEQUENCES = TaskOfTransformers(
    "AlbertForSequenceClassification", "text-classification"
)
TASKS = {
    task.CLASSIFICATION: _SEQUENCES,
    task.REGRESSION: _SEQUENCES,
    task.MULTI_LABEL: _SEQUENCES,
    task.TOKEN_CLASSIFICATION: TaskOfTransformers(
        "AlbertForTokenClassification", "token-classification"
    ),
    task.MULTIPLE_CHOICE: TaskOfTransformers(
        "AlbertForMultipleChoice",
        "multiple-choice",
        ("max_seq_length", "max_qa_length"),
    ),
    task.QUESTION_ANSWERING: TaskOfTransformers(
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
_PROBLEM_TYPES = {
    task.CLASSIFICATION: "single_label_classification",
    task.REGRESSION: "regression",
    task.MULTI_LABEL: "multi_label_classification",
}


def class_name(weights: ModelWeights) -> str:
    """The class of transformers that has exactly the weights of a model."""
    if weights.head:
        return TASKS[weights.head.kind].class_name
    has_head = weights.sentence_objective != "none"
    return "AlbertForPreTraining" if has_head else "AlbertForMaskedLM"


def read_config(
    stored: Mapping[str, Any], path: str
) -> tuple[ModelConfig, str]:
    """Reads the architecture and the sentence objective of a config.json.

    Missing settings have the defaults of transformers' `AlbertConfig`; the
    objective, "sop".
    """
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
    return config, stored.get("sentence_objective", "sop")


def format_config(weights: ModelWeights) -> bytes:
    """The content of a config.json."""
    config, head = weights.config, weights.head
    values = {
        "architectures": [class_name(weights)],
        **_FIXED_SETTINGS,
        **{name: getattr(config, name) for name in SHARED_SETTINGS},
        "hidden_act": _THEIR_ACTIVATIONS[config.hidden_act],
        "classifier_dropout_prob": weights.settings.get(
            "classifier_dropout", 0.1
        ),
        "pad_token_id": PAD_ID,
        "bos_token_id": CLS_ID,
        "eos_token_id": SEP_ID,
        # Otherwise transformers trains in the type of the file.
        "dtype": "float32",
        # Not a setting of transformers, which ignores it.
        "sentence_objective": weights.sentence_objective,
    }
    if head and head.is_beam:
        raise UserError(
            "transformers has no ALBERT with the head squad_head=beam",
            remedy="Fine-tune with --squad_head=plain.",
        )
    if head and head.kind in _PROBLEM_TYPES:
        values["problem_type"] = _PROBLEM_TYPES[head.kind]
    if head and head.kind == task.REGRESSION:
        values["id2label"] = {"0": "value"}
    if head and task.KINDS[head.kind].has_classes:
        values |= {
            "id2label": {str(i): name for i, name in enumerate(head.labels)},
            "label2id": {name: i for i, name in enumerate(head.labels)},
        }
    if head and head.kind == task.MULTIPLE_CHOICE:
        values["num_choices"] = head.num_choices
    # JSON has no infinity, the threshold of a model without null answers.
    settings = {
        name: None if value == math.inf else value
        for name, value in weights.settings.items()
        if name != "classifier_dropout"
    }
    if settings:
        values[KEY] = settings
    return (json.dumps(values, indent=2) + "\n").encode()


def read_task(
    stored: Mapping[str, Any], model: ModelConfig, path: str
) -> tuple[TaskHeadConfig | None, dict[str, Any]]:
    """The head of a fine-tuned model, and its settings in `TASKS`.

    None and {} for a pretrained model. `model` limits the length of a sequence.
    """
    names = stored.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    kinds = {found.class_name: kind for kind, found in TASKS.items()}
    kind = kinds.get(str(name))  # JSON of any type
    if kind is None:
        return None, _read_settings(stored, None, model, path)
    labels: tuple[str, ...] = ()
    if kind in _PROBLEM_TYPES or task.KINDS[kind].has_classes:
        labels = _read_labels(stored, path)
    if kind in _PROBLEM_TYPES:
        problem = stored.get("problem_type")
        kind = task.CLASSIFICATION
        if problem == _PROBLEM_TYPES[task.MULTI_LABEL]:
            kind = task.MULTI_LABEL
        elif len(labels) < 2 or problem == _PROBLEM_TYPES[task.REGRESSION]:
            kind, labels = task.REGRESSION, ()
    num_choices = 1
    if kind == task.MULTIPLE_CHOICE:
        # transformers ignores this setting; its documentation has 2 choices.
        num_choices = stored.get("num_choices", 2)
    head = TaskHeadConfig(kind, labels, num_choices=num_choices)
    return head, _read_settings(stored, head, model, path)


def _read_settings(
    stored: Mapping[str, Any],
    head: TaskHeadConfig | None,
    model: ModelConfig,
    path: str,
) -> dict[str, Any]:
    """The settings of `KEY`, and the rate of dropout before the last layer."""
    settings = stored.get(KEY, {})
    where = f"{KEY} in {path}"
    known = TASKS[head.kind].settings if head else ("max_seq_length",)
    if not isinstance(settings, dict) or not set(settings) <= set(known):
        raise UserError(
            f"{where} must be an object with settings among {', '.join(known)}",
            received=settings,
            remedy=f"Correct it, or remove {KEY}: the settings then have their "
            "defaults.",
        )
    if head and "classifier_dropout_prob" in stored:
        dropout = stored["classifier_dropout_prob"]
        settings = {**settings, "classifier_dropout": dropout}
    infinite = {}
    if settings.get(NULL_THRESHOLD, 0) is None:
        infinite = {NULL_THRESHOLD: math.inf}
    finite = {n: value for n, value in settings.items() if n not in infinite}
    positions = model.max_position_embeddings
    length = min(task.FinetuningDataConfig.max_seq_length, positions)
    try:
        config = FinetuningConfig().replace(
            max_position_embeddings=positions,
            **{"max_seq_length": length, **finite},
        )
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return {n: find_setting(config, n) for n in finite} | infinite


def _read_labels(stored: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The names of the logits; transformers does not store its default."""
    labels = stored.get("id2label")
    try:
        if not labels:
            number = stored.get("num_labels") or 2
            labels = {str(i): f"LABEL_{i}" for i in range(number)}
        names = {int(number): str(name) for number, name in labels.items()}
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f"id2label in {path} must be an object of names by number",
            received=json.dumps(labels)[:80],
        ) from None
    return tuple(names[number].strip() for number in sorted(names))


# --- The vocabulary -----------------------------------------------------------

_TEMPLATE = pathlib.Path(__file__).with_name("tokenizer_template.json")
_SETTINGS_FILE = "tokenizer_config.json"
_FAST_FILE = "tokenizer.json"
_SPECIAL_TOKENS_FILE = "special_tokens_map.json"

_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")

# Of `tokenizer_files` and of `AlbertTokenizer`.
_NORMALIZERS = (
    "NFKC",
    "NFKD",
    "StripAccents",
    "Lowercase",
    "Precompiled",
    "Replace",
    "Strip",
)

# Subtracted from the score of a piece that ends in a digit and a comma:
# google-research/albert's tokenizer splits such pieces. Hugging Face's own
# conversion uses the same number.
_PENALTY = 100.0


def tokenizer_files(
    tokenizer: Tokenizer, vocabulary: str, max_length: int
) -> dict[str, bytes]:
    """The contents of the tokenizer's files, by file name.

    tokenizer_template.json has what does not depend on the vocabulary.
    """
    # Imported late, since it takes as long as all other imports here.
    from sentencepiece import sentencepiece_model_pb2

    with open_existing(vocabulary, "rb") as file:
        content = file.read()
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    # A self-contained vocabulary normalises text itself.
    normalized_outside = tokenizer.kind == GOOGLE_ALBERT
    files = json.loads(_TEMPLATE.read_text("utf-8"))
    files[_SETTINGS_FILE] = {
        **files[_SPECIAL_TOKENS_FILE],
        "do_lower_case": normalized_outside and tokenizer.do_lower_case,
        "keep_accents": tokenizer.keep_accents or not normalized_outside,
        "remove_space": not tokenizer.has_symbols,
        "model_max_length": max_length,
        # Not AlbertTokenizer: that of transformers 5 ignores tokenizer.json and
        # begins a word after [MASK], even in "[MASK].".
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Without them, transformers 5 leaves out token_type_ids, and the model
        # reads both texts of a pair as segment 0.
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    fast = files[_FAST_FILE]
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap)
    fast["normalizer"]["normalizers"] = [
        *(_normalizers(tokenizer) if normalized_outside else ()),
        {"type": "Precompiled", "precompiled_charsmap": charsmap.decode()},
        _replace(" {2,}", " "),
        {"type": "Strip", "strip_left": False, "strip_right": True},
    ]
    if tokenizer.has_symbols:
        _keep_spaces(files)
    fast["model"]["byte_fallback"] = model.trainer_spec.byte_fallback
    for piece in model.pieces:
        text, score = piece.piece, piece.score
        if normalized_outside and _is_split(text):
            score -= _PENALTY
        fast["model"]["vocab"].append([text, score])
    return {TOKENIZER_FILE: content} | {
        name: f"{json.dumps(v, indent=2, ensure_ascii=False)}\n".encode()
        for name, v in files.items()
    }


def _keep_spaces(files: dict[str, Any]) -> None:
    """Changes the tokenizer's files for symbols: spaces are ordinary ones."""
    fast = files[_FAST_FILE]
    fast["normalizer"] = None
    for part in ("pre_tokenizer", "decoder"):
        fast[part] |= {"prepend_scheme": "never", "split": False}
    special = files[_SPECIAL_TOKENS_FILE]["mask_token"]
    files[_SETTINGS_FILE]["mask_token"] = special
    for mask in (special, fast["added_tokens"][MASK_ID]):
        mask["lstrip"] = False


def _find_vocabulary(directory: str) -> tuple[str, bool]:
    """Path of the SentencePiece model, or "", and whether text stays cased.

    A self-contained vocabulary stores the case itself, so it is not reported.
    """
    path = posixpath.join(directory, TOKENIZER_FILE)
    settings_file = posixpath.join(directory, _SETTINGS_FILE)
    settings = load_json_if_any(settings_file) or {}
    cased = settings.get("do_lower_case") is False
    if not exists(path):
        fast_file = posixpath.join(directory, _FAST_FILE)
        fast = load_json_if_any(fast_file)
        if fast is None:
            return "", False
        try:
            content, cased = _sentencepiece_of(fast)
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"{fast_file} must describe a vocabulary of ALBERT",
                received=f"{type(error).__name__} {first_line(error)}",
                remedy=f"Copy the SentencePiece model there, as "
                f"{TOKENIZER_FILE}.",
            ) from None
        path = keep_until_exit(TOKENIZER_FILE, content)
    elif settings.get("keep_accents") is True:
        path = _with_accents(path)
    return path, cased and Tokenizer(path).kind == GOOGLE_ALBERT


def _with_accents(path: str) -> str:
    """Path of a vocabulary that says itself that text keeps its accents."""
    from sentencepiece import sentencepiece_model_pb2

    tokenizer = Tokenizer(path)
    if tokenizer.kind != GOOGLE_ALBERT or tokenizer.keep_accents:
        return path
    with open_existing(path, "rb") as file:
        model = sentencepiece_model_pb2.ModelProto.FromString(file.read())
    model.normalizer_spec.name = KEEP_ACCENTS_NAME
    return keep_until_exit(TOKENIZER_FILE, model.SerializeToString())


def _sentencepiece_of(fast: Mapping[str, Any]) -> tuple[bytes, bool]:
    """The SentencePiece model of a tokenizer.json, and whether it is cased.

    transformers 5 saves no other file of a vocabulary. Its pipeline is that of
    `tokenizer_files` or of `AlbertTokenizer`; both decompose text outside of a
    vocabulary that does not normalise it itself.
    """
    from sentencepiece import SentencePieceNormalizer, sentencepiece_model_pb2

    if fast["normalizer"] is None:
        pieces = [piece for piece, _ in fast["model"]["vocab"]]
        symbols = pieces[len(SPECIAL_PIECES) :]
        if any(len(symbol) != 1 for symbol in symbols):
            raise ValueError("no normalizer for pieces of several characters")
        return make_symbols(symbols), False
    steps = fast["normalizer"].get("normalizers", [fast["normalizer"]])
    by_type = {step["type"]: step for step in steps}
    others = [name for name in by_type if name not in _NORMALIZERS]
    if others:
        raise ValueError(f"the normalizer {', '.join(others)}")
    normalized_outside, lower = "NFKC" in by_type, "Lowercase" in by_type
    normalized_outside = normalized_outside or "NFKD" in by_type
    if lower and not normalized_outside:
        raise ValueError("Lowercase without NFKC or NFKD")
    if fast["model"]["type"] != "Unigram":
        raise ValueError(f"the model {fast['model']['type']}, not Unigram")
    model = sentencepiece_model_pb2.ModelProto()
    types = model.SentencePiece.Type
    for i, (text, score) in enumerate(fast["model"]["vocab"]):
        # SentencePiece gives the score 0 to symbols of the user.
        kind = types.NORMAL if score else types.USER_DEFINED
        if i < len(SPECIAL_PIECES):
            kind = types.UNKNOWN if i == UNK_ID else types.CONTROL
        elif _BYTE_PIECE.fullmatch(text):
            # AlbertTokenizer saves false as byte_fallback.
            kind, model.trainer_spec.byte_fallback = types.BYTE, True
        elif normalized_outside and _is_split(text) and score <= -_PENALTY:
            score += _PENALTY
        model.pieces.add(piece=text, score=score, type=kind)
    model.trainer_spec.vocab_size = len(model.pieces)
    model.trainer_spec.unk_id = UNK_ID
    spec = model.normalizer_spec
    rules = by_type.get("Precompiled", {}).get("precompiled_charsmap") or ""
    spec.precompiled_charsmap = base64.b64decode(rules)
    if not normalized_outside:
        rules_only = sentencepiece_model_pb2.ModelProto(normalizer_spec=spec)
        normalizer = SentencePieceNormalizer(
            model_proto=rules_only.SerializeToString()
        )
        spec.name = NORMALIZER_NAMES["A" not in normalizer.normalize("A")]
    elif "NFKD" not in by_type:
        spec.name = KEEP_ACCENTS_NAME
    return model.SerializeToString(), not lower


def _is_split(piece: str) -> bool:
    """Whether google-research/albert's tokenizer splits a piece."""
    return piece[-1:] == "," and piece[-2:-1].isdigit()


def _normalizers(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """`tokenization.normalize`, built from Hugging Face's normalisers."""
    space = character_class(str.isspace)
    lower = [{"type": "Lowercase"}] if tokenizer.do_lower_case else []
    if tokenizer.keep_accents:
        nfkc = {"type": "NFKC"}
        return [_replace(f"{space}+", " "), nfkc, *lower, nfkc]
    # StripAccents would drop all marks, vowels of Hindi and Thai among them.
    # `normalize` drops only those with a combining class. Marks that begin a
    # text become a space: Metaspace begins a word only at offset 0.
    marks = character_class(unicodedata.combining)
    return [
        {"type": "NFKD"},
        _replace(rf"\A{marks}+|{space}+", " "),
        _replace(marks, ""),
        *lower,
        # SentencePiece's rules compose Hangul. The "Precompiled" normaliser
        # should apply the same rules, but does not compose it.
        {"type": "NFKC"},
    ]


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {
        "type": "Replace",
        "pattern": {"Regex": pattern},
        "content": content,
    }
