"""The one kind of error that its reader, not a developer, can mend."""


class UserError(ValueError):
    """A setting, a file or a machine is not as it must be.

    Commands print its message alone, with no traceback, and exit with
    status 1.

    Args:
        wanted: What must hold, naming the setting or the file, e.g.
            `"global_batch_size must be divisible by num_replicas"`.
        received: What came instead, e.g. `"4100 and 32"`.
        remedy: What to do, a sentence, e.g. `"Nearest: 4096, 4128."`.
    """

    def __init__(
        self, wanted: str, received: object = None, remedy: str = ""
    ) -> None:
        parts = [wanted.rstrip(".") + "."]
        if received is not None:
            parts.append(f"Received: {received}.")
        if remedy:
            parts.append(remedy)
        super().__init__(" ".join(parts))
