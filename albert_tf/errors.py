"""The one kind of error that its reader, not a developer, can mend."""

from collections.abc import Sequence

_MAX_NAMED_FAULTS = 5

# How lines begin that TensorFlow puts before what it says: where the program
# that failed was made.
_PLACES = (
    "Graph execution error:",
    "Detected at node",
    "File ",
    "Node: ",
    "<stack traces unavailable>",
)


class UserError(ValueError):
    """A setting, a file or a machine is not as it must be.

    Commands print its message alone, with no traceback, and exit with
    status 1.

    Args:
        wanted: What must hold, naming the setting or the file, e.g.
            `"global_batch_size must be divisible by num_replicas"`.
        received: What came instead, e.g. `"4100 and 32"`.
        remedy: What to do, a sentence, e.g. `"Nearest: 4096, 4128."`.

    Attributes:
        fault: The message but for the remedy.
        remedy: What to do; "" if it is not told.
    """

    def __init__(
        self, wanted: str, received: object = None, remedy: str = ""
    ) -> None:
        parts = [wanted.rstrip(".") + "."]
        if received is not None:
            parts.append(f"Received: {received}.")
        self.fault, self.remedy = " ".join(parts), remedy
        super().__init__(f"{self.fault} {remedy}".rstrip())


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its kind if it says nothing."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if lines and lines[0] == _PLACES[0]:
        nodes = [n for n, line in enumerate(lines) if line.startswith("[[{{")]
        lines = lines[: nodes[0]] if nodes else lines
        places = [
            number
            for number, line in enumerate(lines)
            if not line or line.startswith(_PLACES)
        ]
        lines = lines[places[-1] + 1 :]
    return next(filter(None, lines), type(error).__name__)


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
