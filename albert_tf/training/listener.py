"""What the training loop calls around its device loops."""

from collections.abc import Callable, Mapping

# Logs an event at the current step: its kind, and facts for JSON.
LogEvent = Callable[..., None]


class Listener:
    """Called by the training loop; does nothing by default."""

    def on_loop_begin(self, step: int) -> None:
        """Called before the device loop that begins at `step`."""

    def on_loop_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after the device loop, once `step` is evaluated and saved."""

    def on_rollback(self, step: int) -> None:
        """Called when the run returns to the checkpoint of `step`."""

    def on_stop(self, step: int) -> None:
        """Called when the training ends or is interrupted at `step`."""
