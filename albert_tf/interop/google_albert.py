"""Reads checkpoints of google-research/albert, which are TensorFlow 1 files.

    MODEL/albert_config.json                      the architecture
    MODEL/30k-clean.model                         the vocabulary
    MODEL/model.ckpt-STEP.index, ....data-*       variables, by TF1 name
    MODEL/checkpoint                              the name of the newest one

A checkpoint holds the variables of the model with both heads, `global_step`,
and, if it was saved during training, the moments of its optimizer,
`NAME/adam_m` and `NAME/adam_v`, for both LAMB and AdamW. Other variables, such
as the head of a fine-tuned model, are left out.

Models are published as tar archives, which are untrusted input. Links, devices
and files that no model needs are left out, and `tarfile.data_filter` refuses
paths that lead out of the archive. Limits refuse archives that would fill the
disk or the memory.

Reference:
    https://github.com/google-research/albert: modeling.py, optimization.py,
    lamb_optimizer.py, export_checkpoints.py.
"""

import contextlib
import gzip
import os
import platform
import posixpath
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError, first_line
from albert_tf.interop.weight_names import (
    ModelWeights,
    check_arrays,
    fill_heads,
    has_sentence_head,
    list_weights,
)
from albert_tf.io.files import exists, open_existing
from albert_tf.runs.checkpoints import READING_ERRORS

CONFIG_FILE = "albert_config.json"
INDEX_SUFFIX = ".index"
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_VOCABULARY_FILE = "30k-clean.model"
_STEP_NAME = "global_step"
_SUFFIXES = {"": "", "/adam_m": "/m", "/adam_v": "/v"}  # theirs -> ours


def read(path: str, step: int = 0) -> ModelWeights:
    """Reads a checkpoint with its architecture and vocabulary.

    Without pooler and sentence head, the sentence objective is "none". Missing
    heads are filled by `weight_names.fill_heads`.

    Args:
        path: A prefix, `.../model.ckpt-best`, or a directory with one
            checkpoint or with a file `checkpoint` that names the newest.
        step: In a directory, the checkpoint `model.ckpt-STEP`; 0 is the
            newest.
    """
    prefix = _find_prefix(path.removesuffix(INDEX_SUFFIX).rstrip("/"), step)
    directory = posixpath.dirname(prefix) or "."
    config_file = posixpath.join(directory, CONFIG_FILE)
    if not exists(config_file):
        raise UserError(
            f"{CONFIG_FILE} must be in the directory of the checkpoint",
            received=f"none in {directory}",
            remedy="configs/models has the files of google-research/albert's "
            "models.",
        )
    config = ModelConfig.from_json_file(config_file)
    try:
        objective, arrays, steps = _read_variables(prefix, config)
    except READING_ERRORS as error:
        raise UserError(
            f"{prefix} must be an intact checkpoint",
            received=first_line(error),
            remedy="Copy it again from its source.",
        ) from None
    if steps.shape or steps.dtype.kind not in "iu" or steps < 0:
        raise UserError(
            f"{_STEP_NAME} in {prefix} must be a non-negative integer",
            received=f"{steps.dtype} {steps}",
        )
    return ModelWeights.of_arrays(
        config,
        objective,
        arrays,
        step=int(steps),
        vocabulary=_find_vocabulary(directory),
        source=prefix,
    )


def _read_variables(
    prefix: str, config: ModelConfig
) -> tuple[str, dict[str, np.ndarray], np.ndarray]:
    """The sentence objective, the arrays by their names here, and the step."""
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    wanted = {
        weight.google_albert + theirs: (weight.path + ours, weight.shape)
        for weight in list_weights(config)
        for theirs, ours in _SUFFIXES.items()
    }
    stored = {wanted[name][0]: name for name in shapes if name in wanted}
    objective = "sop" if has_sentence_head(stored) else "none"
    weights = list_weights(config, objective)
    if len(stored) < len(_SUFFIXES) * len(weights):  # without all moments
        paths = [w.path for w in weights if w.path in stored]
        stored = {path: stored[path] for path in paths}
    # Heads of other tasks and other slots are left out, but not an encoder
    # that `config` does not describe.
    unknown = {
        name
        for name in shapes.keys() - wanted.keys()
        if name.startswith("bert/") and posixpath.dirname(name) not in wanted
    }
    others = sorted(shapes.keys() - {_STEP_NAME, *stored.values()} - unknown)
    if others:
        logging.info(
            "%s: left out %d variables that are not weights of a pretrained "
            "model or not its complete moments, e.g. %s",
            *(prefix, len(others), others[0]),
        )
    # Before they are read: TensorFlow allocates whatever the index says.
    found = {}
    for path, name in (stored | {name: name for name in unknown}).items():
        dtype = "float32" if dtypes[name].is_floating else dtypes[name].name
        found[path] = tuple(shapes[name]), dtype
    check_arrays({p: wanted[n][1] for p, n in stored.items()}, found, prefix)
    arrays = {
        path: reader.get_tensor(name).astype(np.float32)
        for path, name in stored.items()
    }
    fill_heads(arrays, weights, config, prefix)
    step = reader.get_tensor(_STEP_NAME) if _STEP_NAME in shapes else 0
    return objective, arrays, np.asarray(step)


