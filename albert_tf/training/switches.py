"""Logs scheduled changes within a run: of dropout and of training data."""

from collections.abc import Mapping

from absl import logging

from albert_tf.config import PretrainingConfig
from albert_tf.input.record_sets import TrainingData
from albert_tf.training import cost, schedules
from albert_tf.training.listener import Listener, LogEvent
from albert_tf.training.progress import Progress


class DropoutSwitch(Listener):
    """Logs changes of dropout, and their effect on step time and memory.

    Args:
        progress: Reports whether a device loop included compiling.

    Example:
        >>> config = PretrainingConfig.from_dict(
        ...     {"training": {"dropout_schedule": "0:0.1,1000:0.0"}}
        ... )
        >>> from albert_tf.training.progress import BatchContent
        >>> progress = Progress(
        ...     125_000,
        ...     lambda step: BatchContent(512, 8),
        ...     10**9,
        ...     None,
        ...     "build/run",
        ...     str,
        ... )
        >>> switch = DropoutSwitch(
        ...     config, progress, lambda kind, **facts: print(kind, facts)
        ... )
        >>> switch.on_loop_end(1000, {"step_seconds_median": 0.5})
        dropout {'before': 0.1, 'after': 0.0}
    """

    def __init__(
        self,
        config: PretrainingConfig,
        progress: Progress,
        log_event: LogEvent,
    ) -> None:
        self._config = config
        self._progress = progress
        self._log_event = log_event
        # Rate, step time in seconds and peak memory in bytes (None: unknown)
        # before a change, until they are compared with those after it.
        self._before: tuple[float, float, int | None] | None = None

    def on_loop_end(self, step: int, metrics: Mapping[str, float]) -> None:
        step_seconds = metrics["step_seconds_median"]
        # Compare after the first loop at the new rate without compiling.
        if self._before and self._progress.was_steady:
            self._compare(metrics["dropout"], step_seconds)
        if step == self._config.training.num_train_steps:
            return
        before = schedules.dropout_rates(step - 1, self._config)
        after = schedules.dropout_rates(step, self._config)
        if after != before:
            self._log_event("dropout", before=before.hidden, after=after.hidden)
            memory_bytes = cost.peak_memory_bytes()
            is_reset = cost.reset_peak_memory()
            self._before = (
                before.hidden,
                step_seconds,
                memory_bytes if is_reset else None,
            )

    def on_rollback(self, step: int) -> None:
        self._before = None

    def _compare(self, rate: float, step_seconds: float) -> None:
        assert self._before
        rate_before, step_seconds_before, memory_before = self._before
        self._before = None
        memory = ""
        if memory_before is not None:
            memory = (
                f", peak memory of {cost.memory_owner()} "
                f"{memory_before / 1e9:.2f} GB -> "
                f"{cost.peak_memory_bytes() / 1e9:.2f} GB"
            )
        logging.info(
            "dropout %g -> %g: step %.3g s -> %.3g s%s",
            rate_before,
            rate,
            step_seconds_before,
            step_seconds,
            memory,
        )


class DataSwitch(Listener):
    """Logs changes of the training data.

    Args:
        data: The phases of the training data.

    Example:
        >>> from albert_tf.input.record_sets import Phase, RecordSet
        >>> wiki = RecordSet(("wiki",), (4,), ("",), None, "", (("wiki",),))
        >>> books = RecordSet(("books",), (2,), ("",), None, "", (("books",),))
        >>> data = TrainingData(
        ...     (Phase(0, "wiki", wiki), Phase(9, "books", books))
        ... )
        >>> switch = DataSwitch(
        ...     PretrainingConfig(),
        ...     data,
        ...     lambda kind, **facts: print(kind, facts),
        ... )
        >>> switch.on_loop_end(9, {})
        data {'name': 'books'}
    """

    def __init__(
        self,
        config: PretrainingConfig,
        data: TrainingData,
        log_event: LogEvent,
    ) -> None:
        self._last_step = config.training.num_train_steps
        self._data = data
        self._log_event = log_event

    def on_loop_end(self, step: int, metrics: Mapping[str, float]) -> None:
        if step < self._last_step and self._data.next_change(step - 1) == step:
            name = self._data.at(step).name
            logging.info("training on %s from step %d on", name, step)
            self._log_event("data", name=name)
