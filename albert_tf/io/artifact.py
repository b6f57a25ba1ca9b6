"""A result on disk that is made from described inputs.

A command that takes hours must not begin, or replace the result of other
inputs, by mistake. It goes through these steps:

1. `check_writable`: the place can be written to.
2. `Artifact.compare`: the stored description says whether the result is of
   these inputs. A result of other inputs is refused, naming what differs.
3. `own`: the directory belongs to one command at a time.
4. The command writes its files, each atomically, and the description that marks
   the result as complete last.

Two commands must not write to one directory: a scheduler may start a job twice,
and a process that was stopped may continue after its successor has started.

On a local file system, a command locks the directory as long as it runs. A
second command is refused. Some network file systems have no locks; there,
nothing stops the second command.

Cloud Storage has no locks that end with their owner. There, a command writes
its id to OUTPUT_DIR/owner.json and becomes the owner. An earlier owner reads
the file before it writes a checkpoint or a line of the log; if the file holds
another id, the earlier owner raises an error. TensorFlow's client has no
conditional writes, so if the successor starts between this check and the write,
the write still takes effect. If both commands have the same settings, the
successor writes the same content, and its next line of the log repairs the log.
"""

import contextlib
import dataclasses
import json
import os
import posixpath
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from albert_tf.errors import UserError, name_faults
from albert_tf.io import files

OWNER_FILE = "owner.json"

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

    Args:
        stored: JSON; may be nested.
        now: JSON; may be nested.

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
    if not files.is_remote(path):
        directory = os.path.dirname(path)
        while not os.path.exists(parent := os.path.dirname(path) or "."):
            path = parent
        if not os.path.isdir(parent):
            files.make_directories(directory)  # raises the error
    partial = path + files.PARTIAL_SUFFIX
    files.write_bytes(partial, b"")
    files.remove(partial)


class Owner:
    """The command that may change an output directory.

    Args:
        directory: The output directory; "" if `identity` is "".
        identity: The id of this command in `owner.json`; "" if a lock on the
            directory makes checks unnecessary.
        open_files: Descriptors of open files that hold the lock. It lasts as
            long as this process or another that inherits them.
    """

    def __init__(
        self,
        directory: str = "",
        identity: str = "",
        open_files: Sequence[int] = (),
    ) -> None:
        self.open_files = open_files
        self._directory = directory
        self._identity = identity

    def check(self) -> None:
        """Checks that no other command has taken over the directory.

        Raises:
            UserError: If one has.
        """
        if not self._identity:
            return
        found = _read_owner(self._directory)
        if found.get("id") != self._identity:
            raise UserError(
                f"the output directory {self._directory} must be used by one "
                "command at a time",
                received=f"process {found.get('pid', 'unknown')} of "
                f"{found.get('host', 'an unknown host')}, which has taken it "
                "over",
                remedy="This command ends. If another command uses the "
                "directory, stop it before you start a command again.",
            )

    def release(self) -> None:
        """Gives up a directory on Cloud Storage, unless it has a new owner."""
        path = posixpath.join(self._directory, OWNER_FILE)
        if _read_owner(self._directory).get("id") == self._identity:
            files.remove(path)


@contextlib.contextmanager
def own(directory: str) -> Iterator[Owner]:
    """Makes this command the owner of an existing directory.

    Raises:
        UserError: If another command has locked it.
    """
    if files.is_remote(directory):
        owner = _take_over(directory)
        yield owner
        owner.release()
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _lock(descriptor, directory)
        yield Owner(open_files=[descriptor])
    finally:
        os.close(descriptor)  # ends the lock


def _lock(descriptor: int, directory: str) -> None:
    import fcntl  # here, since serving imports this module on any system

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"the output directory {directory} must be used by one command at "
            "a time",
            received="another command that uses it",
            remedy="Wait until it has ended, or stop it: `fuser "
            f"{directory}` shows its process.",
        ) from None
    except OSError:
        # Some network file systems have no locks for directories.
        return


def _take_over(directory: str) -> Owner:
    identity = uuid.uuid4().hex
    content = {
        "id": identity,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    path = posixpath.join(directory, OWNER_FILE)
    files.write_object(path, (json.dumps(content) + "\n").encode())
    return Owner(directory, identity)


def _read_owner(directory: str) -> dict[str, object]:
    found = files.load_json_if_any(posixpath.join(directory, OWNER_FILE))
    return found if isinstance(found, dict) else {}
