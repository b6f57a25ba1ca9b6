"""Trains the runs of a sweep, each in a process of its own.

The process of a sweep holds a lock of its directory, and so do the processes of
its runs. So if a sweep is killed, it can continue when its last run has ended.
"""

import collections
import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from albert_tf.errors import RETRY_STATUS, UserError
from albert_tf.sweeps.directory import (
    LOCK_FILE,
    is_trained,
    last_step,
    newest_checkpoint,
    read_evaluation,
    store_evaluation,
)
from albert_tf.sweeps.plan import Plan, PlannedRun

PROGRESS_SECONDS = 30.0
_POLL_SECONDS = 0.5
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

# The signal that has interrupted a process, by its exit status: -number if the
# process did not handle the signal. A notice of preemption counts as SIGTERM.
_INTERRUPT_OF_STATUS = {
    status: number
    for number in _INTERRUPTS
    for status in (128 + number, -number)
}

# A run fails when it has ended this number of times with RETRY_STATUS without a
# new checkpoint in between. --max_failures of tpu.launch has the same value.
_MAX_RETRY_STATUSES = 3


@dataclasses.dataclass
class _Process:
    """A process of a run.

    Attributes:
        step: "train", or the name of an evaluation.
        num_requests: How often it was asked to stop.
    """

    run: PlannedRun
    step: str
    process: subprocess.Popen[bytes]
    num_requests: int = 0


