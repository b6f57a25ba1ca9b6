"""The progress line of training, the metrics of its speed, and profiles."""

import dataclasses
import posixpath
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import PretrainingConfig
from albert_tf.input.record_sets import TrainingData
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
    "input_bound_share",
    "step_seconds_median",
    "step_seconds_p95",
)

# The progress line reports waiting for input above this fraction of the time.
SLOW_INPUT_FRACTION = 0.05


@dataclasses.dataclass
class StepTimes:
    """Times of the steps since the last line of the log; checkpoints hold them.

    Only `compiling_seconds` has those of steps that compiled a program, tracing
    included.
    """

    seconds: list[float] = dataclasses.field(default_factory=list)  # by step
    compiling_seconds: list[float] = dataclasses.field(default_factory=list)
    input_seconds: float = 0.0  # waiting for batches
    cpu_seconds: float = 0.0  # of this process, in all threads, with the input

    @property
    def total(self) -> float:
        """The time of all steps."""
        return sum(self.seconds) + sum(self.compiling_seconds)

    def add(self, times: np.ndarray, ended: float, cpu_seconds: float) -> None:
        """Adds steps that compiled no program.

        Args:
            times: `train_step.Steps.times`, float64, `(steps, 3)`.
            ended: When the last step ended, in seconds since the epoch.
            cpu_seconds: CPU time of this process in these steps.
        """
        requested, received, previous_finished = times.T
        steps = np.diff(np.append(requested, ended))
        self.seconds += steps.round(6).tolist()
        # A batch that arrives while the previous step is computed costs
        # nothing: the devices wait only once they have nothing else to do.
        idle_since = np.maximum(requested, previous_finished)
        idle_since[:1] = requested[:1]  # no previous step
        waited = np.maximum(received - idle_since, 0.0)
        self.input_seconds += float(waited.sum())
        self.cpu_seconds += cpu_seconds


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
        data: TrainingData,
        peak_flops: float | None,
    ) -> None:
        self._config = config
        self._objective = objective
        self._data = data
        self._flops_per_step = objective.flops_per_step()
        self._peak_flops = peak_flops
        self._seconds_per_step: float | None = None
        self.begin_loop(0)

    def begin_loop(self, step: int) -> None:
        """Finds the records of this loop."""
        self._records = self._data.at(step).records

    def advance(self, times: StepTimes) -> dict[str, float]:
        """Computes the `TIMING_METRICS` of the steps since the last line.

        A step that compiled a program counts as one of median time in
        `loop_seconds`; the rest of its time, or all if no other step is known,
        is `compile_seconds`. `cpu_seconds` and `input_bound_share` leave such
        steps out.
        """
        compiling = times.compiling_seconds
        if times.seconds:
            average = sum(times.seconds) / len(times.seconds)
            previous = self._seconds_per_step or average
            self._seconds_per_step = 0.8 * previous + 0.2 * average
        total = max(times.total, 1e-9)
        mean = total / (len(times.seconds) + len(compiling))
        seconds = np.array(times.seconds or compiling)
        flops, records = self._flops_per_step / mean, self._records
        rows = self._config.data.global_batch_size
        tokens = rows * self._objective.num_sequences
        tokens *= self._config.data.max_seq_length
        steady = sum(times.seconds)
        usual = float(np.median(seconds)) if steady else self._seconds_per_step
        useful = steady + sum(min(s, usual or 0.0) for s in compiling)
        metrics = {
            "loop_seconds": useful,
            "cpu_seconds": times.cpu_seconds,
            "steps_per_second": 1 / mean,
            "tokens_per_second": tokens / mean,
            "tflops": flops / 1e12,
            "input_bound_share": times.input_seconds / max(steady, 1e-9),
            "step_seconds_median": float(np.median(seconds)),
            "step_seconds_p95": float(np.quantile(seconds, 0.95)),
        }
        if compiling:
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
        if metrics["input_bound_share"] > SLOW_INPUT_FRACTION:
            extra += f" | waiting for input {metrics['input_bound_share']:.0%}"
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
