"""`--dry_run`: checks everything that a run needs, without starting the run.

The checks run in the order of the printed table. A failed check skips only the
checks that need its result. The last check trains real steps with the real
program on the real devices, from the weights that the run would start or resume
from. All files that the checks write are removed.
"""

import os
import posixpath

import tensorflow as tf
from absl import logging

from albert_tf.cluster import versions
from albert_tf.cluster.strategy import (
    device_type,
    devices_per_host,
    make_strategy,
    per_replica_batch_size,
)
from albert_tf.cluster.watchdog import guarded
from albert_tf.cluster.workers import is_one_process
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import TrainingData
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoint_files import CHECKPOINTS_DIR, list_checkpoints
from albert_tf.runs.rollback import find_divergence
from albert_tf.training import cost, schedules, storage_checks
from albert_tf.training.checklist import (
    FAIL,
    OK,
    WARN,
    Checklist,
    format_bytes,
)
from albert_tf.training.objective import InitialWeights, Objective
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.storage_checks import StorageChecks
from albert_tf.training.trainer import Trainer
from albert_tf.training.trial_steps import Timed, try_steps

# Waiting for batches for more than this fraction of the time gets a warning.
WAITING_FRACTION = 0.1
# Relative difference allowed between the loss of random weights and that of
# uniform predictions.
CHANCE_TOLERANCE = 0.1

TO_SAVE_MEMORY = (
    "Raise --gradient_accumulation_steps, or pass --remat or "
    "--precision=mixed_bfloat16, or use a smaller batch."
)


# Default remedies by check, for errors without a remedy. The objective has
# those of records.
REMEDIES = {
    "versions": "Install the versions that setup.py requires.",
    "file systems": storage_checks.REMEDY,
    "output": "Choose another --output_dir, or fix its permissions.",
    "room": "Choose another --output_dir.",
    "run": "Choose another --output_dir.",
    "learning rate": "Set --learning_rate.",
    "devices": "Choose another --strategy.",
    "initial weights": "Choose another --init_checkpoint.",
    "batch": "Choose another --global_batch_size.",
    "memory": TO_SAVE_MEMORY,
    "workers": "See the tables of all workers.",
    "steps": "Fix the error, and rerun.",
}


