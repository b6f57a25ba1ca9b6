"""`--dry_run`: everything that a run needs, checked before it costs anything.

The checks stand in the order of the table, which is printed as they are made.
One that fails does not keep the others from being made, unless they need what
it did not find: they say so. The last one makes real updates with the real
program on the real devices, of the run's own weights where there is a run to
go on with. What is written is removed again.
"""

import contextlib
import logging as python_logging
import math
import os
import posixpath
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from albert_tf.cluster import versions
from albert_tf.cluster.strategy import make_strategy, per_replica_batch_size
from albert_tf.cluster.workers import is_one_process, name_lost_workers
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError, first_line
from albert_tf.input import (
    corrupt_records,
)
from albert_tf.input import (
    record_sets as training_records,
)
from albert_tf.input.batch_stream import BatchStream
from albert_tf.io import files
from albert_tf.runs import checkpoints
from albert_tf.runs import directory as run_directory
from albert_tf.runs.rollback import Rollbacks, find_divergence
from albert_tf.training import schedules, step_cost, warm_start
from albert_tf.training.train_step import (
    StepSettings,
    figure_names,
    make_state,
    make_train_steps,
)

OK, WARN, FAIL, SKIP = "ok", "warn", "FAIL", "skip"

# Updates are timed for so long, and as many at the most.
TIMED_SECONDS, TIMED_STEPS = 10.0, 20
# Share of a step's time spent on waiting for its batch that is worth a warning.
WAITING_SHARE = 0.1
# By how much, relatively, the loss of new weights may differ from a guess.
GUESS_TOLERANCE = 0.1

TO_SAVE_MEMORY = (
    "Raise --gradient_accumulation_steps, or give --remat or "
    "--precision=mixed_bfloat16, or take a smaller batch."
)


# For errors that tell none themselves, by check.
REMEDIES = {
    "versions": "Install what setup.py asks for.",
    "file systems": "Check the bucket's name and its permissions, the network "
    "of this machine, and `gcloud auth application-default login`.",
    "output": "Choose another --output_dir, or mend its permissions.",
    "room": "Choose another --output_dir.",
    "records": "Build them again with python -m data_prep.build_tfrecords.",
    "held-out records": "Take eval/ of a build with --holdout_fraction.",
    "run": "Choose another --output_dir.",
    "learning rate": "Set --learning_rate.",
    "devices": "Choose another --strategy.",
    "initial weights": "Choose another --init_checkpoint.",
    "batch": "Choose another --global_batch_size.",
    "memory": TO_SAVE_MEMORY,
    "workers": "See the tables of all workers.",
    "updates": "Mend what is named, and try again.",
}
NAME_WIDTH = max(map(len, REMEDIES))


def run(config: PretrainingConfig) -> int:
    """Makes all checks and prints the table.

    Returns:
        The exit status: 1 if a check failed.
    """
    preflight = Preflight(config)
    try:
        return preflight.run()
    finally:
        preflight.remove_directories()


