"""Finds the format of a model, reads it, and builds the model.

    run            RUN, RUN/best, RUN/checkpoints/step-00001000
    published      google-research/albert: DIR/model.ckpt-best, DIR, a
                   .tar.gz, or the directory of a TF-Hub module
    hugging_face   a folder with config.json and model.safetensors

Pickled files are refused, since they can run code when they are read.
"""

import atexit
import dataclasses
import posixpath
import shutil
import tempfile
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.config import FinetuningConfig
from albert_tf.config.settings import find_setting
from albert_tf.errors import UserError
from albert_tf.interop import google_albert, hugging_face
from albert_tf.interop.archive import SUFFIXES, unpacked
from albert_tf.interop.google_albert import INDEX_SUFFIX
from albert_tf.interop.hugging_face_config import NULL_THRESHOLD, TASK_SETTINGS
from albert_tf.interop.hugging_face_tokenizer import is_cased
from albert_tf.interop.model_weights import MOMENTS, ModelWeights
from albert_tf.interop.weight_names import list_weights
from albert_tf.io.files import exists, load_json_if_any
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.modeling.task_model import AlbertForTask
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoint_files import (
    BEST_DIR,
    CHECKPOINTS_DIR,
    STEP_DIRECTORY,
)
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.directory import (
    CONFIG_FILE,
    RECORDS_METADATA_FILE,
    load_config,
    null_threshold,
)

RUN = "run"
GOOGLE_ALBERT = "published"  # as --to_format names it
HUGGING_FACE = "hugging_face"

_REFUSED_SUFFIXES = (".bin", ".ckpt", ".h5", ".msgpack", ".pkl", ".pt", ".pth")
_SAFETENSORS = (hugging_face.WEIGHTS_FILE, hugging_face.INDEX_FILE)
_STEP_NAME = "step"  # in a run's checkpoint


def find_format(path: str) -> str:
    """Finds the format of a model: RUN, GOOGLE_ALBERT or HUGGING_FACE.

    Args:
        path: One of the forms in the module's docstring, local or gs://.

    Raises:
        UserError: If the path has none of these forms.
    """
    path = path.rstrip("/")
    if path.endswith(SUFFIXES) or exists(
        path.removesuffix(INDEX_SUFFIX) + INDEX_SUFFIX
    ):
        return GOOGLE_ALBERT
    if not tf.io.gfile.exists(path):
        raise UserError(
            "the model must exist",
            received=f"{path}, but there is no such file, directory or "
            "checkpoint",
        )
    if not tf.io.gfile.isdir(path):
        if path.endswith(_REFUSED_SUFFIXES):
            raise _pickled_error(path)
        raise UserError(
            "a model must be a directory, the prefix of a checkpoint, or a "
            f"{SUFFIXES[0]}",
            received=path,
            remedy="For a Hugging Face model, give its folder.",
        )
    names = {name.rstrip("/") for name in tf.io.gfile.listdir(path)}
    run_dir, _ = split_run(path)
    if all(
        exists(posixpath.join(run_dir, name))
        for name in (CONFIG_FILE, CHECKPOINTS_DIR)
    ):
        return RUN
    if names.intersection(_SAFETENSORS):
        return HUGGING_FACE
    if any(
        name in (google_albert.CONFIG_FILE, "checkpoint", "variables")
        or name.endswith(INDEX_SUFFIX)
        for name in names
    ):
        return GOOGLE_ALBERT
    refused = sorted(n for n in names if n.endswith(_REFUSED_SUFFIXES))
    if refused:
        raise _pickled_error(posixpath.join(path, refused[0]))
    raise UserError(
        "a model must be a run, a checkpoint of google-research/albert, or a "
        "Hugging Face folder",
        received=f"{path}, with {', '.join(sorted(names)[:5]) or 'nothing'}",
    )


