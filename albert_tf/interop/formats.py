"""Models wherever they come from: which format a path is, and its weights.

    run            RUN, RUN/best, RUN/checkpoints/step-00001000
    published      google-research/albert: DIR/model.ckpt-best, DIR, a
                   .tar.gz; or the directory of a TF-Hub module
    hugging_face   a folder with config.json and model.safetensors

What is pickled is refused, since it can hold a program that runs when it is
read.
"""

import atexit
import dataclasses
import posixpath
import shutil
import tempfile

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.interop import google_albert, hugging_face
from albert_tf.interop.archive import SUFFIXES, unpacked
from albert_tf.interop.model_weights import MOMENTS, ModelWeights
from albert_tf.interop.weight_names import list_weights
from albert_tf.io.files import exists
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import (
    BEST_DIR,
    STEP_DIRECTORY,
    CheckpointStore,
    list_checkpoints,
)
from albert_tf.runs.directory import CHECKPOINTS_DIR, CONFIG_FILE

RUN = "run"
PUBLISHED = "published"
HUGGING_FACE = "hugging_face"

_REFUSED_SUFFIXES = (".bin", ".ckpt", ".h5", ".msgpack", ".pkl", ".pt", ".pth")
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_STEP_NAME = "step"  # of a run's checkpoint, beside weights and moments


def find_format(path: str) -> str:
    """The format of a model: RUN, PUBLISHED or HUGGING_FACE.

    Args:
        path: As the module's docstring has them, local or gs://.

    Raises:
        UserError: If it is none of them.
    """
    path = path.rstrip("/")
    if path.endswith(SUFFIXES) or exists(
        path.removesuffix(google_albert.INDEX_SUFFIX)
        + google_albert.INDEX_SUFFIX
    ):
        return PUBLISHED
    if not tf.io.gfile.exists(path):
        raise UserError(
            "a model must be there",
            received=f"{path}, but no such file, directory or checkpoint",
        )
    if not tf.io.gfile.isdir(path):
        if path.endswith(_REFUSED_SUFFIXES):
            raise _pickled(path)
        raise UserError(
            "a model must be a directory, a prefix of a checkpoint, or a "
            f"{SUFFIXES[0]}",
            received=path,
            remedy="Of a Hugging Face model, give the folder.",
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
        or name.endswith(google_albert.INDEX_SUFFIX)
        for name in names
    ):
        return PUBLISHED
    refused = sorted(n for n in names if n.endswith(_REFUSED_SUFFIXES))
    if refused:
        raise _pickled(posixpath.join(path, refused[0]))
    raise UserError(
        "a model must be a run, a checkpoint of google-research/albert, or a "
        "Hugging Face folder",
        received=f"{path}, with {', '.join(sorted(names)[:5]) or 'nothing'}",
    )


def split_run(path: str) -> tuple[str, str]:
    """A run's directory, and the part of it that a path names.

    Args:
        path: RUN, RUN/checkpoints, RUN/best, or a checkpoint in one of them.

    Returns:
        RUN; and "checkpoints", "best", the checkpoint's name, or "".
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
        path: As the module's docstring has them, local or gs://.
        step: The checkpoint to take where the path is a run's directory, or
            one of google-research/albert with several; 0 is the newest, or
            the one that the path names.

    Returns:
        The model. Its vocabulary outlives the archive that it was in until
        the process ends.

    Raises:
        UserError: If there is no model or it is damaged, if its values are
            not those of its architecture, or its vocabulary is of another
            size; if there is a step, but nothing to choose by it.
    """
    path = path.rstrip("/")
    found = find_format(path)
    if step and not _has_steps(path, found):
        raise UserError(
            "checkpoint_step must be left out where the path means one "
            "checkpoint",
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
                f"the vocabulary of {path} must have the vocab_size of its "
                "architecture",
                received=f"{num_pieces} pieces in "
                f"{posixpath.basename(weights.vocabulary)}, and "
                f"{weights.config.vocab_size}",
            )
    return weights


def _has_steps(path: str, found: str) -> bool:
    """Whether a path leaves open which checkpoint is meant."""
    if found == RUN:
        return split_run(path)[1] in ("", CHECKPOINTS_DIR)
    return found == PUBLISHED and (
        path.endswith(SUFFIXES) or tf.io.gfile.isdir(path)
    )


def _read_archive(path: str, step: int) -> ModelWeights:
    with unpacked(path) as directory:
        weights = google_albert.read(directory, step)
        return dataclasses.replace(
            weights, source=path, vocabulary=_keep(weights.vocabulary)
        )


def _keep(vocabulary: str) -> str:
    """A copy that lasts until the process ends."""
    if not vocabulary:
        return ""
    folder = tempfile.mkdtemp(prefix="albert_tf_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return shutil.copy(vocabulary, folder)


def _read_run(path: str, step: int) -> ModelWeights:
    run_dir, part = split_run(path)
    match = STEP_DIRECTORY.fullmatch(part)
    wanted = step or None
    if match:
        wanted = int(match[1])
    elif part == BEST_DIR:
        best = list_checkpoints(path)
        if not best:
            raise UserError(f"{path} must hold a checkpoint", received="none")
        wanted = best[-1].step
    config = run_directory.load_config(run_dir)
    store = CheckpointStore(run_dir, {}, writes=False)
    found = store.read_all(wanted)
    if found is None:
        raise UserError(
            f"{run_dir} must hold a checkpoint",
            received="none",
            remedy="Train with python -m albert_tf.run_pretraining first.",
        )
    checkpoint, values = found
    values.pop(_STEP_NAME, None)
    objective = config.training.sentence_objective
    slot_names = {
        f"{weight.path}/{moment}"
        for weight in list_weights(config.model, objective)
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
    )


def _pickled(path: str) -> UserError:
    return UserError(
        "weights must be in a format that holds nothing but numbers: those of "
        "TensorFlow, or safetensors",
        received=path,
        remedy="Of a Hugging Face model, save it as safetensors, by those who "
        "trust the file: model.save_pretrained(FOLDER), in transformers.",
    )
