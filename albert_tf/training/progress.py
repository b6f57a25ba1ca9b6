"""The progress line of training, and the metrics of its speed."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from absl import logging

from albert_tf.runs.log import (
    read_events,
    read_metrics,
    time_before_start_up,
)
from albert_tf.training.listener import Listener
from albert_tf.training.step_times import StepTimes

# Metrics that depend on the clock. All others are equal in all runs of the same
# settings, interrupted or not.
TIMING_METRICS = (
    "loop_seconds",
    "compile_seconds",
    "evaluation_seconds",
    "cpu_seconds",
    "steps_per_second",
    "examples_per_second",
    "tokens_per_second",
    "useful_tokens_per_second",
    "tflops",
    "mfu",
    "useful_mfu",
    "input_bound_share",
    "step_seconds_median",
    "step_seconds_p95",
    "goodput",
)


# The progress line reports waiting for input above this fraction of the time.
SLOW_INPUT_FRACTION = 0.05


class BatchContent(NamedTuple):
    """The mean content of a global batch.

    It comes from the metadata of the records, not from counts of each batch. So
    it adds no operation to the compiled step, and its mean over an epoch is
    exact.

    Attributes:
        tokens: Number of positions, padding included.
        examples: Number of examples.
        useful_share: Fraction of the positions that hold tokens, not padding;
            None if it is not known.
    """

    tokens: int
    examples: float
    useful_share: float | None = None


class Progress(Listener):
    """Measures speed, remaining time, and the fraction of useful time.

    Args:
        num_steps: Number of steps of the run.
        content_at: Returns the content of the batch of a step.
        flops_per_step: Floating-point operations of a step.
        peak_flops: Peak of all devices in FLOP/s; None if it is not known.
        run_dir: `--output_dir` of the run. Its logs hold the time that earlier
            processes have spent.
        describe: Formats the metrics of the objective.
        began: When this process began, in seconds since the epoch; None: now.

    Attributes:
        was_steady: Whether the steps of the last metrics ran without
            compiling.

    Example:
        >>> content = BatchContent(tokens=4096, examples=8)
        >>> progress = Progress(
        ...     1000, lambda step: content, 10**9, None, "build/run", str
        ... )
        >>> metrics = progress.advance(
        ...     StepTimes(seconds=[2.0, 2.0], input_seconds=1.0)
        ... )
        >>> metrics["steps_per_second"], metrics["input_bound_share"]
        (0.5, 0.25)
    """

    was_steady = False

    def __init__(
        self,
        num_steps: int,
        content_at: Callable[[int], BatchContent],
        flops_per_step: int,
        peak_flops: float | None,
        run_dir: str,
        describe: Callable[[Mapping[str, float]], str],
        began: float | None = None,
    ) -> None:
        self._describe = describe
        self._num_steps = num_steps
        self._content_at = content_at
        self._content = content_at(0)
        self._flops_per_step = flops_per_step
        self._peak_flops = peak_flops
        self._seconds_per_step: float | None = None
        self._run_dir = run_dir
        starts = [time_before_start_up(e) for e in read_events(run_dir)]
        self._first_start = min(starts, default=began or time.time())
        self._count_kept()

    def on_loop_begin(self, step: int) -> None:
        """Finds the content of the batches of this loop."""
        self._content = self._content_at(step)

    def on_rollback(self, step: int) -> None:
        """Drops the time of the steps that were rolled back."""
        self._count_kept()

    def _count_kept(self) -> None:
        """Adds up the loop times in the log, which omits lost steps."""
        self._useful_seconds = sum(
            line.get("loop_seconds", 0.0)
            for line in read_metrics(self._run_dir)
            if line["split"] == "train"
        )

    def advance(self, times: StepTimes) -> dict[str, float]:
        """Computes the `TIMING_METRICS` of a line of the log.

        `loop_seconds` is the time of the steps, without the time of compiling;
        the latter is `compile_seconds`, included if a step compiled a program.
        Such a step counts as one of median time; the rest of its time is that
        of compiling. If no other steps are known, all its time is.
        `cpu_seconds` is the CPU time of this process in the steps, and
        `input_bound_share` the fraction of their time that they waited for
        their batch; both leave out steps that compiled a program.
        `mfu` is included if the peak is known. `goodput` is the time of all
        steps that were not rolled back or lost, divided by the time since the
        run's first process began, time between processes included.
        `useful_share`, `useful_tokens_per_second` and `useful_mfu` are
        included if the number of tokens in the records is known.

        Args:
            times: Of the steps since the last line.
        """
        compiling = times.compiling_seconds
        self.was_steady = not compiling
        self._update_speed(times)
        total = max(times.total, 1e-9)
        mean = total / (len(times.seconds) + len(compiling))
        seconds = np.array(times.seconds or compiling)
        flops, content = self._flops_per_step / mean, self._content
        steady = sum(times.seconds)
        # Time spent compiling is not useful.
        usual = float(np.median(seconds)) if steady else self._seconds_per_step
        useful = steady + sum(min(s, usual or 0.0) for s in compiling)
        self._useful_seconds += useful
        elapsed = max(time.time() - self._first_start, total)
        metrics = {
            "loop_seconds": useful,
            "cpu_seconds": times.cpu_seconds,
            "steps_per_second": 1 / mean,
            "examples_per_second": content.examples / mean,
            "tokens_per_second": content.tokens / mean,
            "tflops": flops / 1e12,
            "input_bound_share": times.input_seconds / max(steady, 1e-9),
            "step_seconds_median": float(np.median(seconds)),
            "step_seconds_p95": float(np.quantile(seconds, 0.95)),
            "goodput": min(self._useful_seconds / elapsed, 1.0),
        }
        if compiling:
            metrics["compile_seconds"] = times.total - useful
        if self._peak_flops:
            metrics["mfu"] = flops / self._peak_flops
        share = content.useful_share
        if share is not None:
            metrics["useful_share"] = share
            metrics["useful_tokens_per_second"] = share * content.tokens / mean
            if self._peak_flops:
                metrics["useful_mfu"] = share * metrics["mfu"]
        return metrics

    def _update_speed(self, times: StepTimes) -> None:
        """Updates the step time that the remaining time is estimated from."""
        if times.seconds:
            mean = sum(times.seconds) / len(times.seconds)
            previous = self._seconds_per_step or mean
            self._seconds_per_step = 0.8 * previous + 0.2 * mean

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the progress line of training."""
        remaining = self._num_steps - step
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
            self._num_steps,
            100 * step / self._num_steps,
            metrics["loss"],
            self._describe(metrics),
            metrics["learning_rate"],
            metrics["dropout"],
            metrics["steps_per_second"],
            _short(metrics["tokens_per_second"]),
            extra,
            _duration(remaining * rate) if rate else "unknown",
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
