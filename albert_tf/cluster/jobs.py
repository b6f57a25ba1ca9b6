"""Runs commands in processes of their own, some of them at a time."""

import collections
import contextlib
import dataclasses
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from albert_tf.errors import RETRY_STATUS

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

# A job fails when it has ended this number of times with RETRY_STATUS without a
# new checkpoint in between.
_MAX_RETRY_STATUSES = 3


@dataclasses.dataclass(eq=False)
class Job:
    """A command to run.

    Attributes:
        name: Its name in the log.
        command: The program and its arguments.
        log, output: Files for standard error, which is appended, and for
            standard output of the last process.
        needs: A job that must succeed before this one starts.
        last_step, last_saved: The step that it has reached, and the one of its
            newest checkpoint.
        on_success: Called after exit status 0.
        status: Exit status, when the job has ended; that of a failed job which
            it needs.
    """

    name: str
    command: Sequence[str]
    log: str
    output: str
    needs: "Job | None" = None
    last_step: Callable[[], int] = int
    last_saved: Callable[[], int] = int
    on_success: Callable[[], None] = lambda: None
    status: int | None = None


class Jobs:
    """Runs jobs; those that end with status 75 are started again.

    After Ctrl-C or SIGTERM, or if a job was interrupted, e.g. by a notice of
    preemption, all jobs are asked to stop, and no other one starts.

    Args:
        limit: Number of jobs to run at the same time.
        environment: Environment of the jobs; None is that of this process.
        open_files: Descriptors of open files that the jobs inherit, e.g. of a
            lock that lasts until all of them have ended.

    Attributes:
        interrupted: The signal that interrupted the jobs; 0 without one.
    """

    def __init__(
        self,
        limit: int = 1,
        environment: Mapping[str, str] | None = None,
        open_files: Sequence[int] = (),
    ) -> None:
        self.interrupted = 0
        self._limit = limit
        self._environment = environment
        self._open_files = open_files
        self._waiting: list[Job] = []
        # Each process with the number of requests to stop that it has got.
        self._active: dict[Job, tuple[subprocess.Popen[bytes], int]] = {}
        self._num_requests = 0
        self._num_retry_statuses: collections.Counter[tuple[Job, int]] = (
            collections.Counter()
        )

    def run(self, jobs: Sequence[Job]) -> None:
        """Runs jobs in this order, each after the one that it needs.

        Returns when all have ended; their status says how.
        """
        self._waiting = list(jobs)
        next_report = time.monotonic() + PROGRESS_SECONDS
        with self._handle_signals():
            while self._active or (self._waiting and not self.interrupted):
                if not self.interrupted:
                    self._start_jobs()
                time.sleep(_POLL_SECONDS)
                self._forward_requests()
                for job, (process, _) in list(self._active.items()):
                    if process.poll() is not None:
                        del self._active[job]
                        self._on_end(job, process.returncode)
                if time.monotonic() >= next_report:
                    logging.info("%s", self._describe_progress(jobs))
                    next_report = time.monotonic() + PROGRESS_SECONDS

    def _start_jobs(self) -> None:
        """Starts jobs that wait; fails those that can never start."""
        for job in list(self._waiting):
            if job.needs and job.needs.status:
                logging.error(
                    "%s: not started, because %s has failed",
                    job.name,
                    job.needs.name,
                )
                job.status = job.needs.status
                self._waiting.remove(job)
            elif len(self._active) < self._limit and (
                not job.needs or job.needs.status == 0
            ):
                self._waiting.remove(job)
                self._active[job] = self._start(job), 0

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        logging.info("%s: started; its output is in %s", job.name, job.log)
        with open(job.log, "ab") as log, open(job.output, "wb") as output:
            # In a session of its own, so that Ctrl-C reaches only this process,
            # which asks the job to stop once.
            return subprocess.Popen(
                job.command,
                stdout=output,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
                pass_fds=self._open_files,
            )

    def _on_end(self, job: Job, status: int) -> None:
        if self.interrupted:
            return
        if status in _INTERRUPT_OF_STATUS:
            self._interrupt(
                _INTERRUPT_OF_STATUS[status],
                f"{job.name} was interrupted, with status {status}",
            )
            return
        if status == 0:
            job.on_success()
            job.status = 0
            logging.info("%s: finished", job.name)
            return
        with open(job.log, errors="replace") as file:
            tail = "".join(file.readlines()[-5:]).rstrip()
        end = f"status {status}; the end of {job.log}:\n{tail}"
        if status == RETRY_STATUS:
            self._num_retry_statuses[job, job.last_saved()] += 1
            if self._num_retry_statuses[job, job.last_saved()] < (
                _MAX_RETRY_STATUSES
            ):
                logging.warning("%s is started again after %s", job.name, end)
                self._waiting.insert(0, job)
                return
        job.status = status
        logging.error("%s failed with %s", job.name, end)

    @contextlib.contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Asks the jobs to stop when this process is asked to."""

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
        """Starts no further job, and lets the loop ask all to stop."""
        logging.warning(
            "%s: the runs save a checkpoint and stop; the same command "
            "continues them",
            reason,
        )
        self.interrupted = number
        self._num_requests += 1

    def _forward_requests(self) -> None:
        """Sends SIGTERM for each request to stop; a second one ends a run."""
        for job, (process, num_requests) in self._active.items():
            for _ in range(num_requests, self._num_requests):
                process.send_signal(signal.SIGTERM)
            self._active[job] = process, self._num_requests

    def _describe_progress(self, jobs: Sequence[Job]) -> str:
        finished = sum(job.status == 0 for job in jobs)
        failed = [job.name for job in jobs if job.status]
        return " | ".join(
            [
                f"{finished}/{len(jobs)} finished",
                *(
                    f"{job.name}: step {job.last_step()}"
                    for job in self._active
                ),
                *([f"failed: {', '.join(failed)}"] if failed else []),
            ]
        )
