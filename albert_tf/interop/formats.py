"""Finds the format of a model, reads it, and builds the model.

    run            RUN, RUN/best, RUN/checkpoints/step-00001000
    google_albert  google-research/albert: DIR/model.ckpt-best, DIR
    hugging_face   a folder with config.json and model.safetensors

Pickled files are refused, since they can run code when they are read.
"""

import os
import posixpath
from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import FinetuningConfig
from albert_tf.config.settings import find_setting
from albert_tf.errors import UserError
from albert_tf.interop import google_albert, hugging_face
from albert_tf.interop.google_albert import INDEX_SUFFIX
from albert_tf.interop.hugging_face import NULL_THRESHOLD, TASKS
from albert_tf.interop.weight_names import MODEL_NAME, ModelWeights
from albert_tf.io import shipped
from albert_tf.io.files import exists, load_json_if_any
from albert_tf.modeling.models import (
    TOKEN_LABEL_HEAD,
    AlbertForTask,
    AlbertPretrainer,
)
from albert_tf.records.features import TOKENIZER_FILE, check_values_match
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoints import (
    BEST_DIR,
    CHECKPOINTS_DIR,
    STEP_DIRECTORY,
    CheckpointStore,
)
from albert_tf.runs.directory import (
    CONFIG_FILE,
    RECORDS_METADATA_FILE,
    load_config,
    null_threshold,
)

RUN = "run"
GOOGLE_ALBERT = "google_albert"
HUGGING_FACE = "hugging_face"

_REFUSED_SUFFIXES = (".bin", ".ckpt", ".h5", ".msgpack", ".pkl", ".pt", ".pth")
_ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
# Files of folders that transformers or PEFT read, and how to complete them.
_INCOMPLETE = (
    (
        "adapter_*",
        "an adapter of PEFT",
        "model.merge_and_unload().save_pretrained(FOLDER)",
    ),
    (
        "model*-of-*.safetensors",
        "weights in several files",
        'model.save_pretrained(FOLDER, max_shard_size="100GB")',
    ),
)
_STEP_NAME = "step"  # in a run's checkpoint


def find_format(path: str) -> str:
    """The format of a model at a path, one of the module's docstring."""
    path = shipped.find(path.rstrip("/"), shipped.MODEL)
    if exists(path.removesuffix(INDEX_SUFFIX) + INDEX_SUFFIX):
        return GOOGLE_ALBERT
    names, run_dir = {posixpath.basename(path)}, split_run(path)[0]
    _check_is_complete(path)
    if tf.io.gfile.isdir(path):
        if exists(posixpath.join(run_dir, CONFIG_FILE)) and exists(
            posixpath.join(run_dir, CHECKPOINTS_DIR)
        ):
            return RUN
        names = {name.rstrip("/") for name in tf.io.gfile.listdir(path)}
        if hugging_face.WEIGHTS_FILE in names:
            return HUGGING_FACE
        if names & {google_albert.CONFIG_FILE, "checkpoint"} or any(
            name.endswith(INDEX_SUFFIX) for name in names
        ):
            return GOOGLE_ALBERT
    found = f"with {', '.join(sorted(names)[:5]) or 'no files'}"
    if not exists(path):
        names, found = set(), "which does not exist"
    for name in sorted(names):
        if name.endswith(_REFUSED_SUFFIXES):
            raise UserError(
                "weights must be in a format that cannot run code: "
                "TensorFlow's, or safetensors",
                received=f"{path}, with {name}",
                remedy="If you trust a Hugging Face model, load it with "
                "transformers and save it with model.save_pretrained(FOLDER), "
                "which writes safetensors.",
            )
    raise UserError(
        "a model must be a run, a checkpoint of google-research/albert as "
        "prefix or directory, or a Hugging Face folder",
        received=f"{path}, {found}",
        remedy="Unpack the archive, and give its directory."
        if path.endswith(_ARCHIVE_SUFFIXES)
        else "",
    )


def _check_is_complete(path: str) -> None:
    """Refuses folders whose weights are in several files, or a difference."""
    for pattern, what, call in _INCOMPLETE:
        if tf.io.gfile.glob(posixpath.join(path, pattern)):
            raise UserError(
                f"{path} must hold all weights in {hugging_face.WEIGHTS_FILE}",
                received=f"{what}, {pattern}",
                remedy=f"Load it in Python, and save it with {call}.",
            )


def split_run(path: str) -> tuple[str, str]:
    """Splits a path into a run's directory and a part of the run, or "".

    Example:
        >>> split_run("runs/base/checkpoints/step-00001000")
        ('runs/base', 'step-00001000')
    """
    parent, name = posixpath.split(path)
    if STEP_DIRECTORY.fullmatch(name):
        return posixpath.dirname(parent), name
    return (parent, name) if name in (BEST_DIR, CHECKPOINTS_DIR) else (path, "")


