"""`--dry_run`: checks everything that a run needs, without starting the run.

The checks run in the order of the printed table. A failed check skips only the
checks that need its result. The last check trains real steps with the real
program on the real devices, from the weights that the run would start or resume
from. All files that the checks write are removed.
"""

import contextlib
import logging as python_logging
import os
import posixpath
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from albert_tf.cluster import devices, versions
from albert_tf.cluster.host import connect
from albert_tf.cluster.pjrt import TO_SAVE_MEMORY
from albert_tf.cluster.runtime import runtime_of
from albert_tf.cluster.strategy import (
    make_strategy,
    per_replica_batch_size,
)
from albert_tf.cluster.workers import (
    LOSS_ERRORS,
)
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError, first_line
from albert_tf.input.record_format import READING_ERRORS, explain_failed_read
from albert_tf.input.record_sets import RecordSet
from albert_tf.io import faults
from albert_tf.io.artifact import check_writable
from albert_tf.runs import directory as run_directory
from albert_tf.training import cost, schedules
from albert_tf.training.objective import Objective
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.progress import Progress, Times
from albert_tf.training.train import Trainer, find_divergence
from albert_tf.training.warm_start import WarmStart

OK, WARN, FAIL, SKIP = "ok", "warn", "FAIL", "skip"

# Relative difference allowed between the loss of random weights and that of
# uniform predictions.
CHANCE_TOLERANCE = 0.1
# Steps are timed for about TIMED_SECONDS, but at most TIMED_STEPS steps.
TIMED_SECONDS, TIMED_STEPS = 10.0, 20

# Default remedies by check, for errors without a remedy. The objective has
# those of records.
REMEDIES = {
    "versions": "Install the versions that setup.py requires.",
    "output": "Choose another --output_dir, or fix its permissions.",
    "run": "Choose another --output_dir.",
    "learning rate": "Set --learning_rate.",
    "devices": "Choose another --strategy.",
    "initial weights": "Choose another --init_checkpoint.",
    "batch": "Choose another --global_batch_size.",
    "workers": "See the tables of all workers.",
    "steps": "Fix the error, and rerun.",
}


class Row(NamedTuple):
    """A row of the table: a verdict, what was found, and what to do.

    Without a name, the row has that of its check.
    """

    verdict: str
    text: str
    remedy: str = ""
    name: str = ""


def judge(
    fits: bool, text: str, remedy: str, name: str = "", unfit: str = FAIL
) -> Row:
    """A row with the verdict OK, or `unfit` and what to do."""
    return Row(OK, text, "", name) if fits else Row(unfit, text, remedy, name)


def explain(error: Exception, remedy: str) -> Row:
    """The row of an error, with this remedy unless a better one is known."""
    known = faults.explain(error) or UserError(first_line(error))
    return Row(FAIL, known.fault, known.remedy or remedy)