class Preflight:
    """The checks, in order, and what they found.

    Args:
        config: The run.
    """

    # Each is set by a check; checks that need it name that one.
    data: training_records.TrainingData  # records
    step: int  # run
    initial: warm_start.WarmStart | None  # initial weights
    strategy: tf.distribute.Strategy  # devices

    def __init__(self, config: PretrainingConfig) -> None:
        self.config = config
        self._passed: set[str] = set()
        self._num_failed = 0
        self._made: list[str] = []  # directories, the innermost first

    def run(self) -> int:
        """Makes them all; returns the exit status."""
        remote = ["file systems"] if self._remote_paths() else []
        self._check("versions", self._versions)
        if remote:
            self._check("file systems", self._file_systems)
        self._check("output", self._output, *remote)
        self._check("room", self._room, "output")
        self._check("records", self._records, *remote)
        self._check("held-out records", self._held_out, "records")
        self._check("run", self._run, "records")
        self._check("learning rate", self._learning_rate)
        self._check("devices", self._devices)
        self._check("initial weights", self._initial_weights, "run", "devices")
        self._check("batch", self._batch, "devices")
        self._check("memory", self._memory, "batch")
        self._check("workers", self._workers, "devices")
        self._check(
            "updates",
            self._updates,
            "records",
            "run",
            "initial weights",
            "batch",
            "workers",
        )
        if self._num_failed:
            print(f"\n{self._num_failed} failed: mend and check again")
            return 1
        print("\nnothing failed: the run may start")
        return 0

    def _add(
        self, verdict: str, name: str, text: str, remedy: str = ""
    ) -> None:
        """Prints a row.

        Args:
            verdict: OK, WARN, FAIL, or SKIP for what could not be checked.
            name: What was looked at.
            text: What was found.
            remedy: What to do; "" where nothing is to be done.
        """
        self._num_failed += verdict == FAIL
        lines = [f"{verdict:4}  {name:{NAME_WIDTH}}  {' '.join(text.split())}"]
        if remedy:
            remedy = " ".join(remedy.split())
            lines.append(f"{'':4}  {'':{NAME_WIDTH}}  -> {remedy}")
        print("\n".join(lines), flush=True)

    def _check(
        self, name: str, method: Callable[[], None], *needed: str
    ) -> None:
        """Makes a check, which adds its rows.

        Args:
            name: Of the check.
            method: Adds rows; raises what makes it fail, or adds it.
            *needed: Checks that must have passed for it to be made.
        """
        missing = [other for other in needed if other not in self._passed]
        if missing:
            self._add(SKIP, name, f"not checked, needs: {', '.join(missing)}")
            return
        num_failed = self._num_failed
        try:
            with _captured_warnings() as warnings:
                method()
            if self._num_failed == num_failed:
                self._passed.add(name)
        except UserError as error:
            remedy = error.remedy or REMEDIES[name]
            self._add(FAIL, name, error.fault, remedy)
        except tf.errors.ResourceExhaustedError as error:
            text = f"out of memory: {first_line(error)}"
            self._add(FAIL, name, text, TO_SAVE_MEMORY)
        except (OSError, tf.errors.OpError) as error:
            self._add(FAIL, name, first_line(error), REMEDIES[name])
        for warning in warnings:
            self._add(WARN, name, warning)

    def _versions(self) -> None:
        for found in versions.check_installed():
            verdict = FAIL if found.remedy else OK
            self._add(verdict, found.name, found.version, found.remedy)

    def _remote_paths(self) -> list[str]:
        """What is on a file system like gs://, one path of each directory."""
        data = self.config.data
        patterns = [
            *data.input_file,
            *data.eval_input_file,
            *(p for paths in data.datasets().values() for p in paths),
        ]
        directories = {
            self.config.training.output_dir,
            self.config.initialization.init_checkpoint,
            *(posixpath.dirname(pattern) for pattern in patterns),
        }
        return sorted(filter(files.is_remote, directories))

    def _file_systems(self) -> None:
        """Asks for each remote directory; that one is missing is fine."""
        name = "file systems"
        for path in self._remote_paths():
            try:
                tf.io.gfile.exists(path)
            except tf.errors.UnimplementedError as error:
                self._add(
                    FAIL,
                    name,
                    f"{path}: TensorFlow {tf.__version__} says: "
                    f"{first_line(error)}",
                    "For gs://, take TensorFlow's own release for Linux, which "
                    "has it, or pip install 'tensorflow[gcs-filesystem]'.",
                )
            except tf.errors.OpError as error:
                text = f"{path}: {first_line(error)}"
                self._add(FAIL, name, text, REMEDIES[name])
            else:
                self._add(OK, name, f"{path} answers")

    def _output(self) -> None:
        """Writes, reads and removes a file where the run is to be."""
        run_dir = self.config.training.output_dir
        self._made = [d for d in _parents(run_dir) if not files.exists(d)]
        files.make_directories(run_dir)
        # Other workers may do the same at the same time.
        name = f"preflight-{socket.gethostname()}-{os.getpid()}"
        probe = posixpath.join(run_dir, name)
        content = os.urandom(1 << 16)
        try:
            # Under another name first, which must then be renamed.
            files.write_bytes(probe, content)
            with files.open_existing(probe, "rb") as file:
                read = file.read()
        finally:
            for path in (probe, probe + files.PARTIAL_SUFFIX):
                if files.exists(path):
                    files.remove(path)
        if read != content:
            raise UserError(
                f"{run_dir} must give back what was written",
                received=f"{len(read)} other bytes",
            )
        self._add(OK, "output", f"{run_dir} can be written to")

    def _room(self) -> None:
        """Room for all checkpoints that are there at the same time."""
        training = self.config.training
        run_dir = training.output_dir
        if files.is_remote(run_dir):
            self._add(OK, "room", "buckets do not fill up")
            return
        parameters = step_cost.num_parameters(
            self.config.model, training.sentence_objective
        )
        # float32: the weights, and the two moments of each.
        size = 3 * 4 * parameters
        every = training.keep_every_n_steps
        newest = training.num_train_steps // training.save_checkpoints_steps
        number = min(training.keep_checkpoint_max, newest + 2)
        number += training.num_train_steps // every if every else 0
        number += 1  # the one being written
        number += bool(self.config.data.eval_input_file)  # the best
        present = sum(
            len(checkpoints.list_checkpoints(posixpath.join(run_dir, name)))
            for name in (run_directory.CHECKPOINTS_DIR, checkpoints.BEST_DIR)
        )
        needed = max(number - present, 1) * size
        free = shutil.disk_usage(run_dir).free
        fits = needed < free
        self._add(
            OK if fits else FAIL,
            "room",
            f"{_bytes(free)} free; {number} checkpoints of {_bytes(size)}, "
            f"{present} of them there, need {_bytes(needed)}",
            ""
            if fits
            else "Make room, or lower --keep_checkpoint_max, or raise "
            "--keep_every_n_steps.",
        )

    def _records(self) -> None:
        data = training_records.find_training_data(self.config)
        last_step = self.config.training.num_train_steps
        ends = [phase.first_step for phase in data.phases[1:]] + [last_step]
        for phase, end in zip(data.phases, ends, strict=True):
            records = phase.records
            epoch = records.num_examples / self.config.data.global_batch_size
            steps = max(min(end, last_step) - phase.first_step, 0)
            self._add(
                OK if epoch >= 1 else WARN,
                "records",
                f"{phase.name or 'input_file'}: {records.num_examples:,} in "
                f"{len(records.files)} files, {records.masking} masking; "
                f"{epoch:,.1f} steps an epoch, {steps / epoch:,.1f} epochs",
                "" if epoch >= 1 else "A batch holds a record several times.",
            )
        self.data = data

    def _held_out(self) -> None:
        if not self.config.data.eval_input_file:
            self._add(
                WARN,
                "held-out records",
                "none",
                "Build with --holdout_fraction, and give --eval_input_file.",
            )
            return
        held_out = training_records.find_held_out(self.config)
        for phase in self.data.phases:
            training_records.check_held_out(phase.records, held_out)
        self._add(OK, "held-out records", f"{held_out.num_examples:,}")

    def _run(self) -> None:
        """Whether the run's directory holds one, that may go on."""
        training = self.config.training
        run_directory.check(self.config, self.data)
        found = checkpoints.list_checkpoints(
            posixpath.join(training.output_dir, run_directory.CHECKPOINTS_DIR)
        )
        self.step = found[-1].step if found else 0
        text = "a new one"
        if self.step >= training.num_train_steps:
            text = f"has ended, at step {self.step:,}"
        elif found:
            text = f"goes on from step {self.step:,}"
        self._add(OK, "run", text)

    def _initial_weights(self) -> None:
        """Whether the model that a new run begins with fits it."""
        self.initial = warm_start.read(self.config, self.data)
        lines = ["those of the run's own"]
        if self.initial:
            lines = self.initial.describe()
        for line in lines:
            self._add(OK, "initial weights", line)

    def _learning_rate(self) -> None:
        line, warning = schedules.describe_learning_rate(self.config)
        line = line.removeprefix("learning rate ")
        self._add(WARN if warning else OK, "learning rate", line, warning)

    def _devices(self) -> None:
        strategy = make_strategy(self.config.distribution)
        self.strategy = strategy
        self._add(
            OK,
            "devices",
            f"{strategy.num_replicas_in_sync} replicas of "
            f"{type(strategy).__name__}, here on "
            f"{', '.join(strategy.extended.worker_devices)}",
        )

    def _batch(self) -> None:
        data = self.config.data
        replicas = self.strategy.num_replicas_in_sync
        share = per_replica_batch_size(
            "global_batch_size",
            data.global_batch_size,
            replicas,
            data.gradient_accumulation_steps,
        )
        if data.eval_input_file:
            per_replica_batch_size(
                "eval_batch_size", data.eval_batch_size, replicas
            )
        self._add(
            OK,
            "batch",
            f"{data.global_batch_size:,} = {replicas} replicas x {share:,} "
            f"examples, in {data.gradient_accumulation_steps} parts",
        )

    def _memory(self) -> None:
        parts = step_cost.estimate_memory(
            self.config, self.strategy.num_replicas_in_sync
        )
        total = sum(parts.values())
        room = step_cost.device_memory_bytes(self.strategy)
        named = ", ".join(f"{n} {_bytes(size)}" for n, size in parts.items())
        fits = room is None or total < room
        self._add(
            OK if fits else WARN,
            "memory",
            f"about {_bytes(total)} of "
            f"{_bytes(room) if room else 'an unknown amount'} for a replica: "
            f"{named}",
            "" if fits else f"If updates fail for it: {TO_SAVE_MEMORY}",
        )

    def _workers(self) -> None:
        """Nothing failed on any, or some would wait for others in vain."""
        if is_one_process(self.strategy):
            return

        def total() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            failed = tf.constant(float(self._num_failed))
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, failed)

        with self._lost_workers_named():
            totals = tf.function(self.strategy.run)(total)
            failed = self.strategy.experimental_local_results(totals)[0]
        if failed > 0:
            raise UserError(
                "no check may have failed on any worker, for them to make "
                "updates together",
                received=f"{self._num_failed} failed on this one",
            )
        self._add(OK, "workers", "nothing failed on any")

    def _lost_workers_named(self) -> contextlib.AbstractContextManager[None]:
        return name_lost_workers(self.config.distribution, self.strategy)

    def _updates(self) -> None:
        """Makes real updates, and times them."""
        if self.step >= self.config.training.num_train_steps:
            self._add(OK, "updates", "none is left to be made")
            return
        with self._lost_workers_named():
            updates = Updates(
                self.config, self.data, self.strategy, self.initial
            )
            logging.info("compiling the step; then a few updates are timed")
            first = updates.make(1)
            self._judge_loss(first, updates)
            number = int(TIMED_SECONDS / updates.make(1).seconds)
            timed = updates.make(min(max(number, 2), TIMED_STEPS))
        self._tell_speed(first, timed, updates.step)
        peak = _bytes(step_cost.peak_memory_bytes())
        self._add(OK, "memory in use", f"{peak} at its peak, in this process")

    def _judge_loss(self, first: "Timed", updates: "Updates") -> None:
        """The loss of the weights that the run begins, or goes on, with."""
        model, training = self.config.model, self.config.training
        loss, norm = first.means["loss"], first.means["gradient_norm"]
        diverged = find_divergence(loss, norm, updates.lowest_loss, training)
        if diverged:
            self._add(FAIL, "loss", diverged, "Lower --learning_rate.")
            return
        text = f"{loss:.3f} at step {updates.step}"
        if updates.step or self.initial:
            self._add(OK, "loss", text)
            return
        # New weights guess: each piece, and each order, is as likely.
        guess = math.log(model.vocab_size)
        if training.sentence_objective != "none":
            guess += math.log(2)
        near = abs(loss - guess) < GUESS_TOLERANCE * guess
        self._add(
            OK if near else FAIL,
            "loss",
            f"{text}, of new weights; guessing gives {guess:.3f}",
            ""
            if near
            else "Is initializer_range of --albert_config_file 0.02, as "
            "published? Are the records whole (data_prep.inspect_records)?",
        )

    def _tell_speed(self, first: "Timed", timed: "Timed", step: int) -> None:
        config, seconds = self.config, timed.seconds
        flops = step_cost.flops_per_step(
            config.model, config.data, config.training.sentence_objective
        )
        tokens = config.data.global_batch_size * config.data.max_seq_length
        peak = step_cost.peak_flops(self.strategy, config.distribution)
        used = "MFU not known: give --peak_tflops"
        if peak:
            used = f"MFU {flops / seconds / peak:.1%}"
        self._add(
            OK,
            "updates",
            f"{seconds:.3g} s each, {tokens / seconds:,.0f} tokens/s; "
            f"{flops / 1e12:.3g} TFLOP each, {flops / seconds / 1e12:.3g} "
            f"TFLOP/s, {used}; compiled in {first.seconds:.0f} s",
        )
        slow = timed.waiting_share > WAITING_SHARE
        self._add(
            WARN if slow else OK,
            "input",
            f"{timed.waiting_share:.1%} of the time spent waiting for batches",
            "Bring the records nearer, or give the host more CPU cores."
            if slow
            else "",
        )
        left = config.training.num_train_steps - step
        hours = seconds * left / 3600
        self._add(
            OK,
            "whole run",
            f"{left:,} steps in about {hours:.3g} hours "
            f"({hours / 24:.2g} days), checkpoints and evaluations not "
            "counted",
        )

    def remove_directories(self) -> None:
        """Removes those that were made here and are empty."""
        for directory in self._made:
            # Another worker may be as fast.
            with contextlib.suppress(OSError, tf.errors.OpError):
                if not tf.io.gfile.listdir(directory):
                    tf.io.gfile.rmtree(directory)


