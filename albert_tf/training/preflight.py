"""`--dry_run`: checks everything that a run needs, without starting the run.

A failed check skips only the checks that need its result. The last one trains
real steps on the real devices, from the weights that the run would start from.
No file is left.
"""

import contextlib
import os
import posixpath
import socket
from collections.abc import Callable

import tensorflow as tf

from albert_tf.cluster import devices, versions
from albert_tf.cluster.host import connect
from albert_tf.cluster.pjrt import TO_SAVE_MEMORY
from albert_tf.cluster.runtime import runtime_of
from albert_tf.cluster.strategy import (
    make_strategy,
    per_replica_batch_size,
)
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import RecordSet
from albert_tf.io import faults
from albert_tf.io.artifact import check_writable
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import Checkpoint
from albert_tf.training import cost
from albert_tf.training.objective import Objective
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.progress import Progress
from albert_tf.training.train import Trainer, find_divergence, log_summary
from albert_tf.training.warm_start import WarmStart

TIMED_SECONDS, TIMED_STEPS = 10.0, 20  # the smaller of both


def run(
    config: PretrainingConfig,
    objective: Objective | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> int:
    """Runs all checks and prints the table; returns 1 if one failed."""
    return _Preflight(config, objective or Pretraining(config), strategy).run()


class _Preflight:
    # Set by the checks "records", "devices" and "run".
    records: RecordSet
    strategy: tf.distribute.Strategy
    checkpoints: list[Checkpoint]
    initial: WarmStart | None

    def __init__(
        self,
        config: PretrainingConfig,
        objective: Objective,
        strategy: tf.distribute.Strategy | None,
    ) -> None:
        self.config = config
        self.objective = objective
        self._given_strategy = strategy
        self._num_failed = 0
        self._passed: set[str] = set()

    def run(self) -> int:
        self._check("versions", self._versions)
        self._check("output", self._output)
        self._check("records", self._records)
        self._check("devices", self._devices)
        self._check("run", self._run, "records", "devices")
        self._check("workers", self._workers, "devices")
        self._check("steps", self._steps, "run", "workers")
        failed = f"{self._num_failed} failed: fix them and rerun"
        print(failed if self._num_failed else "the run can start")
        return min(self._num_failed, 1)

    def _check(self, name: str, check: Callable[[], str], *needed: str) -> None:
        """Runs a check, and prints its row; it fails if it raises an error.

        It is skipped unless the checks that it `needed` have passed.
        """
        missing = [name for name in needed if name not in self._passed]
        if missing:
            _print("skip", name, f"not checked, needs: {', '.join(missing)}")
            return
        try:
            text = check()
        except (UserError, OSError, tf.errors.OpError) as error:
            self._num_failed += 1
            known = faults.explain_any(error)
            remedy = known.remedy
            if isinstance(error, tf.errors.ResourceExhaustedError):
                remedy = TO_SAVE_MEMORY
            _print("FAIL", name, known.fault, remedy)
        else:
            self._passed.add(name)
            _print("ok", name, text)

    def _versions(self) -> str:
        found = versions.software()
        return ", ".join(f"{name} {value}" for name, value in found.items())

    def _output(self) -> str:
        """Writes and removes a file in the run directory, or in its parent."""
        directory = self.config.training.output_dir
        # Other workers may do the same at the same time.
        name = f"dry-run-{socket.gethostname()}-{os.getpid()}"
        check_writable(posixpath.join(directory, name))
        return f"{directory} can be written to"

    def _records(self) -> str:
        self.records = self.objective.find_training_data()
        held_out = self.objective.find_held_out(self.records)
        number = self.records.num_records
        epoch = number / self.config.data.global_batch_size
        epochs = self.config.training.num_train_steps / epoch
        repeats = " (A BATCH HOLDS SOME RECORDS TWICE)" if epoch < 1 else ""
        return (
            f"{number:,} in {len(self.records.files)} files, "
            f"{self.objective.describe_records(self.records)[0]}; "
            f"{epoch:,.1f} steps an epoch{repeats}, {epochs:,.1f} epochs; "
            f"held-out: {held_out.num_records if held_out else 'none'}"
        )

    def _devices(self) -> str:
        data = self.config.data
        self.strategy = self._given_strategy or make_strategy(
            self.config.distribution
        )
        replicas = self.strategy.num_replicas_in_sync
        per_replica = per_replica_batch_size(data, replicas)
        if data.eval_input_file:
            per_replica_batch_size(data, replicas, "eval_batch_size")
        cluster = runtime_of(self.strategy).cluster
        on_gpus = cluster.device_type == "GPU"
        used = len(cluster.device_names) if on_gpus else 0
        fits, gpus = devices.describe_gpus(self.config.distribution, used)
        if not fits:
            raise UserError(
                gpus,
                remedy="CUDA_VISIBLE_DEVICES selects GPUs; docs/gpu.md has the "
                "packages for CUDA. --strategy=one_device uses one.",
            )
        unit = "examples" if data.packing == "none" else "rows"
        return (
            f"{data.global_batch_size:,} = {replicas} replicas x "
            f"{per_replica:,} {unit}, in {data.gradient_accumulation_steps} "
            f"micro-batches; {type(self.strategy).__name__}, here on "
            f"{', '.join(cluster.device_names)}; {gpus}"
        )

    def _run(self) -> str:
        """Checks the run to resume, or the model that it starts from."""
        self.checkpoints = run_directory.check(self.config, self.records)
        self.initial = None
        if not self.checkpoints:
            self.initial = self.objective.initial_weights(self.records)
            lines = self.initial.describe() if self.initial else ["random"]
            return f"a new run, weights: {'; '.join(lines)}"
        step = self.checkpoints[-1].step
        if step >= self.config.training.num_train_steps:
            return f"complete, at step {step:,}"
        return f"resumes from step {step:,}"

    def _workers(self) -> str:
        """Fails on all workers if a check failed on one of them.

        Otherwise the others would wait for it in their first step.
        """
        runtime = runtime_of(self.strategy)
        if runtime.cluster.num_processes == 1:
            return "one process"
        with connect(self.config.distribution, self.strategy):
            (failed,) = runtime.sum_over_replicas([self._num_failed])
            if failed:
                # A worker that ended at once could end this sum for another.
                # The failure of the next sum, which only waits, is no news.
                with contextlib.suppress(Exception):
                    runtime.sum_over_replicas([0.0])
        if failed:
            where = "this worker" if self._num_failed else "other workers"
            raise UserError(
                "all checks must pass on all workers before the workers train "
                "steps together",
                received=f"failed checks on {where}",
                remedy="See the tables of all workers.",
            )
        return "no check failed on any worker"

    def _steps(self) -> str:
        """Trains real steps, checks the loss of the first, and times others."""
        last_step = self.config.training.num_train_steps
        if self.checkpoints and self.checkpoints[-1].step >= last_step:
            return "no step is left to train"
        with connect(self.config.distribution, self.strategy) as host:
            trainer = Trainer(self.config, self.objective, self.records, host)
            trainer.start(self.initial)
            log_summary(trainer)
            position = trainer.position
            first_step = position.step  # of the newest intact checkpoint
            trainer.advance(position.step + 1)
            loss = self._check_loss(trainer, first_step)
            compiled_s = trainer.times.total
            trainer.clear_sums()
            trainer.advance(position.step + 1)
            number = int(TIMED_SECONDS / trainer.times.total)
            trainer.clear_sums()
            trainer.advance(position.step + min(max(number, 2), TIMED_STEPS))
        peak = cost.peak_flops(self.strategy)
        progress = Progress(self.config, self.objective, self.records, peak)
        metrics = progress.advance(trainer.times)
        seconds = 1 / metrics["steps_per_second"]
        left = last_step - first_step
        mfu = f", MFU {metrics['mfu']:.1%}" if peak else ""
        return (
            f"{seconds:.3g} s each, {metrics['tokens_per_second']:,.0f} "
            f"tokens/s, {metrics['tflops']:.3g} TFLOP/s{mfu}; compiled in "
            f"{compiled_s:.0f} s; {left:,} steps in about "
            f"{seconds * left / 3600:.3g} hours, without checkpoints and "
            f"evaluations; {loss}"
        )

    def _check_loss(self, trainer: Trainer, step: int) -> str:
        """Checks the loss of the weights that the run starts from."""
        means, lowest = trainer.position.means(), trainer.position.lowest_loss
        diverged = find_divergence(means, lowest, self.config.training)
        if diverged:
            raise UserError(diverged, remedy="Lower --learning_rate.")
        text = f"loss {means['loss']:.3f} at step {step}"
        chance = self.objective.chance_loss()
        if chance is not None:
            text += f"; uniform predictions give {chance:.3f}"
        return text


def _print(verdict: str, name: str, text: str, remedy: str = "") -> None:
    """Prints a row of the table, and what to do."""
    print(f"{verdict:4}  {name:16}  {' '.join(text.split())}")
    if remedy:
        print(f"{'':4}  {'':16}  -> {' '.join(remedy.split())}", flush=True)
