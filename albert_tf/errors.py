"""Errors that end a command with one line instead of a traceback."""

import difflib
import signal
from collections.abc import Iterable, Sequence
from typing import ClassVar

# Exit status of a command that may succeed if it is started again without a
# change; EX_TEMPFAIL of sysexits.h.
RETRY_STATUS = 75

_MAX_NAMED_FAULTS = 5

# Prefixes of the lines in which TensorFlow says where the failed operation was
# created. The message follows these lines.
_LOCATION_LINES = (
    "Graph execution error:",
    "Detected at node",
    "File ",
    "Node: ",
    "<stack traces unavailable>",
)


class UserError(Exception):
    """A setting, a file or a machine does not meet a requirement.

    Commands print its message without a traceback and exit with
    `exit_status`.

    Args:
        wanted: The requirement, with the name of the setting or the file.
        received: The value or state that violates it.
        remedy: What to do, as a sentence.

    Attributes:
        fault: The message without the remedy.
        remedy: What to do; "" if none was given.

    Example:
        >>> raise UserError(
        ...     "global_batch_size must be divisible by num_replicas",
        ...     received="4100 and 32",
        ...     remedy="Nearest: 4096, 4128.",
        ... )
        Traceback (most recent call last):
        albert_tf.errors.UserError: global_batch_size must be divisible by
        num_replicas. Received: 4100 and 32. Nearest: 4096, 4128.
    """

    exit_status: ClassVar[int] = 1

    def __init__(
        self, wanted: str, received: object = None, remedy: str = ""
    ) -> None:
        parts = [wanted.rstrip(".") + "."]
        if received is not None:
            parts.append(f"Received: {str(received).removesuffix('.')}.")
        self.fault, self.remedy = " ".join(parts), remedy
        super().__init__(f"{self.fault} {remedy}".rstrip())


class RetryError(UserError):
    """A temporary fault, e.g. a lost worker: the same command may succeed.

    Example:
        >>> raise RetryError("all workers must answer", received="silence")
        Traceback (most recent call last):
        albert_tf.errors.RetryError: all workers must answer. Received:
        silence.
        >>> RetryError("all workers must answer").exit_status
        75
    """

    exit_status = RETRY_STATUS


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggests known names that are similar, as a sentence; "" if none is.

    Example:
        >>> did_you_mean("sedd", ["seed", "mode"])
        'Did you mean seed?'
    """
    similar = difflib.get_close_matches(name, list(known), 3)
    return f"Did you mean {' or '.join(similar)}?" if similar else ""


def first_line(error: BaseException) -> str:
    """First line of an error's message; the error's type if it has none.

    Skips the lines in which TensorFlow says where an operation was created.
    """
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if lines and lines[0] == _LOCATION_LINES[0]:
        nodes = [n for n, line in enumerate(lines) if line.startswith("[[{{")]
        lines = lines[: nodes[0]] if nodes else lines
        locations = [
            number
            for number, line in enumerate(lines)
            if not line or line.startswith(_LOCATION_LINES)
        ]
        lines = lines[locations[-1] + 1 :]
    return next(filter(None, lines), type(error).__name__)


def describe_end(status: int) -> str:
    """How a process ended, by its `Popen.returncode`.

    Example:
        >>> describe_end(3), describe_end(-6)
        ('status 3', 'signal SIGABRT')
    """
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"status {status}"


def name_faults(faults: Sequence[str]) -> str:
    """Joins faults for an error message; beyond five, only counts them.

    Example:
        >>> name_faults(["bias is missing", "kernel is unknown"])
        'bias is missing; kernel is unknown'
        >>> name_faults(list("abcdefgh"))
        'a; b; c; d; e; and 3 more'
    """
    named = list(faults[:_MAX_NAMED_FAULTS])
    if len(faults) > len(named):
        named.append(f"and {len(faults) - len(named)} more")
    return "; ".join(named)