class Sweep:
    """The runs of a sweep and their processes.

    Args:
        plan: The runs.
        parallel_runs: Number of runs to train at the same time.
        environment: Environment of the runs; None is that of this process.

    Attributes:
        log_dir: Directory with the output of the processes.
        failed: Exit status by name of the run, for runs that failed; a run that
            starts from a failed run has the status of that run.
        interrupted: The signal that interrupted the sweep, or one of its runs;
            0 without one.
    """

    def __init__(
        self,
        plan: Plan,
        parallel_runs: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._plan = plan
        self._parallel_runs = parallel_runs
        self._environment = environment
        self.log_dir = os.path.join(plan.dir, "logs")
        self.failed: dict[str, int] = {}
        self.interrupted = 0
        self._active: list[_Process] = []
        self._num_requests = 0  # to stop
        # Processes that have ended with RETRY_STATUS, by the name of the run,
        # the step of the run, and the step of the newest checkpoint.
        self._num_retry_statuses: collections.Counter[tuple[str, str, int]] = (
            collections.Counter()
        )

    def run(self) -> None:
        """Trains and evaluates all runs that are not finished.

        Returns when all runs have finished or failed. After Ctrl-C or SIGTERM,
        or if a run was interrupted, e.g. by a notice of preemption, returns
        when the runs have saved their checkpoints and stopped.

        Raises:
            UserError: If another process runs this sweep.
        """
        os.makedirs(self.log_dir, exist_ok=True)
        with self._only_one() as lock, self._handle_signals():
            queue = [run for run in self._plan.runs if self._next_step(run)]
            reused = len(self._plan.runs) - len(queue)
            if reused:
                logging.info("%d runs are already finished", reused)
            next_report = time.monotonic() + PROGRESS_SECONDS
            while self._active or (queue and not self.interrupted):
                if not self.interrupted:
                    self._start_runs(queue, lock)
                time.sleep(_POLL_SECONDS)
                self._forward_requests()
                for active in list(self._active):
                    if active.process.poll() is not None:
                        self._active.remove(active)
                        self._on_end(active, queue)
                if time.monotonic() >= next_report:
                    logging.info("%s", self._describe_progress())
                    next_report = time.monotonic() + PROGRESS_SECONDS

    def command(self, run: PlannedRun, step: str) -> list[str]:
        """Returns the command of a step: "train", or an evaluation's name."""
        flags = [*run.flags, f"--output_dir={run.run_dir}"]
        if step != "train":
            flags += [*self._plan.evaluations[step], "--mode=eval"]
        return [sys.executable, "-m", "albert_tf.run_pretraining", *flags]

    def _next_step(self, run: PlannedRun) -> str:
        """Returns "train", the name of an evaluation, or "" for the end."""
        if not is_trained(run):
            return "train"
        for name in self._plan.evaluations:
            if read_evaluation(self._plan, run, name) is None:
                return name
        return ""

    def _start_runs(self, queue: list[PlannedRun], lock: int) -> None:
        """Starts runs of the queue; fails those that can never start."""
        for run in list(queue):
            start = run.starts_from
            if start and not is_trained(start):
                if start.name in self.failed:
                    logging.error(
                        "%s: not started, because %s has failed",
                        run.name,
                        start.name,
                    )
                    self.failed[run.name] = self.failed[start.name]
                    queue.remove(run)
            elif len(self._active) < self._parallel_runs:
                queue.remove(run)
                self._active.append(self._start(run, lock))

    def _start(self, run: PlannedRun, lock: int) -> _Process:
        step = self._next_step(run)
        logging.info(
            "%s: %s; its output is in %s",
            run.name,
            "training" if step == "train" else f"evaluating on {step}",
            self._log_file(run),
        )
        with (
            open(self._log_file(run), "ab") as log,
            open(self._output_file(run), "wb") as output,
        ):
            # In a session of its own, so that Ctrl-C reaches only the sweep,
            # which asks the run to stop once.
            process = subprocess.Popen(
                self.command(run, step),
                stdout=output,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
                pass_fds=[lock],
            )
        return _Process(run, step, process)

    def _on_end(self, ended: _Process, queue: list[PlannedRun]) -> None:
        """Records the result of a process; queues the next one of its run."""
        run, step, status = ended.run, ended.step, ended.process.returncode
        if self.interrupted:
            return
        if status in _INTERRUPT_OF_STATUS:
            self._interrupt(
                _INTERRUPT_OF_STATUS[status],
                f"{run.name} was interrupted, with status {status}",
            )
            return
        if status == 0 and step != "train":
            with open(self._output_file(run), encoding="utf-8") as file:
                *_, metrics = file
            store_evaluation(self._plan, run, step, json.loads(metrics))
        next_step = self._next_step(run)
        if status == RETRY_STATUS and self._can_start_again(run, step):
            logging.warning(
                "%s is started again after %s",
                run.name,
                self._describe_end(run, status),
            )
            queue.insert(0, run)
        elif status or next_step == step:
            self.failed[run.name] = status
            logging.error(
                "%s failed with %s", run.name, self._describe_end(run, status)
            )
        elif next_step:
            queue.insert(0, run)
        else:
            logging.info("%s: finished", run.name)

    def _can_start_again(self, run: PlannedRun, step: str) -> bool:
        """Whether a step that has just ended with RETRY_STATUS may try again.

        Counts this end.
        """
        key = run.name, step, newest_checkpoint(run)
        self._num_retry_statuses[key] += 1
        return self._num_retry_statuses[key] < _MAX_RETRY_STATUSES

    def _log_file(self, run: PlannedRun) -> str:
        return os.path.join(self.log_dir, f"{run.name}.log")

    def _output_file(self, run: PlannedRun) -> str:
        return os.path.join(self.log_dir, f"{run.name}.out")

    def _describe_end(self, run: PlannedRun, status: int) -> str:
        path = self._log_file(run)
        with open(path, errors="replace") as file:
            tail = "".join(file.readlines()[-5:]).rstrip()
        return f"status {status}; the end of {path}:\n{tail}"

    @contextlib.contextmanager
    def _only_one(self) -> Iterator[int]:
        """Yields the lock, which the processes of the runs inherit."""
        with open(os.path.join(self._plan.dir, LOCK_FILE), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    "only one process may run a sweep at a time",
                    received=f"another process runs {self._plan.dir}, or a run "
                    "of a killed sweep has not ended",
                    remedy="Wait for it, or stop it.",
                ) from None
            yield file.fileno()

    @contextlib.contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Asks the runs to stop when the sweep is asked to."""

        def stop(number: int, frame: Any) -> None:
            del frame
            self._interrupt(number, signal.Signals(number).name)

        before = {number: signal.signal(number, stop) for number in _INTERRUPTS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, reason: str) -> None:
        """Starts no further process, and lets the loop ask all runs to stop."""
        logging.warning(
            "%s: the runs save a checkpoint and stop; the same command "
            "continues them",
            reason,
        )
        self.interrupted = number
        self._num_requests += 1

    def _forward_requests(self) -> None:
        """Sends SIGTERM for each request to stop; a second one ends a run."""
        for active in self._active:
            while active.num_requests < self._num_requests:
                active.process.send_signal(signal.SIGTERM)
                active.num_requests += 1

    def _describe_progress(self) -> str:
        runs = self._plan.runs
        finished = sum(not self._next_step(run) for run in runs)
        parts = [f"{finished}/{len(runs)} runs finished"]
        for run in [active.run for active in self._active]:
            steps = run.config.training.num_train_steps
            parts.append(f"{run.name}: step {last_step(run)}/{steps}")
        if self.failed:
            parts.append(f"failed: {', '.join(self.failed)}")
        return " | ".join(parts)