def split_run(path: str) -> tuple[str, str]:
    """Splits a path into a run's directory and a part of the run.

    Args:
        path: RUN, RUN/checkpoints, RUN/best, or a checkpoint in one of them.

    Returns:
        RUN; and "checkpoints", "best", the checkpoint's name, or "".

    Example:
        >>> split_run("runs/base/best")
        ('runs/base', 'best')
        >>> split_run("runs/base/checkpoints/step-00001000")
        ('runs/base', 'step-00001000')
    """
    parent, name = posixpath.split(path)
    if STEP_DIRECTORY.fullmatch(name):
        return posixpath.dirname(parent), name
    if name in (BEST_DIR, CHECKPOINTS_DIR):
        return parent, name
    return path, ""


def read_weights(path: str, step: int = 0) -> ModelWeights:
    """Reads a model of any format.

    Args:
        path: One of the forms in the module's docstring, local or gs://.
        step: The checkpoint to read from a directory with several; 0 is the
            newest. It must be 0 if the path names one checkpoint.

    Returns:
        The model. The vocabulary of an archive is a temporary file, which is
        removed when the process ends.

    Raises:
        UserError: If there is no model, if it is damaged or does not match
            its architecture, or if its vocabulary has the wrong size.
    """
    path = path.rstrip("/")
    found = find_format(path)
    if step and not _has_steps(path, found):
        raise UserError(
            "checkpoint_step must be omitted if the path names one checkpoint",
            received=f"{step}, and {path}",
        )
    if found == HUGGING_FACE:
        weights = hugging_face.read(path)
    elif found == RUN:
        weights = _read_run(path, step)
    elif path.endswith(SUFFIXES):
        weights = _read_archive(path, step)
    else:
        weights = google_albert.read(path, step)
    if weights.vocabulary:
        num_pieces = Tokenizer(weights.vocabulary).vocab_size
        if num_pieces != weights.config.vocab_size:
            raise UserError(
                f"the vocabulary of {path} must have as many pieces as its "
                "architecture's vocab_size",
                received=f"{num_pieces} pieces in "
                f"{posixpath.basename(weights.vocabulary)}, and "
                f"{weights.config.vocab_size}",
            )
    return weights


def _has_steps(path: str, found: str) -> bool:
    """Whether a path refers to a directory of several checkpoints."""
    if found == RUN:
        return split_run(path)[1] in ("", CHECKPOINTS_DIR)
    return found == GOOGLE_ALBERT and (
        path.endswith(SUFFIXES) or tf.io.gfile.isdir(path)
    )


def _read_archive(path: str, step: int) -> ModelWeights:
    with unpacked(path) as directory:
        weights = google_albert.read(directory, step)
        return dataclasses.replace(
            weights, source=path, vocabulary=_keep(weights.vocabulary)
        )


