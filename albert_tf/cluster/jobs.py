"""Runs commands in processes of their own, some of them at a time."""

import collections
import ctypes
import dataclasses
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from albert_tf.errors import RETRY_STATUS, describe_end

_POLL_SECONDS = 0.5
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_TERMINATED = (128 + signal.SIGTERM, -signal.SIGTERM)
# A job fails when it has ended this number of times with RETRY_STATUS without a
# new checkpoint in between.
_MAX_RETRY_STATUSES = 3

_PRCTL: Any = getattr(ctypes.CDLL(None), "prctl", None)  # of Linux


@dataclasses.dataclass(eq=False)
class Job:
    """A command to run."""

    name: str
    command: Sequence[str]
    log: str  # file for standard error, which is appended
    output: str  # file for standard output of the last process
    needs: "Job | None" = None  # must succeed before this one starts
    last_saved: Callable[[], int] = int  # the step of its newest checkpoint
    # Called at short intervals. When it returns true, the job is asked to stop,
    # which then is a success.
    is_over: Callable[[], bool] = bool
    # Whether the job has something to save. Until then, an interruption kills
    # it: its first step may take minutes.
    has_progress: Callable[[], bool] = lambda: True
    on_success: Callable[[], None] = lambda: None
    # Exit status, when the job has ended; that of a failed job which it needs.
    status: int | None = None


@dataclasses.dataclass
class Jobs:
    """Runs jobs; those that end with status 75 are started again.

    After Ctrl-C or SIGTERM, to this process or to a job, all jobs are asked to
    stop, and no other one starts.
    """

    limit: int = 1  # number of jobs to run at the same time
    environment: Mapping[str, str] | None = None  # None: of this process
    # Descriptors that the jobs inherit, e.g. of a lock that lasts until all of
    # them have ended.
    open_files: Sequence[int] = ()
    ends_with_parent: bool = False  # if this process is killed; on Linux
    interrupted: int = 0  # the signal that interrupted the jobs

    def __post_init__(self) -> None:
        self._over: set[Job] = set()
        self._active: dict[Job, subprocess.Popen[bytes]] = {}
        self._num_requests = 0  # to stop
        # Numbers of retries, by job and its last checkpoint.
        self._retries: collections.Counter[Any] = collections.Counter()

    def run(self, jobs: Sequence[Job]) -> None:
        """Runs jobs in this order, each after the one that it needs.

        Returns when all have ended; their status says how.
        """
        waiting, num_forwarded = list(jobs), 0
        before = {n: signal.signal(n, self._on_signal) for n in _INTERRUPTS}
        try:
            while self._active or (waiting and not self.interrupted):
                for job in [] if self.interrupted else list(waiting):
                    if self._starts(job):
                        waiting.remove(job)
                time.sleep(_POLL_SECONDS)
                for _ in range(num_forwarded, self._num_requests):
                    # Ctrl-C after SIGTERM ends a run at once.
                    number = signal.SIGINT if num_forwarded else signal.SIGTERM
                    num_forwarded += 1
                    for job, process in self._active.items():
                        ready = job.has_progress()
                        process.send_signal(number if ready else signal.SIGKILL)
                for job, process in list(self._active.items()):
                    if job.is_over() and job not in self._over:
                        self._over.add(job)
                        process.send_signal(signal.SIGTERM)
                    if process.poll() is not None:
                        del self._active[job]
                        if self._is_retried(job, process.returncode):
                            waiting.insert(0, job)
                        ended = sum(job.status is not None for job in jobs)
                        if len(jobs) > 1:
                            logging.info("%d of %d ended", ended, len(jobs))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _starts(self, job: Job) -> bool:
        """Starts a job if it can, or fails it if it never can."""
        if job.needs and job.needs.status:
            logging.error(
                "%s: not started: %s has failed", job.name, job.needs.name
            )
            job.status = job.needs.status
            return True
        is_ready = not job.needs or job.needs.status == 0
        if not is_ready or len(self._active) >= self.limit:
            return False
        logging.info("%s: started; its output is in %s", job.name, job.log)
        self._over.discard(job)
        with open(job.log, "ab") as log, open(job.output, "wb") as output:
            self._active[job] = subprocess.Popen(
                job.command,
                stdout=output,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                # Ctrl-C reaches only this process, which asks the job to stop.
                start_new_session=True,
                pass_fds=self.open_files,
                preexec_fn=_end_with_parent if self.ends_with_parent else None,
            )
        return True

    def _is_retried(self, job: Job, status: int) -> bool:
        """Takes note of the end of a job; whether it has to start again."""
        if self.interrupted:
            return False
        if job in self._over and status in _TERMINATED:
            status = 0
        for number in _INTERRUPTS:
            if status in (128 + number, -number):
                end = f"{job.name} was interrupted, with status {status}"
                self._interrupt(number, end)
                return False
        if status == 0:
            job.on_success()
            job.status = 0
            logging.info("%s: finished", job.name)
            return False
        with open(job.log, errors="replace") as file:
            tail = "".join(file.readlines()[-5:]).rstrip()
        end = f"{describe_end(status)}; the end of {job.log}:\n{tail}"
        if status == RETRY_STATUS:
            self._retries[job, job.last_saved()] += 1
            if self._retries[job, job.last_saved()] < _MAX_RETRY_STATUSES:
                logging.warning("%s is started again after %s", job.name, end)
                return True
        job.status = status
        logging.error("%s failed with %s", job.name, end)
        return False

    def _on_signal(self, number: int, _frame: Any) -> None:
        self._interrupt(number, signal.Signals(number).name)

    def _interrupt(self, number: int, reason: str) -> None:
        """Lets `run` start no further job and ask all to stop.

        Each job gets a SIGTERM for the first request, and Ctrl-C for others.
        """
        logging.warning(
            "%s: the runs save a checkpoint and stop; the same command "
            "continues them",
            reason,
        )
        self.interrupted = number
        self._num_requests += 1


def _end_with_parent() -> None:
    if _PRCTL is not None:
        _PRCTL(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