def run(
    config: PretrainingConfig,
    objective: Objective | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> int:
    """Runs all checks and prints the table.

    Args:
        objective: The objective of the run; by default pretraining.
        strategy: Devices; None connects those of the settings.

    Returns:
        The exit status: 1 if a check failed.
    """
    preflight = Preflight(config, objective or Pretraining(config), strategy)
    try:
        return preflight.run()
    finally:
        preflight.clean_up()


class Preflight:
    """The checks, in order, and their results."""

    # Each is set by the check named on the right. Checks that read it need
    # that check.
    data: TrainingData  # records
    step: int  # run
    initial: InitialWeights | None  # initial weights
    strategy: tf.distribute.Strategy  # devices

    def __init__(
        self,
        config: PretrainingConfig,
        objective: Objective,
        strategy: tf.distribute.Strategy | None,
    ) -> None:
        self.config = config
        self._given_strategy = strategy
        self.objective = objective
        self._checks = Checklist(
            {**REMEDIES, **objective.remedies}, TO_SAVE_MEMORY
        )
        self._storage = StorageChecks(config, objective, self._checks)
        self._examples_per_row = 1.0  # until the records are read

    def clean_up(self) -> None:
        """Removes the directories that the checks have made."""
        self._storage.remove_directories()

    def run(self) -> int:
        """Runs all checks; returns the exit status."""
        storage = self._storage
        remote = ["file systems"] if storage.remote_paths() else []
        self._checks.run("versions", self._versions)
        if remote:
            self._checks.run("file systems", storage.check_file_systems)
        self._checks.run("output", storage.check_output, *remote)
        self._checks.run("room", storage.check_room, "output")
        self._checks.run("records", self._records, *remote)
        self._checks.run("held-out records", self._held_out, "records")
        self._checks.run("run", self._run, "records")
        self._checks.run("learning rate", self._learning_rate)
        self._checks.run("devices", self._devices)
        self._checks.run(
            "initial weights", self._initial_weights, "run", "devices"
        )
        self._checks.run("batch", self._batch, "devices")
        self._checks.run("memory", self._memory, "batch")
        self._checks.run("workers", self._workers, "devices")
        self._checks.run(
            "steps",
            self._steps,
            "records",
            "run",
            "initial weights",
            "batch",
            "workers",
        )
        if self._checks.num_failed:
            print(f"\n{self._checks.num_failed} failed: fix them and rerun")
            return 1
        print("\nnothing failed: the run can start")
        return 0

    def _versions(self) -> None:
        for found in versions.check_installed():
            verdict = FAIL if found.remedy else OK
            self._checks.add(verdict, found.name, found.version, found.remedy)

    def _records(self) -> None:
        data = self.objective.find_training_data()
        last_step = self.config.training.num_train_steps
        ends = [phase.first_step for phase in data.phases[1:]] + [last_step]
        for phase, end in zip(data.phases, ends, strict=True):
            records = phase.records
            epoch = records.num_records / self.config.data.global_batch_size
            steps = max(min(end, last_step) - phase.first_step, 0)
            self._checks.add(
                OK if epoch >= 1 else WARN,
                "records",
                f"{phase.name or 'input_file'}: {records.num_records:,} in "
                f"{len(records.files)} files, "
                f"{self.objective.describe_records(records)[0]}; "
                f"{epoch:,.1f} steps an epoch, {steps / epoch:,.1f} epochs",
                ""
                if epoch >= 1
                else "A batch holds some records more than once: lower "
                "--global_batch_size or build more records.",
            )
        self.data = data
        self._examples_per_row = data.at(0).records.examples_per_row

    def _held_out(self) -> None:
        held_out = self.objective.find_held_out(self.data)
        if held_out is None:
            self._checks.add(
                WARN,
                "held-out records",
                "none",
                self.objective.remedies.get("held-out records", ""),
            )
            return
        self._checks.add(OK, "held-out records", f"{held_out.num_records:,}")

    def _run(self) -> None:
        """Checks that the run can resume, if its directory holds one."""
        training = self.config.training
        run_directory.check(self.config, self.data)
        found = list_checkpoints(
            posixpath.join(training.output_dir, CHECKPOINTS_DIR)
        )
        self.step = found[-1].step if found else 0
        text = "a new run"
        if self.step >= training.num_train_steps:
            text = f"complete, at step {self.step:,}"
        elif found:
            text = f"resumes from step {self.step:,}"
        self._checks.add(OK, "run", text)

    def _initial_weights(self) -> None:
        """Checks that the model of `--init_checkpoint` fits the run."""
        self.initial = self.objective.initial_weights(self.data)
        lines = ["random"]
        if run_directory.has_checkpoints(self.config.training.output_dir):
            lines = ["from the newest checkpoint of the run"]
        if self.initial:
            lines = self.initial.describe()
        for line in lines:
            self._checks.add(OK, "initial weights", line)

    def _learning_rate(self) -> None:
        line, warning = schedules.describe_learning_rate(
            self.config, self._examples_per_row
        )
        line = line.removeprefix("learning rate ")
        self._checks.add(
            WARN if warning else OK, "learning rate", line, warning
        )

    def _devices(self) -> None:
        strategy = self._given_strategy or make_strategy(
            self.config.distribution
        )
        self.strategy = strategy
        self._checks.add(
            OK,
            "devices",
            f"{strategy.num_replicas_in_sync} replicas of "
            f"{type(strategy).__name__}, here on "
            f"{', '.join(strategy.extended.worker_devices)}",
        )

    def _batch(self) -> None:
        data = self.config.data
        replicas = self.strategy.num_replicas_in_sync
        per_replica = per_replica_batch_size(
            "global_batch_size",
            data.global_batch_size,
            replicas,
            data.gradient_accumulation_steps,
        )
        if data.eval_input_file:
            per_replica_batch_size(
                "eval_batch_size", data.eval_batch_size, replicas
            )
        self._checks.add(
            OK,
            "batch",
            f"{data.global_batch_size:,} = {replicas} replicas x "
            f"{per_replica:,} "
            f"{'examples' if data.packing == 'none' else 'rows'}, in "
            f"{data.gradient_accumulation_steps} micro-batches",
        )

    def _memory(self) -> None:
        """Compares an estimate with the memory of a host of CPUs.

        TPUs and GPUs report the memory that the steps need.
        """
        if device_type(self.strategy) != "CPU":
            return
        sizes = self.objective.memory_per_replica(
            self.strategy.num_replicas_in_sync
        )
        total = sum(sizes.values())
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        available = pages * size // devices_per_host(self.strategy)
        named = ", ".join(
            f"{n} {format_bytes(size)}" for n, size in sizes.items()
        )
        fits = total < available
        self._checks.add(
            OK if fits else WARN,
            "memory",
            f"each replica needs about {format_bytes(total)}: {named}; memory "
            f"of the device: {format_bytes(available)}",
            "" if fits else f"If the steps run out of memory: {TO_SAVE_MEMORY}",
        )

    def _workers(self) -> None:
        """Fails on all workers if a check failed on one of them.

        Otherwise the workers without a failure would train steps, and wait for
        the one that stopped.
        """
        if is_one_process(self.strategy):
            return

        def total() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            failed = tf.constant(float(self._checks.num_failed))
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, failed)

        with guarded(self.config.distribution, self.strategy):
            totals = tf.function(self.strategy.run)(total)
            failed = self.strategy.experimental_local_results(totals)[0]
        if failed > 0:
            where = (
                "this worker" if self._checks.num_failed else "other workers"
            )
            raise UserError(
                "all checks must pass on all workers before the workers train "
                "steps together",
                received=f"failed checks on {where}",
            )
        self._checks.add(OK, "workers", "no check failed on any worker")

    def _steps(self) -> None:
        """Trains real steps, and times them."""
        if self.step >= self.config.training.num_train_steps:
            self._checks.add(OK, "steps", "no step is left to train")
            return
        with guarded(self.config.distribution, self.strategy) as watchdog:
            trainer = Trainer(
                self.config,
                self.objective,
                self.data,
                self.strategy,
                watchdog=watchdog,
            )
            trainer.start(self.initial)
            step = trainer.position.step
            logging.info("compiling the step, then timing a few steps")
            first, timed = try_steps(trainer)
        # The lowest loss is None if the first step begins other records.
        self._judge_loss(first, step, trainer.position.lowest_loss)
        self._report_speed(first, timed, step)
        peak = format_bytes(cost.peak_memory_bytes())
        self._checks.add(
            OK,
            "memory in use",
            f"{peak} at its peak, of {cost.memory_owner()}",
        )

    def _judge_loss(
        self, first: Timed, step: int, lowest_loss: float | None
    ) -> None:
        """Checks the loss of the weights that the run starts from."""
        loss, norm = first.means["loss"], first.means["gradient_norm"]
        diverged = find_divergence(
            loss, norm, lowest_loss, self.config.training
        )
        if diverged:
            self._checks.add(FAIL, "loss", diverged, "Lower --learning_rate.")
            return
        text = f"{loss:.3f} at step {step}"
        chance = self.objective.chance_loss()
        if step or self.initial or chance is None:
            self._checks.add(OK, "loss", text)
            return
        near = abs(loss - chance) < CHANCE_TOLERANCE * chance
        self._checks.add(
            OK if near else FAIL,
            "loss",
            f"{text}, of random weights; uniform predictions give {chance:.3f}",
            ""
            if near
            else "Check that initializer_range in --albert_config_file is "
            "0.02, as in google-research/albert, and check the records with "
            "python -m data_prep.inspect_records.",
        )

    def _report_speed(self, first: Timed, timed: Timed, step: int) -> None:
        config, seconds = self.config, timed.seconds
        flops = self.objective.flops_per_step()
        sequences = config.data.global_batch_size * self.objective.num_sequences
        tokens = sequences * config.data.max_seq_length
        peak = cost.peak_flops(self.strategy, config.distribution)
        mfu = "MFU unknown: set --peak_tflops"
        if peak:
            mfu = f"MFU {flops / seconds / peak:.1%}"
        self._checks.add(
            OK,
            "steps",
            f"{seconds:.3g} s each, {tokens / seconds:,.0f} tokens/s; "
            f"{flops / 1e12:.3g} TFLOP each, {flops / seconds / 1e12:.3g} "
            f"TFLOP/s, {mfu}; compiled in {first.seconds:.0f} s",
        )
        slow = timed.waiting_fraction > WAITING_FRACTION
        self._checks.add(
            WARN if slow else OK,
            "input",
            f"{timed.waiting_fraction:.1%} of the time spent waiting for "
            "batches",
            "Move the records closer, or use a host with more CPU cores."
            if slow
            else "",
        )
        left = config.training.num_train_steps - step
        hours = seconds * left / 3600
        self._checks.add(
            OK,
            "complete run",
            f"{left:,} steps in about {hours:.3g} hours "
            f"({hours / 24:.2g} days), without checkpoints and "
            "evaluations",
        )