def _keep(vocabulary: str) -> str:
    """Copies a vocabulary to a folder that is removed at exit."""
    if not vocabulary:
        return ""
    folder = tempfile.mkdtemp(prefix="albert_tf_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return shutil.copy(vocabulary, folder)


def _read_run(path: str, step: int) -> ModelWeights:
    run_dir, part = split_run(path)
    store = CheckpointStore(run_dir, {}, writes=False)
    match = STEP_DIRECTORY.fullmatch(part)
    wanted = step or None
    if match:
        wanted = int(match[1])
    elif part == BEST_DIR:
        wanted = store.best_step()
        if wanted is None:
            raise UserError(f"{path} must hold a checkpoint", received="none")
    config = load_config(run_dir)
    found = store.read_all(wanted)
    if found is None:
        raise UserError(
            f"{run_dir} must hold a checkpoint",
            received="none",
            remedy="Train first, with python -m albert_tf.run_pretraining or "
            "python -m albert_tf.run_finetuning.",
        )
    checkpoint, values = found
    values.pop(_STEP_NAME, None)
    objective = config.training.sentence_objective
    head, settings = None, {}
    if isinstance(config, FinetuningConfig):
        head, settings = config.head, _task_settings(run_dir, config)
    slot_names = {
        f"{weight.path}/{moment}"
        for weight in list_weights(config.model, objective, head)
        for moment in MOMENTS
    }
    vocabulary = posixpath.join(run_dir, TOKENIZER_FILE)
    return ModelWeights(
        config.model,
        objective,
        {n: value for n, value in values.items() if n not in slot_names},
        {n: value for n, value in values.items() if n in slot_names},
        checkpoint.step,
        vocabulary if exists(vocabulary) else "",
        checkpoint.path,
        head,
        settings,
    )


def _task_settings(run_dir: str, config: FinetuningConfig) -> dict[str, Any]:
    """How the model of a run reads text and answers.

    The null threshold is the one that applies to the run; it is infinite if
    every question has an answer.
    """
    settings = {
        name: find_setting(config, name)
        for name in TASK_SETTINGS[config.head.kind]
    }
    if NULL_THRESHOLD in settings:
        settings[NULL_THRESHOLD] = null_threshold(run_dir, config)
    return settings


def _pickled_error(path: str) -> UserError:
    return UserError(
        "weights must be in a format that cannot run code: TensorFlow's, or "
        "safetensors",
        received=path,
        remedy="If you trust a Hugging Face model, load it with transformers "
        "and save it with model.save_pretrained(FOLDER), which writes "
        "safetensors.",
    )


class LoadedModel(NamedTuple):
    """A pretrained or fine-tuned model and its vocabulary.

    Attributes:
        model: The model with its weights; `model.backbone` is without heads.
        tokenizer: Its vocabulary.
    """

    model: AlbertPretrainer | AlbertForTask
    tokenizer: Tokenizer


def load(
    path: str, checkpoint_step: int = 0, dtype: str = "float32"
) -> LoadedModel:
    """Loads a pretrained or fine-tuned model.

    Args:
        path: A run directory or one of its checkpoints; a checkpoint of
            google-research/albert, as prefix, directory or .tar.gz; or a
            Hugging Face folder. Local or gs://.
        checkpoint_step: The checkpoint to read from a directory with several;
            0 is the newest.
        dtype: Precision policy, "float32" or "mixed_bfloat16".

    Raises:
        UserError: If there is no model, if it is damaged, or if it has no
            vocabulary.

    Example:
        >>> import albert_tf
        >>> model, tokenizer = albert_tf.load("runs/base")  # doctest: +SKIP
        >>> model.config.hidden_size, tokenizer.vocab_size  # doctest: +SKIP
        (768, 30000)
    """
    weights = read_weights(path, checkpoint_step)
    if not weights.vocabulary:
        raise UserError(
            f"{path} must hold a vocabulary, spiece.model",
            received="none",
            remedy="Copy the SentencePiece model of the training data there.",
        )
    return LoadedModel(
        make_model(weights, dtype),
        Tokenizer(weights.vocabulary, lower_cases(path)),
    )


def make_model(
    weights: ModelWeights, dtype: str = "float32"
) -> AlbertPretrainer | AlbertForTask:
    """Builds a model and assigns its weights.

    Args:
        weights: Architecture and weights.
        dtype: Precision policy, "float32" or "mixed_bfloat16".
    """
    model: AlbertPretrainer | AlbertForTask
    if weights.head is None:
        model = AlbertPretrainer(
            weights.config, weights.sentence_objective, dtype=dtype
        )
    else:
        model = AlbertForTask(weights.config, weights.head, dtype=dtype)
    model.build()
    for variable in model.variables:
        variable.assign(weights.values[variable.path])
    return model


def lower_cases(path: str) -> bool | None:
    """Whether the model was trained on lower-cased text; None if unknown."""
    path = path.rstrip("/")
    found = find_format(path)
    if found == RUN:
        records_file = posixpath.join(split_run(path)[0], RECORDS_METADATA_FILE)
        return (load_json_if_any(records_file) or {}).get("do_lower_case")
    vocabulary = posixpath.join(path, TOKENIZER_FILE)
    if found == HUGGING_FACE and is_cased(path, vocabulary):
        return False
    return None