class Timed(NamedTuple):
    """What some updates gave.

    Attributes:
        means: Of the figures of `train_step.figure_names`.
        seconds: An update took, by the clock of the host.
        waiting_share: Of that time, for batches.
    """

    means: dict[str, float]
    seconds: float
    waiting_share: float


class Updates:
    """The program of the run, on its devices, at the step where it is.

    Nothing of it is saved.

    Args:
        config: The run.
        data: Its records.
        strategy: Its devices.
        initial: Weights that it begins with; None for its own.

    Attributes:
        step: Updates made before.
        lowest_loss: The lowest mean loss before; None for new weights.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        data: training_records.TrainingData,
        strategy: tf.distribute.Strategy,
        initial: warm_start.WarmStart | None = None,
    ) -> None:
        self._config, self._strategy = config, strategy
        run_dir = config.training.output_dir
        with strategy.scope():
            state = make_state(config)
            self._train_steps = make_train_steps(strategy, state, config)
        store = checkpoints.CheckpointStore(
            run_dir, state.variables(), writes=False
        )
        restored = store.restore()
        self.step, self.lowest_loss = 0, None
        if restored:
            self.step = restored.step
            self.lowest_loss = restored.notes["lowest_loss"]
        elif initial:
            initial.apply(state.variables())
        rollbacks = Rollbacks.read(run_dir)
        self._damaged = corrupt_records.CorruptRecords.read(run_dir)
        self._settings = StepSettings(
            schedules.dropout_rates(self.step, config),
            rollbacks.learning_rate_scale(self.step),
        )
        self._stream = BatchStream(
            data,
            config.data,
            config.training.seed,
            rollbacks,
            self._damaged,
            config.model.vocab_size,
        )
        self._open_batches()

    def _open_batches(self) -> None:
        self._batches = iter(
            self._strategy.distribute_datasets_from_function(
                self._stream.open(self.step)
            )
        )

    def make(self, number: int) -> Timed:
        """Makes so many updates.

        A damaged record among them is left out, as the run would.

        Raises:
            UserError: If the run would stop for it.
        """
        try:
            return self._make(number)
        except corrupt_records.READING_ERRORS:
            found = self._stream.find_damage(
                self.step, self.step + TIMED_STEPS + 2
            )
            if not found:
                raise
        self._damaged.add(found, self._config.data, writes=False)
        self._open_batches()
        return self._make(number)

    def _make(self, number: int) -> Timed:
        zeros = {n: tf.constant(0.0) for n in figure_names(self._config)}
        started = time.monotonic()
        steps = self._train_steps(
            self._batches, zeros, tf.constant(number), self._settings
        )
        # Here the host waits for the devices.
        means = {n: float(v) / number for n, v in steps.totals.items()}
        seconds = time.monotonic() - started
        asked, had = steps.times.numpy().T
        return Timed(means, seconds / number, sum(had - asked) / seconds)


@contextlib.contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """Gives what is warned of in a block, instead of logging it."""
    messages: list[str] = []

    def capture(record: python_logging.LogRecord) -> bool:
        if record.levelno < python_logging.WARNING:
            return True
        messages.append(record.getMessage())
        return False

    logger = logging.get_absl_logger()
    logger.addFilter(capture)
    try:
        yield messages
    finally:
        logger.removeFilter(capture)


def _parents(path: str) -> Iterator[str]:
    """A directory and those above it, the innermost first; no bucket."""
    top = ""
    if files.is_remote(path):
        top = "/".join(path.split("/")[:3])
    while path not in (top, posixpath.dirname(path)):
        yield path
        path = posixpath.dirname(path)


def _bytes(number: float) -> str:
    """E.g. 1.4 GB."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(int(math.log10(max(number, 1)) / 3), len(units) - 1)
    return f"{number / 1000**power:,.1f} {units[power]}"