def _find_prefix(path: str, step: int) -> str:
    """The prefix of the checkpoint that a path refers to; see `read`."""
    if not exists(path + INDEX_SUFFIX):
        if not tf.io.gfile.isdir(path):
            raise UserError(
                "a TensorFlow checkpoint must exist",
                received=f"{path}, but there is no {path}{INDEX_SUFFIX}",
                remedy="Give its prefix, e.g. albert_base/model.ckpt-best, or "
                "its directory.",
            )
        names = sorted(
            name.removesuffix(INDEX_SUFFIX)
            for name in tf.io.gfile.listdir(path)
            if name.endswith(INDEX_SUFFIX) and not name.startswith(".")
        )
        if step:
            wanted = f"model.ckpt-{step}"
        elif len(names) == 1:
            wanted = names[0]
        else:
            # Without its directory: the checkpoint may have been moved.
            state = tf.train.get_checkpoint_state(path)
            newest = state.model_checkpoint_path if state else ""
            wanted = posixpath.basename(newest)
        if wanted not in names:
            raise UserError(
                f"{path} must hold one checkpoint, a file checkpoint that "
                "names the newest, or that of --checkpoint_step",
                received=f"{', '.join(names) or 'none'}, without {wanted!r}",
                remedy="Give the prefix of a checkpoint, e.g. "
                f"{posixpath.join(path, [*names, 'model.ckpt-best'][0])}.",
            )
        return posixpath.join(path, wanted)
    return path


def _find_vocabulary(directory: str) -> str:
    """Path of the SentencePiece model; "" if there is none."""
    names = sorted(
        name
        for name in tf.io.gfile.listdir(directory)
        if name.endswith(".model")
    )
    if _VOCABULARY_FILE in names:
        names = [_VOCABULARY_FILE]
    if len(names) > 1:
        raise UserError(
            f"{directory} must hold one SentencePiece model",
            received=", ".join(names),
            remedy="Rename the vocabulary of the checkpoint to "
            f"{_VOCABULARY_FILE}.",
        )
    return posixpath.join(directory, names[0]) if names else ""


# --- Archives -----------------------------------------------------------------

MAX_BYTES = 64 * 2**30  # albert_xxlarge with its moments has 2.8 GB
MAX_FILES = 10_000
# Files that are read into memory: architecture, vocabulary, state.
MAX_SMALL_BYTES = 64 * 2**20
# Headers that extend a member's own: long names, times, owners.
MAX_HEADER_BYTES = 2**20

_SMALL_SUFFIXES = (CONFIG_FILE, "checkpoint", ".model")
_FILE_TYPES = (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE)


class _Header(tarfile.TarInfo):
    """A member whose extended header, which tarfile reads, is limited."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        # A private method: the public `frombuf` is no longer called by the
        # tarfile of Python 3.13.5.
        if self.type not in _FILE_TYPES:
            _limit("an archive's headers", self.size, MAX_HEADER_BYTES)
        return super()._proc_member(archive)  # type: ignore[misc]


@contextlib.contextmanager
def unpacked(archive: str) -> Iterator[str]:
    """Unpacks checkpoint, architecture and vocabulary of an archive.

    Yields a temporary directory, removed at the end of the `with` block.

    Raises:
        UserError: If the archive is damaged, exceeds a limit, holds paths
            that lead out of it, or does not hold exactly one checkpoint.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UserError(
            "Python must be 3.11.4 or later to unpack an archive safely",
            received=platform.python_version(),
            remedy=f"Unpack {archive} yourself and give its directory.",
        )
    with tempfile.TemporaryDirectory(prefix="albert_tf_") as folder:
        indices: list[str] = []
        try:
            with open_existing(archive, "rb") as file:
                if not archive.endswith(".tar"):
                    # tarfile's own decompression ignores a wrong checksum.
                    file = gzip.GzipFile(fileobj=file)
                # A stream: gs:// is read once, from start to end.
                with tarfile.open(
                    fileobj=file, mode="r|", tarinfo=_Header
                ) as members:
                    for member in _files_of_model(archive, members):
                        members.extract(
                            member, folder, set_attrs=False, filter="data"
                        )
                        if member.name.endswith(INDEX_SUFFIX):
                            indices.append(member.name)
        except PermissionError:
            raise
        except (tarfile.FilterError, ValueError) as error:
            raise UserError(
                f"{archive} must hold only names of files inside it",
                received=error,
                remedy="Nothing outside a temporary directory was written. Get "
                "the archive from a trusted source.",
            ) from None
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(
                f"{archive} must be a complete archive that can be unpacked to "
                f"{folder}",
                received=reason or type(error).__name__,
            ) from None
        directories = {posixpath.dirname(name) for name in indices}
        if len(directories) != 1:
            raise UserError(
                f"{archive} must hold one TensorFlow checkpoint",
                received=", ".join(indices) or f"no file *{INDEX_SUFFIX}",
            )
        yield os.path.join(folder, *directories)


def _files_of_model(
    archive: str, members: tarfile.TarFile
) -> Iterator[tarfile.TarInfo]:
    """The files of a checkpoint, by names without leading slashes and dots."""
    num_bytes = 0
    for count, member in enumerate(members, start=1):
        num_bytes += member.size
        _limit(f"the files in {archive}", num_bytes, MAX_BYTES)
        _limit(f"the files in {archive}", count, MAX_FILES, "files")
        name = posixpath.normpath(member.name).lstrip("/")
        base = posixpath.basename(name)
        is_small = base.endswith(_SMALL_SUFFIXES)
        is_needed = is_small or base.endswith(INDEX_SUFFIX) or ".data-" in base
        # A name with a dot may be macOS's metadata of a file.
        if member.isreg() and is_needed and not base.startswith("."):
            if is_small:
                _limit(f"{base} in {archive}", member.size, MAX_SMALL_BYTES)
            yield member.replace(name=name)


def _limit(what: str, size: int, limit: int, unit: str = "bytes") -> None:
    if size > limit:
        raise UserError(f"{what} must be at most {limit} {unit}", received=size)
