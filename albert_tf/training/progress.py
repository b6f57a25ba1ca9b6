"""The progress line of training, the metrics of its speed, and profiles."""

import dataclasses
import posixpath
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.config import PretrainingConfig
from albert_tf.input.record_sets import RecordSet
from albert_tf.runs.log import TENSORBOARD_DIR
from albert_tf.training.objective import Objective

# Metrics that depend on the clock. All others are equal in all runs of the same
# settings, interrupted or not.
TIMING_METRICS = (
    "loop_seconds",
    "compile_seconds",
    "evaluation_seconds",
    "cpu_seconds",
    "steps_per_second",
    "tokens_per_second",
    "useful_tokens_per_second",
    "tflops",
    "mfu",
)


@dataclasses.dataclass
class Times:
    """Times of the steps of this process since the last line of the log.

    The first step of a program, which is traced and compiled, counts in
    `num_compiling` and `compiling_seconds` only.
    """

    num_steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process, in all threads, with the input
    num_compiling: int = 0
    compiling_seconds: float = 0.0

    @property
    def total(self) -> float:
        """The time of all steps."""
        return self.seconds + self.compiling_seconds


class Progress:
    """Measures speed and remaining time.

    The content of batches comes from the metadata of their records, whose means
    over an epoch are exact. So it adds no operation to the compiled step.
    `peak_flops` is that of all devices, in FLOP/s.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        objective: Objective,
        records: RecordSet,
        peak_flops: float | None,
    ) -> None:
        self._config = config
        self._objective = objective
        self._records = records
        self._flops_per_step = objective.flops_per_step()
        self._peak_flops = peak_flops
        self._seconds_per_step: float | None = None

    def advance(self, times: Times) -> dict[str, float]:
        """Computes the `TIMING_METRICS` of the steps since the last line.

        A step that compiled a program counts in `loop_seconds` as long as the
        others take on average; the rest of its time, or all if no other step is
        known, is `compile_seconds`. `cpu_seconds` leaves such steps out.
        """
        usual = self._seconds_per_step
        if times.num_steps:
            usual = times.seconds / times.num_steps
            previous = self._seconds_per_step or usual
            self._seconds_per_step = 0.8 * previous + 0.2 * usual
        total = max(times.total, 1e-9)
        mean = total / (times.num_steps + times.num_compiling)
        flops, records = self._flops_per_step / mean, self._records
        rows = self._config.data.global_batch_size
        tokens = rows * self._objective.num_sequences
        tokens *= self._config.data.max_seq_length
        compiling = (usual or 0.0) * times.num_compiling
        useful = times.seconds + min(compiling, times.compiling_seconds)
        metrics = {
            "loop_seconds": useful,
            "cpu_seconds": times.cpu_seconds,
            "steps_per_second": 1 / mean,
            "tokens_per_second": tokens / mean,
            "tflops": flops / 1e12,
        }
        if times.num_compiling:
            metrics["compile_seconds"] = times.total - useful
        if self._peak_flops:
            metrics["mfu"] = flops / self._peak_flops
        share = records.useful_share
        if share is not None:
            metrics["useful_share"] = share
            metrics["useful_tokens_per_second"] = share * tokens / mean
        return metrics

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the progress line of training."""
        num_steps = self._config.training.num_train_steps
        rate = self._seconds_per_step
        extra = ""
        if "useful_share" in metrics:
            extra += f" ({metrics['useful_share']:.0%} useful)"
        if "mfu" in metrics:
            extra += f" | MFU {metrics['mfu']:.1%}"
        logging.info(
            "step %d/%d (%.1f%%) | loss %.3f (%s) | lr %.2e | dropout %g | "
            "%.2f steps/s | %s tokens/s%s | ETA %s",
            step,
            num_steps,
            100 * step / num_steps,
            metrics["loss"],
            self._objective.describe(metrics),
            metrics["learning_rate"],
            metrics["dropout"],
            metrics["steps_per_second"],
            _short(metrics["tokens_per_second"]),
            extra,
            _duration((num_steps - step) * rate) if rate else "unknown",
        )


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"


class Profiler:
    """Profiles the steps of `--profile_steps` in this process, for TensorBoard.

    Args:
        is_active: Whether this process makes the profile.
    """

    def __init__(self, config: PretrainingConfig, is_active: bool) -> None:
        self._steps = config.training.profiled_steps() if is_active else None
        self._directory = posixpath.join(
            config.training.output_dir, TENSORBOARD_DIR
        )
        self._start: Any = tf.profiler.experimental.start
        self._stop: Any = tf.profiler.experimental.stop
        if config.distribution.runtime == "pjrt":
            import jax

            self._start = jax.profiler.start_trace
            self._stop = jax.profiler.stop_trace
        self._running = False

    def begin_loop(self, step: int) -> bool:
        """Begins the profile if it is due at this step, or ends it as `end`."""
        if self._steps is None:
            return False
        first, last = self._steps
        if step == first and not self._running:
            self._start(self._directory)
            self._running = True
        return step >= last and self.end()

    def end(self) -> bool:
        """Ends the profile, if there is one; returns whether it was written."""
        if not self._running:
            return False
        self._stop()
        self._running = False
        return True
