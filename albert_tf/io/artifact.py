"""A result on disk that is made from described inputs.

A command that takes hours must not begin, or replace the result of other
inputs, by mistake. It goes through these steps:

1. `check_writable`: the place can be written to.
2. `Artifact.compare`: the stored description says whether the result is of
   these inputs. A result of other inputs is refused, naming what differs.
3. `lock`: a local directory is used by one command at a time.
4. The command writes its files, each atomically, and the description that marks
   the result as complete last.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from albert_tf.errors import UserError, name_faults
from albert_tf.io import files

# What each digest identifies. Messages name this instead of the digest.
_DIGESTS = {
    "inputs_sha256": "the text",
    "model_sha256": "the model file",
    "vocabulary_sha256": "the vocabulary",
}


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A result that is made from described inputs.

    Attributes:
        flag: The setting that names its place, e.g. "output_dir".
        noun: What it is, for messages, e.g. "records".
        identity: JSON by name that decides the content of the result; None for
            a name that its description must not have.
        settings: JSON of the inputs by name, to name differences.
        overwrite: Whether a result of other inputs may be replaced.

    Example:
        >>> artifact = Artifact("output_dir", "records", {"id": 2}, {"seed": 2})
        >>> artifact.compare({"id": 2, "time": 5}, "out/metadata.json")
        True
        >>> artifact.compare(None, "")  # there is no result yet
        False
        >>> artifact.compare({"id": 1, "seed": 1}, "out/metadata.json")
        Traceback (most recent call last):
        albert_tf.errors.UserError: output_dir must not hold records of other \
inputs. Received: out/metadata.json. Different: seed was 1 and is 2. Choose \
another --output_dir, or replace the records with --overwrite.
    """

    flag: str
    noun: str
    identity: Mapping[str, Any]
    settings: Mapping[str, Any]
    overwrite: bool = False

    def compare(
        self,
        stored: Mapping[str, Any] | None,
        found: str,
        otherwise: str = "inputs that are not stored",
        advice: str = "",
    ) -> bool:
        """Compares the stored result with the one to make.

        Args:
            stored: The stored description, with settings at its top or as
                "settings"; None or empty without one.
            found: A file of the stored result; "" if there is no result.
            otherwise: What differs if no stored setting does.
            advice: A further remedy.

        Returns:
            True if the stored result, complete or not, is of these inputs;
            False if it does not exist or may be replaced.

        Raises:
            UserError: If the stored result is of other inputs, and `overwrite`
                is false.
        """
        stored = stored or {}
        if all(stored.get(n) == value for n, value in self.identity.items()):
            return True
        if not found or self.overwrite:
            return False
        changes = "its description, which is missing"
        if stored:
            known = {**stored, **stored.get("settings", {})}
            changes = name_faults(differences(known, self.settings))
        raise UserError(
            f"{self.flag} must not hold {self.noun} of other inputs",
            received=found,
            remedy=f"Different: {changes or otherwise}. {advice}Choose another "
            f"--{self.flag}, or replace the {self.noun} with --overwrite.",
        )


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describes each stored value that differs from the present one.

    Values that are not stored, e.g. of settings that an earlier version did not
    have, are ignored.

    Example:
        >>> differences({"data": {"ngram": 3}}, {"data": {"ngram": 1, "k": 2}})
        ['data.ngram was 3 and is 1']
    """
    old = flatten(stored)
    return [
        _DIGESTS.get(name) or f"{name} was {old[name]!r} and is {value!r}"
        for name, value in flatten(now).items()
        if name in old and old[name] != value
    ]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name, such as `data.input_file`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def check_writable(path: str) -> None:
    """Checks that a file can be written, or raises the error of the system.

    A command that fails must leave no directories: this makes no local ones,
    but writes to the closest one that exists.
    """
    directory, name = os.path.split(path)
    if not files.is_remote(path):
        while not os.path.exists(directory or "."):
            directory = os.path.dirname(directory)
        if not os.path.isdir(directory or "."):
            files.make_directories(os.path.dirname(path))  # raises the error
    partial = os.path.join(directory, name + files.PARTIAL_SUFFIX)
    files.write_bytes(partial, b"")
    files.remove(partial)


@contextlib.contextmanager
def lock(directory: str) -> Iterator[None]:
    """Locks an existing directory while the block runs.

    Cloud Storage, and some network file systems, have no locks. There, this
    does nothing.

    Raises:
        UserError: If another command has locked it.
    """
    if files.is_remote(directory):
        yield
        return
    import fcntl  # here, since serving imports this module on any system

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"the output directory {directory} must be used by one command "
                "at a time",
                received="another command that uses it",
                remedy="Wait until it has ended, or stop it: `fuser "
                f"{directory}` shows its process.",
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)  # ends the lock
