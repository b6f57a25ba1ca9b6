"""The progress line of training, and what the time went into."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging

from albert_tf.runs.log import read_events, read_metrics

# Figures that depend on the clock. All others are, for the same settings, the
# same in each run, however often it was interrupted.
TIMING_METRICS = (
    "loop_seconds",
    "steps_per_second",
    "tokens_per_second",
    "tflops",
    "mfu",
    "input_bound_share",
    "step_seconds_median",
    "step_seconds_p95",
    "goodput",
)


# From which share on the progress line tells that steps wait for their batch.
SLOW_INPUT_SHARE = 0.05


class Progress:
    """Rate and time to go, and what the time went into.

    Args:
        num_steps: Steps of the run.
        tokens_per_step: Positions of a batch, padding included.
        flops_per_step: Operations of the model in one step.
        peak_flops: Of all devices in FLOP/s; None if it is not known.
        run_dir: `--output_dir` of the run, for the time it has taken so far.
        describe: Formats the metrics of the objective.

    Attributes:
        was_steady: Whether no compiling took part in the last figures.
    """

    was_steady = False

    def __init__(
        self,
        num_steps: int,
        tokens_per_step: int,
        flops_per_step: int,
        peak_flops: float | None,
        run_dir: str,
        describe: Callable[[Mapping[str, float]], str],
    ) -> None:
        self._describe = describe
        self._num_steps = num_steps
        self._tokens_per_step = tokens_per_step
        self._flops_per_step = flops_per_step
        self._peak_flops = peak_flops
        self._seconds_per_step: float | None = None
        self._run_dir = run_dir
        starts = [event["time"] for event in read_events(run_dir)]
        self._first_start = min(starts, default=time.time())
        self.start_again()

    def start_again(self) -> None:
        """Counts the time of the lines that the log has kept."""
        self._useful_seconds = sum(
            line.get("loop_seconds", 0.0)
            for line in read_metrics(self._run_dir)
            if line["split"] == "train"
        )
        self._forget()

    def _forget(self) -> None:
        self._step_seconds: list[np.ndarray] = []
        self._input_seconds = 0.0
        self._steady = True

    def add_steps(self, times: np.ndarray, ended: float, steady: bool) -> None:
        """Takes note of steps.

        Args:
            times: Of `train_step.Steps`: float64, `(steps, 2)`.
            ended: When the last one was seen to have ended.
            steady: False if compiling took part of the time, which then
                does not count for the time to go.
        """
        asked = np.append(times[:, 0], ended)
        self._step_seconds.append(np.diff(asked))
        self._input_seconds += float((times[:, 1] - times[:, 0]).sum())
        self._steady &= steady

    def advance(self) -> dict[str, float]:
        """Figures of the steps since the last call; see `TIMING_METRICS`.

        `input_bound_share` is the share of the time that steps waited for
        their batch; `mfu` is there if the peak is known; `goodput` is the
        share of the time since the run's first start, between processes
        too, that went into steps that were kept.
        """
        seconds = np.concatenate(self._step_seconds)
        input_seconds, steady = self._input_seconds, self._steady
        self._forget()
        self.was_steady = steady
        total = max(float(seconds.sum()), 1e-9)
        mean = total / len(seconds)
        previous = self._seconds_per_step
        if previous is None or not steady:
            smoothed = mean
        else:
            smoothed = 0.8 * previous + 0.2 * mean
        if steady:
            self._seconds_per_step = smoothed
        flops = self._flops_per_step / mean
        # Compiling, where it is part of a step's time, is not useful.
        useful = total if steady else float(np.median(seconds)) * len(seconds)
        self._useful_seconds += useful
        elapsed = max(time.time() - self._first_start, total)
        figures = {
            "loop_seconds": useful,
            "steps_per_second": 1 / mean,
            "tokens_per_second": self._tokens_per_step / mean,
            "tflops": flops / 1e12,
            "input_bound_share": input_seconds / total,
            "step_seconds_median": float(np.median(seconds)),
            "step_seconds_p95": float(np.quantile(seconds, 0.95)),
            "goodput": min(self._useful_seconds / elapsed, 1.0),
        }
        if self._peak_flops:
            figures["mfu"] = flops / self._peak_flops
        return figures

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs the progress line of training."""
        remaining = self._num_steps - step
        rate = self._seconds_per_step or 1 / figures["steps_per_second"]
        extra = ""
        if "mfu" in figures:
            extra += f" | MFU {100 * figures['mfu']:.1f}%"
        if figures["input_bound_share"] > SLOW_INPUT_SHARE:
            share = 100 * figures["input_bound_share"]
            extra += f" | waiting for input {share:.0f}%"
        logging.info(
            "step %d/%d (%.1f%%) | loss %.3f (%s) | lr %.2e | dropout %g | "
            "%.2f steps/s | %s tokens/s%s | ETA %s",
            step,
            self._num_steps,
            100 * step / self._num_steps,
            figures["loss"],
            self._describe(figures),
            figures["learning_rate"],
            figures["dropout"],
            figures["steps_per_second"],
            _short(figures["tokens_per_second"]),
            extra,
            _duration(remaining * rate),
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
