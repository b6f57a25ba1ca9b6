"""Keeps two commands from writing to one output directory.

A scheduler may start a job twice, and a process that was stopped may continue
after its successor has started.

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
import json
import os
import posixpath
import socket
import uuid
from collections.abc import Iterator, Sequence

from albert_tf.errors import UserError
from albert_tf.io import files

OWNER_FILE = "owner.json"


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