def run(
    config: PretrainingConfig,
    objective: Objective | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> int:
    """Runs all checks and prints the table; returns 1 if a check failed.

    The arguments are those of `train.train`.
    """
    return _Preflight(config, objective or Pretraining(config), strategy).run()


class _Preflight:
    # Each is set by the check named on the right. Checks that read it need
    # that check.
    records: RecordSet
    step: int  # run
    resumes: bool  # run
    initial: WarmStart | None  # initial weights
    strategy: tf.distribute.Strategy  # devices

    def __init__(
        self,
        config: PretrainingConfig,
        objective: Objective,
        strategy: tf.distribute.Strategy | None,
    ) -> None:
        self.config = config
        self.objective = objective
        self._given_strategy = strategy
        self._remedies = {**REMEDIES, **objective.remedies}
        self._num_failed = 0
        self._passed: set[str] = set()
        self._examples_per_row = 1.0  # until the records are read

    def run(self) -> int:
        self._check("versions", self._versions)
        self._check("output", self._output)
        self._check("records", self._records)
        self._check("held-out records", self._held_out, "records")
        self._check("run", self._run, "records")
        self._check("learning rate", self._learning_rate)
        self._check("devices", self._devices)
        self._check("initial weights", self._initial_weights, "run", "devices")
        self._check("batch", self._batch, "devices")
        self._check("workers", self._workers, "devices")
        self._check(
            "steps",
            self._steps,
            *("records", "run", "initial weights", "batch", "workers"),
        )
        if self._num_failed:
            print(f"\n{self._num_failed} failed: fix them and rerun")
            return 1
        print("\nnothing failed: the run can start")
        return 0

    def _check(
        self, name: str, check: Callable[[], Iterator[Row]], *needed: str
    ) -> None:
        """Runs a check, which may raise an error, and prints its rows.

        It is skipped unless the checks that it `needed` have passed.
        """
        missing = [name for name in needed if name not in self._passed]
        if missing:
            self._print(
                name, Row(SKIP, f"not checked, needs: {', '.join(missing)}")
            )
            return
        num_failed, remedy = self._num_failed, self._remedies[name]
        with _captured_warnings() as warnings:
            try:
                for row in check():
                    self._print(name, row)
            except tf.errors.ResourceExhaustedError as error:
                text = f"out of memory: {first_line(error)}"
                self._print(name, Row(FAIL, text, TO_SAVE_MEMORY))
            except (UserError, OSError, tf.errors.OpError) as error:
                self._print(name, explain(error, remedy))
        if self._num_failed == num_failed:
            self._passed.add(name)
        for warning in warnings:
            self._print(name, Row(WARN, warning))

    def _print(self, name: str, row: Row) -> None:
        self._num_failed += row.verdict == FAIL
        width = max(map(len, self._remedies))
        text = " ".join(row.text.split())
        print(f"{row.verdict:4}  {row.name or name:{width}}  {text}")
        if row.remedy:
            print(f"{'':4}  {'':{width}}  -> {' '.join(row.remedy.split())}")
        print(end="", flush=True)

    def _versions(self) -> Iterator[Row]:
        found = versions.software()
        text = ", ".join(f"{name} {value}" for name, value in found.items())
        yield Row(OK, text)

    # Directories.

    def _output(self) -> Iterator[Row]:
        """Writes and removes a file in the run directory, or in its parent."""
        directory = self.config.training.output_dir
        # Other workers may do the same at the same time.
        name = f"dry-run-{socket.gethostname()}-{os.getpid()}"
        check_writable(posixpath.join(directory, name))
        yield Row(OK, f"{directory} can be written to")

    # Records and run.

    def _records(self) -> Iterator[Row]:
        records = self.objective.find_training_data()
        steps = self.config.training.num_train_steps
        epoch = records.num_records / self.config.data.global_batch_size
        yield judge(
            epoch >= 1,
            f"input_file: {records.num_records:,} in "
            f"{len(records.files)} files, "
            f"{self.objective.describe_records(records)[0]}; "
            f"{epoch:,.1f} steps an epoch, {steps / epoch:,.1f} epochs",
            "A batch holds some records more than once: lower "
            "--global_batch_size or build more records.",
            unfit=WARN,
        )
        self.records = records
        self._examples_per_row = records.examples_per_row

    def _held_out(self) -> Iterator[Row]:
        held_out = self.objective.find_held_out(self.records)
        text = f"{held_out.num_records:,}" if held_out else "none"
        remedy = self.objective.remedies.get("held-out records", "")
        yield judge(held_out is not None, text, remedy, unfit=WARN)

    def _run(self) -> Iterator[Row]:
        """Checks that the run can resume, if its directory holds one."""
        training = self.config.training
        found = run_directory.check(self.config, self.records)
        self.resumes = bool(found)
        self.step = found[-1].step if found else 0
        text = f"resumes from step {self.step:,}" if found else "a new run"
        if self.step >= training.num_train_steps:
            text = f"complete, at step {self.step:,}"
        yield Row(OK, text)

    def _initial_weights(self) -> Iterator[Row]:
        """Checks that the model of `--init_checkpoint` fits the run."""
        self.initial, lines = None, ["from the newest checkpoint of the run"]
        if not self.resumes:
            self.initial = self.objective.initial_weights(self.records)
            lines = self.initial.describe() if self.initial else ["random"]
        for line in lines:
            yield Row(OK, line)

    def _learning_rate(self) -> Iterator[Row]:
        line, warning = schedules.describe_learning_rate(
            self.config, self._examples_per_row
        )
        line = line.removeprefix("learning rate ")
        yield judge(not warning, line, warning, unfit=WARN)

    # Devices.

    def _devices(self) -> Iterator[Row]:
        strategy = self._given_strategy or make_strategy(
            self.config.distribution
        )
        self.strategy, runtime = strategy, runtime_of(strategy)
        yield Row(
            OK,
            f"{strategy.num_replicas_in_sync} replicas of "
            f"{type(strategy).__name__}, here on "
            f"{', '.join(runtime.device_names)}",
        )
        on_gpus = runtime.device_type == "GPU"
        used = len(runtime.device_names) if on_gpus else 0
        fits, text = devices.describe_gpus(self.config.distribution, used)
        yield judge(
            fits,
            text,
            "CUDA_VISIBLE_DEVICES selects GPUs. If JAX or TensorFlow does not "
            "find them, install its packages for CUDA (docs/gpu.md). "
            "--strategy=one_device uses one.",
            "gpus",
        )

    def _batch(self) -> Iterator[Row]:
        data = self.config.data
        replicas = self.strategy.num_replicas_in_sync
        per_replica = per_replica_batch_size(data, replicas)
        if data.eval_input_file:
            per_replica_batch_size(data, replicas, "eval_batch_size")
        yield Row(
            OK,
            f"{data.global_batch_size:,} = {replicas} replicas x "
            f"{per_replica:,} "
            f"{'examples' if data.packing == 'none' else 'rows'}, in "
            f"{data.gradient_accumulation_steps} micro-batches",
        )

    def _workers(self) -> Iterator[Row]:
        """Fails on all workers if a check failed on one of them.

        Otherwise the others would wait for it in their first step.
        """
        if runtime_of(self.strategy).num_processes == 1:
            return
        with connect(self.config.distribution, self.strategy):
            runtime = runtime_of(self.strategy)
            (failed,) = runtime.sum_over_replicas([self._num_failed])
            if failed:
                # A worker that ended at once could end this sum for another.
                with contextlib.suppress(*LOSS_ERRORS):
                    runtime.sum_over_replicas([0.0])
        if failed > 0:
            where = "this worker" if self._num_failed else "other workers"
            raise UserError(
                "all checks must pass on all workers before the workers train "
                "steps together",
                received=f"failed checks on {where}",
            )
        yield Row(OK, "no check failed on any worker")

    # Steps.

    def _steps(self) -> Iterator[Row]:
        """Trains real steps, and times them."""
        if self.step >= self.config.training.num_train_steps:
            yield Row(OK, "no step is left to train")
            return
        with connect(self.config.distribution, self.strategy) as host:
            trainer = Trainer(self.config, self.objective, self.records, host)
            trainer.start(self.initial)
            position, step = trainer.position, trainer.position.step
            logging.info("compiling the step, then timing a few steps")
            _train(trainer, 1)
            first, compiled_s = position.means(), trainer.times.total
            _train(trainer, 1)
            number = int(TIMED_SECONDS / trainer.times.total)
            _train(trainer, min(max(number, 2), TIMED_STEPS))
        # The lowest loss is None if the first step begins other records.
        yield self._judge_loss(first, step, position.lowest_loss)
        yield from self._report_speed(trainer.times, step, compiled_s)

    def _judge_loss(
        self, means: Mapping[str, float], step: int, lowest_loss: float | None
    ) -> Row:
        """Checks the loss of the weights that the run starts from."""
        diverged = find_divergence(means, lowest_loss, self.config.training)
        if diverged:
            return Row(FAIL, diverged, "Lower --learning_rate.", "loss")
        loss = means["loss"]
        text = f"{loss:.3f} at step {step}"
        chance = self.objective.chance_loss()
        if step or self.initial or chance is None:
            return Row(OK, text, name="loss")
        return judge(
            abs(loss - chance) < CHANCE_TOLERANCE * chance,
            f"{text}, of random weights; uniform predictions give {chance:.3f}",
            "Check that initializer_range in --albert_config_file is 0.02, as "
            "in google-research/albert, and check the records with python -m "
            "data_prep.inspect_records.",
            "loss",
        )

    def _report_speed(
        self, times: Times, step: int, compiled_s: float
    ) -> Iterator[Row]:
        config = self.config
        peak = cost.peak_flops(self.strategy)
        progress = Progress(config, self.objective, self.records, peak)
        metrics = progress.advance(times)
        seconds, tflops = 1 / metrics["steps_per_second"], metrics["tflops"]
        mfu = f", MFU {metrics['mfu']:.1%}" if peak else ""
        yield Row(
            OK,
            f"{seconds:.3g} s each, {metrics['tokens_per_second']:,.0f} "
            f"tokens/s; {tflops * seconds:.3g} TFLOP each, {tflops:.3g} "
            f"TFLOP/s{mfu}; compiled in {compiled_s:.0f} s",
        )
        left = config.training.num_train_steps - step
        hours = seconds * left / 3600
        yield Row(
            OK,
            f"{left:,} steps in about {hours:.3g} hours ({hours / 24:.2g} "
            "days), without checkpoints and evaluations",
            name="complete run",
        )


def _train(trainer: Trainer, number: int) -> None:
    """Trains and times some steps, and saves nothing."""
    position = trainer.position
    trainer.clear_sums()
    try:
        trainer.advance(position.step + number)
    except READING_ERRORS as error:
        explain_failed_read(error, trainer.host.strategy, trainer.records)


@contextlib.contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """Collects the warnings of a block instead of logging them."""
    messages: list[str] = []

    def capture(record: python_logging.LogRecord) -> bool:
        is_warning = record.levelno >= python_logging.WARNING
        if is_warning:
            messages.append(record.getMessage())
        return not is_warning

    logger = logging.get_absl_logger()
    logger.addFilter(capture)
    try:
        yield messages
    finally:
        logger.removeFilter(capture)
