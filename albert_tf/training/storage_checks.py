"""The checks of a dry run on directories: reachable, writable, large enough."""

import contextlib
import os
import posixpath
import shutil
import socket
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError, first_line
from albert_tf.io import faults, files
from albert_tf.runs.checkpoint_files import (
    BEST_DIR,
    CHECKPOINTS_DIR,
    list_checkpoints,
)
from albert_tf.training.checklist import FAIL, OK, Checklist, format_bytes
from albert_tf.training.objective import Objective

# Remedy for an unreachable remote file system.
REMEDY = (
    "Check the bucket's name and its permissions, the network of this machine, "
    "and `gcloud auth application-default login`."
)


class StorageChecks:
    """Checks the directories that a run reads and writes.

    Args:
        objective: Its number of parameters decides the size of checkpoints.
        checks: The table to which results are added.
    """

    def __init__(
        self, config: PretrainingConfig, objective: Objective, checks: Checklist
    ) -> None:
        self._config = config
        self._objective = objective
        self._checks = checks
        self._made: list[str] = []  # directories, the innermost first

    def remote_paths(self) -> list[str]:
        """Directories and files on remote file systems like gs://."""
        data = self._config.data
        patterns = [
            *data.input_file,
            *data.eval_input_file,
            *(p for paths in data.datasets().values() for p in paths),
        ]
        directories = {
            self._config.training.output_dir,
            self._config.initialization.init_checkpoint,
            self._config.initialization.init_vocabulary,
            *(posixpath.dirname(pattern) for pattern in patterns),
        }
        return sorted(filter(files.is_remote, directories))

    def check_file_systems(self) -> None:
        """Checks that the file systems of all remote directories respond.

        The directories need not exist.
        """
        name = "file systems"
        for path in self.remote_paths():
            try:
                tf.io.gfile.exists(path)
            except tf.errors.UnimplementedError as error:
                self._checks.add(
                    FAIL,
                    name,
                    f"{path}: TensorFlow {tf.__version__} reports: "
                    f"{first_line(error)}",
                    "For gs://, use TensorFlow's own release for Linux, which "
                    "supports it, or pip install 'tensorflow[gcs-filesystem]'.",
                )
            except tf.errors.OpError as error:
                explained = faults.explain(error)
                text = f"{path}: {first_line(error)}"
                if explained is not None:
                    text = explained.fault
                remedy = explained.remedy if explained else REMEDY
                self._checks.add(FAIL, name, text, remedy)
            else:
                self._checks.add(OK, name, f"{path} answers")

    def check_output(self) -> None:
        """Writes, reads and removes a file in the run directory."""
        run_dir = self._config.training.output_dir
        self._made = [d for d in parents(run_dir) if not files.exists(d)]
        files.make_directories(run_dir)
        # Other workers may do the same at the same time.
        name = f"preflight-{socket.gethostname()}-{os.getpid()}"
        probe = posixpath.join(run_dir, name)
        content = os.urandom(1 << 16)
        try:
            # This writes a partial file and renames it, as a run does.
            files.write_bytes(probe, content)
            with files.open_existing(probe, "rb") as file:
                read = file.read()
        finally:
            for path in (probe, probe + files.PARTIAL_SUFFIX):
                files.remove(path)
        if read != content:
            raise UserError(
                f"{run_dir} must return the bytes that were written",
                received=f"{len(read)} different bytes",
            )
        self._checks.add(OK, "output", f"{run_dir} can be written to")

    def check_room(self) -> None:
        """Checks that the disk has space for all checkpoints that are kept."""
        training = self._config.training
        run_dir = training.output_dir
        if files.is_remote(run_dir):
            self._checks.add(OK, "room", "buckets have no limit")
            return
        # float32: the weights, and the two moments of each.
        size = 3 * 4 * self._objective.num_parameters()
        every = training.keep_every_n_steps
        newest = training.num_train_steps // training.save_checkpoints_steps
        number = min(training.keep_checkpoint_max, newest + 2)
        if training.save_checkpoints_minutes:  # may save more often
            number = training.keep_checkpoint_max
        number += training.num_train_steps // every if every else 0
        number += 1  # the one being written
        number += bool(self._config.data.eval_input_file)  # the best
        present = sum(
            len(list_checkpoints(posixpath.join(run_dir, name)))
            for name in (CHECKPOINTS_DIR, BEST_DIR)
        )
        needed = max(number - present, 1) * size
        free = shutil.disk_usage(run_dir).free
        fits = needed < free
        remedy = "Free disk space, or lower --keep_checkpoint_max"
        if every:
            remedy += ", or raise --keep_every_n_steps"
        self._checks.add(
            OK if fits else FAIL,
            "room",
            f"{format_bytes(free)} free; {number} checkpoints of "
            f"{format_bytes(size)}, {present} of them present, need "
            f"{format_bytes(needed)}",
            "" if fits else f"{remedy}.",
        )

    def remove_directories(self) -> None:
        """Removes directories that were made here and are empty."""
        for directory in self._made:
            # Another worker may remove it at the same time.
            with contextlib.suppress(OSError, tf.errors.OpError):
                if not tf.io.gfile.listdir(directory):
                    files.remove_directory(directory)


def parents(path: str) -> Iterator[str]:
    """A directory and its parents, innermost first, without the bucket."""
    top = ""
    if files.is_remote(path):
        top = "/".join(path.split("/")[:3])
    while path not in (top, posixpath.dirname(path)):
        yield path
        path = posixpath.dirname(path)
