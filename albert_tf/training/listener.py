"""The interface of objects that the training loop notifies."""

from collections.abc import Callable, Mapping

# Logs an event at the current step: its kind, and facts for JSON.
LogEvent = Callable[..., None]


class Listener:
    """Methods that the training loop calls; by default they do nothing.

    Example:
        >>> class PrintLoss(Listener):
        ...     def on_loop_end(self, step, metrics):
        ...         print(step, metrics["loss"])
        >>> PrintLoss().on_loop_end(10, {"loss": 8.5})
        10 8.5
    """

    def on_loop_begin(self, step: int) -> None:
        """Called before the device loop that begins at `step`."""

    def on_loop_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after the device loop that ended at `step`.

        An evaluation or checkpoint that is due at `step` comes before the call.
        """

    def on_rollback(self, step: int) -> None:
        """Called when the run returns to the checkpoint of `step`."""

    def on_stop(self, step: int) -> None:
        """Called when the training ends or is interrupted at `step`."""