def read_weights(path: str) -> ModelWeights:
    """Reads a model of any format in the module's docstring."""
    path = shipped.find(path.rstrip("/"), shipped.MODEL)
    read = {
        RUN: _read_run,
        GOOGLE_ALBERT: google_albert.read,
        HUGGING_FACE: hugging_face.read,
    }[find_format(path)]
    weights = read(path)
    if weights.vocabulary:
        check_values_match(
            weights.vocabulary,
            {"vocab_size": Tokenizer(weights.vocabulary).vocab_size},
            {"vocab_size": weights.config.vocab_size},
            other=f"the architecture in {path}",
            remedy="Copy the vocabulary of the model there.",
        )
    return weights


def _read_run(path: str) -> ModelWeights:
    run_dir, part = split_run(path)
    store = CheckpointStore(run_dir, {}, writes=False)
    match = STEP_DIRECTORY.fullmatch(part)
    wanted = int(match[1]) if match else None  # the newest
    if part == BEST_DIR:
        wanted = store.best_step()
    config = load_config(run_dir)
    has_none = part == BEST_DIR and wanted is None
    found = None if has_none else store.read_all(wanted)
    if found is None:
        raise UserError(
            f"{path} must hold a checkpoint",
            received="none",
            remedy="Train first, with python -m albert_tf.run_pretraining or "
            "python -m albert_tf.run_finetuning.",
        )
    checkpoint, values = found
    values.pop(_STEP_NAME, None)
    left_out = f"{MODEL_NAME}/{TOKEN_LABEL_HEAD}/"
    values = {n: v for n, v in values.items() if not n.startswith(left_out)}
    head, settings = None, {}
    if isinstance(config, FinetuningConfig):
        head = config.head
        names = TASKS[head.kind].settings
        settings = {name: find_setting(config, name) for name in names}
        settings["max_seq_length"] = config.data.text_length
        settings["classifier_dropout"] = config.training.classifier_dropout
        if NULL_THRESHOLD in names:
            # Of the run; infinite if every question has an answer.
            settings[NULL_THRESHOLD] = null_threshold(run_dir, config)
    elif config.data.max_seq_length < config.model.max_position_embeddings:
        settings = {"max_seq_length": config.data.max_seq_length}
    vocabulary = posixpath.join(run_dir, TOKENIZER_FILE)
    records_file = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    records = load_json_if_any(records_file) or {}
    return ModelWeights.of_arrays(
        config.model,
        config.training.sentence_objective,
        values,
        step=checkpoint.step,
        vocabulary=vocabulary if exists(vocabulary) else "",
        source=checkpoint.path,
        head=head,
        settings=settings,
        do_lower_case=records.get("do_lower_case"),
    )


class LoadedModel(NamedTuple):
    """A model with its weights, and its vocabulary."""

    model: AlbertPretrainer | AlbertForTask
    tokenizer: Tokenizer


def load(path: str | os.PathLike[str], dtype: str = "float32") -> LoadedModel:
    """Loads a pretrained or fine-tuned model.

    Args:
        path: A run directory or one of its checkpoints; a checkpoint of
            google-research/albert, as prefix or directory; or a Hugging Face
            folder. Local or gs://. Or the name of a released model,
            albert_mini_en.
        dtype: Precision policy, "float32" or "mixed_bfloat16".

    Raises:
        UserError: If there is no model, if it is damaged, or if it has no
            vocabulary.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError("path must name a model", received=repr(path))
    weights = read_weights(os.fspath(path))
    if not weights.vocabulary:
        raise UserError(
            f"{path} must hold a vocabulary, spiece.model",
            received="none",
            remedy="Copy the SentencePiece model of the training data there.",
        )
    return LoadedModel(
        make_model(weights, dtype),
        Tokenizer(weights.vocabulary, weights.do_lower_case),
    )


def make_model(
    weights: ModelWeights, dtype: str = "float32"
) -> AlbertPretrainer | AlbertForTask:
    """Builds a model and assigns its weights; see `load`."""
    model: AlbertPretrainer | AlbertForTask
    config, head = weights.config, weights.head
    if head is None:
        objective = weights.sentence_objective
        model = AlbertPretrainer(config, objective, dtype=dtype)
    else:
        model = AlbertForTask(config, head, dtype=dtype)
    model.build()
    model.max_seq_length = weights.max_seq_length
    for variable in model.variables:
        variable.assign(weights.values[variable.path])
    return model
