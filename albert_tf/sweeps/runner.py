"""Trains the runs of a sweep, each in a process of its own.

    SWEEP/sweep.json                     the settings of each run
    SWEEP/runs/NAME/                     run directories
    SWEEP/evaluations/NAME/EVALUATION.json    metrics of further evaluations
    SWEEP/logs/NAME.log                  standard error of a run's processes
    SWEEP/logs/NAME.out                  standard output of its last process
    SWEEP/locks/                         locks that the processes hold

Logs and locks of a sweep on gs:// are in a directory of this machine.

A process that outlives a killed sweep keeps the lock of its run. The next
sweep waits for it instead of training the run a second time.
"""

import collections
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from albert_tf.errors import RETRY_STATUS, UserError
from albert_tf.io.files import is_remote
from albert_tf.sweeps.plan import Plan, PlannedRun
from albert_tf.sweeps.run_state import (
    is_trained,
    last_step,
    newest_checkpoint,
    read_evaluation,
    store_evaluation,
)
from albert_tf.training import cost

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
# new checkpoint in between. --max_failures of tpu/launch.sh has the same value.
_MAX_RETRY_STATUSES = 3


class Sweep:
    """The runs of a sweep and their processes.

    Args:
        sweep_dir: `--output_dir` of the sweep.
        plan: Its runs.
        parallel_runs: Number of runs to train at the same time.
        environment: Environment of the runs; None is that of this process.

    Attributes:
        log_dir: Local directory with the output of the processes.
        failed: Exit status by name of the run, for runs that failed; a run that
            starts from a failed run has the status of that run.
        interrupted: The signal that interrupted the sweep, or one of its runs;
            0 without one.
    """

    def __init__(
        self,
        sweep_dir: str,
        plan: Plan,
        parallel_runs: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._dir = sweep_dir.rstrip("/")
        self._plan = plan
        self._parallel_runs = parallel_runs
        self._environment = environment
        self._local_dir = self._dir
        if is_remote(self._dir):
            key = hashlib.sha256(self._dir.encode()).hexdigest()[:12]
            self._local_dir = os.path.join(
                tempfile.gettempdir(), f"albert_tf_sweep_{key}"
            )
        self.log_dir = os.path.join(self._local_dir, "logs")
        self._lock_dir = os.path.join(self._local_dir, "locks")
        for directory in (self.log_dir, self._lock_dir):
            os.makedirs(directory, exist_ok=True)
        self.failed: dict[str, int] = {}
        self.interrupted = 0
        # By name of the run: "train" or an evaluation, and its process.
        self._processes: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self._num_requests = 0  # to stop
        self._num_forwarded: dict[str, int] = {}
        self._waiting_for: set[str] = set()
        # Processes that have ended with RETRY_STATUS, by the name of the run,
        # the step of the run, and the step of the newest checkpoint.
        self._num_retry_statuses: collections.Counter[tuple[str, str, int]] = (
            collections.Counter()
        )
        # FLOPs of a training step, so that progress can be summed over models
        # of different sizes.
        self._costs = {
            run.name: cost.flops_per_step(
                run.config.model,
                run.config.data,
                run.config.training.sentence_objective,
            )
            for run in plan.runs
        }

    def run(self) -> None:
        """Trains and evaluates all runs that are not finished.

        Returns when all runs have finished or failed. After Ctrl-C or SIGTERM,
        or if a run was interrupted, e.g. by a notice of preemption, returns
        when the runs have saved their checkpoints and stopped.

        Raises:
            UserError: If another process runs this sweep.
        """
        with self._only_one(), self._forward_signals():
            queue = [run for run in self._plan.runs if self._next_step(run)]
            reused = len(self._plan.runs) - len(queue)
            if reused:
                logging.info("%d runs are already finished", reused)
            active: list[PlannedRun] = []
            self._began, self._cost_at_start = time.monotonic(), self._done()
            next_report = self._began + PROGRESS_SECONDS
            while (queue and not self.interrupted) or active:
                for run in list(queue):
                    if self._cannot_start(run):
                        queue.remove(run)
                    elif (
                        not self.interrupted
                        and len(active) < self._parallel_runs
                        and self._is_ready(run)
                        and self._start(run)
                    ):
                        queue.remove(run)
                        active.append(run)
                time.sleep(_POLL_SECONDS)
                self._forward_requests()
                for run in list(active):
                    if self._has_ended(run):
                        active.remove(run)
                        self._on_end(run, queue)
                if time.monotonic() >= next_report:
                    logging.info("%s", self._describe_progress(active))
                    next_report = time.monotonic() + PROGRESS_SECONDS

    def log_file(self, run: PlannedRun) -> str:
        """Returns the file with the standard error of a run's processes."""
        return os.path.join(self.log_dir, f"{run.name}.log")

    def command(self, run: PlannedRun, step: str) -> list[str]:
        """Returns the command of a step: "train", or an evaluation's name."""
        flags = [*run.flags, f"--output_dir={run.run_dir(self._dir)}"]
        if step != "train":
            flags += [*self._plan.evaluations[step], "--mode=eval"]
        if run.starts_from:
            start = run.starts_from.run_dir(self._dir)
            flags.append(f"--init_checkpoint={start}")
        return [sys.executable, "-m", "albert_tf.run_pretraining", *flags]

    # --- The run that a run starts from. --------------------------------------

    def _is_ready(self, run: PlannedRun) -> bool:
        """Whether the run that this one starts from is trained."""
        start = run.starts_from
        return start is None or is_trained(start, self._dir)

    def _cannot_start(self, run: PlannedRun) -> bool:
        """Whether the run that this one starts from has failed."""
        start = run.starts_from.name if run.starts_from else ""
        if start not in self.failed or self._is_ready(run):
            return False
        logging.error("%s: not started, because %s has failed", run.name, start)
        self.failed[run.name] = self.failed[start]
        return True

    # --- The processes of a run: training, then each evaluation. -------------

    def _next_step(self, run: PlannedRun) -> str:
        """Returns "train", the name of an evaluation, or "" for the end."""
        if not is_trained(run, self._dir):
            return "train"
        for name in self._plan.evaluations:
            if read_evaluation(self._dir, run, name) is None:
                return name
        return ""

    def _start(self, run: PlannedRun) -> bool:
        """Starts the next process of a run; returns whether it has started.

        If the run is already finished, starts nothing and returns True.
        """
        lock = os.path.join(self._lock_dir, run.name)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if run.name not in self._waiting_for:
                    self._waiting_for.add(run.name)
                    logging.warning(
                        "%s: waiting for a process of an earlier sweep, which "
                        "still trains or evaluates this run",
                        run.name,
                    )
                return False
            step = self._next_step(run)
            if not step:  # the earlier process has finished it
                return True
            logging.info(
                "%s: %s; its output is in %s",
                run.name,
                "training" if step == "train" else f"evaluating on {step}",
                self.log_file(run),
            )
            with (
                open(self.log_file(run), "ab") as log,
                open(self._output_file(run), "wb") as output,
            ):
                # In a session of its own, so that Ctrl-C reaches only the
                # sweep, which asks the run to stop once. The process inherits
                # the lock.
                process = subprocess.Popen(
                    self.command(run, step),
                    stdout=output,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                    start_new_session=True,
                    pass_fds=[descriptor],
                )
            self._processes[run.name] = step, process
            self._num_forwarded[run.name] = 0
            return True
        finally:
            os.close(descriptor)

    def _output_file(self, run: PlannedRun) -> str:
        return os.path.join(self.log_dir, f"{run.name}.out")

    def _has_ended(self, run: PlannedRun) -> bool:
        if run.name not in self._processes:
            return True
        _, process = self._processes[run.name]
        return process.poll() is not None

    def _on_end(self, run: PlannedRun, queue: list[PlannedRun]) -> None:
        """Records the result of a process; queues the next one of its run."""
        if run.name not in self._processes:
            return
        step, process = self._processes.pop(run.name)
        status = process.returncode
        if self.interrupted:
            return
        if status in _INTERRUPT_OF_STATUS:
            self._interrupt(
                _INTERRUPT_OF_STATUS[status],
                f"{run.name} was interrupted, with status {status}",
            )
            return
        if status == 0 and step != "train":
            self._store_metrics(run, step)
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

    def _store_metrics(self, run: PlannedRun, evaluation: str) -> None:
        """Stores the metrics that a process of an evaluation has printed."""
        with open(self._output_file(run), encoding="utf-8") as file:
            *_, metrics = file
        store_evaluation(self._dir, run, evaluation, json.loads(metrics))

    def _can_start_again(self, run: PlannedRun, step: str) -> bool:
        """Whether a step that has just ended with RETRY_STATUS may try again.

        Counts this end.
        """
        key = run.name, step, newest_checkpoint(run, self._dir)
        self._num_retry_statuses[key] += 1
        return self._num_retry_statuses[key] < _MAX_RETRY_STATUSES

    def _describe_end(self, run: PlannedRun, status: int) -> str:
        path = self.log_file(run)
        return f"status {status}; the end of {path}:\n{_tail(path)}"

    # --- One process, interrupts. --------------------------------------------

    @contextlib.contextmanager
    def _only_one(self) -> Iterator[None]:
        path = os.path.join(self._lock_dir, "sweep")
        with open(path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    "only one process may run a sweep at a time",
                    received=f"another process is running {self._dir}",
                    remedy="Wait for it, or stop it.",
                ) from None
            yield

    @contextlib.contextmanager
    def _forward_signals(self) -> Iterator[None]:
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
        """Starts no further process, and asks all runs to stop."""
        logging.warning(
            "%s: the runs save a checkpoint and stop; the same command "
            "continues them",
            reason,
        )
        self.interrupted = number
        self._num_requests += 1
        self._forward_requests()

    def _forward_requests(self) -> None:
        """Sends SIGTERM for each request to stop; a second one ends a run."""
        for name, (_, process) in self._processes.items():
            while self._num_forwarded[name] < self._num_requests:
                process.send_signal(signal.SIGTERM)
                self._num_forwarded[name] += 1

    # --- Progress. -----------------------------------------------------------

    def _done(self) -> float:
        """FLOPs of all training steps that are done."""
        return sum(
            self._costs[run.name] * last_step(run, self._dir)
            for run in self._plan.runs
        )

    def _describe_progress(self, active: Sequence[PlannedRun]) -> str:
        total = sum(
            self._costs[run.name] * run.config.training.num_train_steps
            for run in self._plan.runs
        )
        finished = sum(not self._next_step(run) for run in self._plan.runs)
        done = self._done()
        parts = [
            f"{finished}/{len(self._plan.runs)} runs finished",
            f"{done / total:.1%} of the training",
        ]
        for run in active:
            step = last_step(run, self._dir)
            steps = run.config.training.num_train_steps
            parts.append(f"{run.name}: step {step}/{steps}")
        gained = done - self._cost_at_start
        if gained > 0:
            seconds = time.monotonic() - self._began
            left = (total - done) / gained * seconds
            parts.append(f"ETA {left // 3600:.0f}h{left % 3600 // 60:02.0f}m")
        if self.failed:
            parts.append(f"failed: {', '.join(self.failed)}")
        return " | ".join(parts)


def _tail(path: str, num_lines: int = 5) -> str:
    with open(path, errors="replace") as file:
        return "".join(file.readlines()[-num_lines:]).rstrip()
