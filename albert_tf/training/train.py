"""A run, from top to bottom.

`train` does four things:

1. It checks records and run directory.
2. It connects the devices.
3. It opens the run (`open_run`).
4. It trains (`run.Run.train`).

The weights at a step are a function of the settings, the seed and the rollbacks
in the run directory (`runs.rollback`). So a run can be killed at any moment and
resumed, with the same result.

Keras 3 supplies the layers, not the loop: under strategies, its `fit`, its
clipping and its gradient accumulation give wrong results or crash.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster import versions, workers
from albert_tf.cluster.host import Host, connect
from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.cluster.workers import check_agreement
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import RecordSet, TrainingData
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoint_files import CHECKPOINTS_DIR, Checkpoint
from albert_tf.runs.log import RunLog, read_events
from albert_tf.training import cost, schedules
from albert_tf.training.evaluate import Evaluator
from albert_tf.training.objective import InitialWeights, Objective
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.progress import BatchContent, Progress
from albert_tf.training.run import Run
from albert_tf.training.trainer import Trainer


def train(
    config: PretrainingConfig,
    objective: Objective | None = None,
    strategy: tf.distribute.Strategy | None = None,
    began: float | None = None,
) -> int:
    """Trains, or resumes training, until `num_train_steps`.

    Args:
        objective: The objective of the run; by default pretraining.
        strategy: Devices; None connects those of the settings.
        began: When the command began, in seconds since the epoch; None: now.
            The log counts the time from then on as start-up.

    Returns:
        The exit status: 0 after the last step. A request to stop saves a
        checkpoint and returns another status; see `cluster.preemption`.

    Raises:
        UserError: For settings, records or checkpoints that do not fit, for
            settings that ask for something else than training, and for a run
            that diverges.
        RetryError: For lost workers and hosts.
    """
    began = began or time.time()
    _check_trains(config)
    objective = objective or Pretraining(config)
    # 1. Records and run directory, before any device is touched.
    data = objective.find_training_data()
    held_out = objective.find_held_out(data)
    run_directory.check(config, data)

    # 2. Devices.
    with connect(config.distribution, strategy, can_stop=True) as host:
        # After the devices: reading weights starts TensorFlow, and the cluster
        # and logical CPUs must be configured before.
        initial = objective.initial_weights(data)
        # 3. The run: resumed, warm-started or fresh. 4. The loop.
        with host.owning(config.training.output_dir) as host:
            with host.watchdog.limit("the start of the run"):
                run = open_run(
                    config, objective, data, held_out, host, initial, began
                )
            return run.train()


def _check_trains(config: PretrainingConfig) -> None:
    """Checks that the settings ask for training, and say where."""
    config.require("output_dir")
    training = config.training
    if training.dry_run:
        raise UserError(
            "train() needs dry_run=False",
            received="dry_run=True",
            remedy="For a dry run, use the command with --dry_run.",
        )
    if training.mode not in ("train", "train_and_predict"):
        raise UserError(
            "train() needs mode=train",
            received=f"mode={training.mode}",
            remedy="For other modes, use the command with --mode.",
        )


def _check_lanes(config: PretrainingConfig, num_hosts: int) -> None:
    """Warns if several hosts read the same lane."""
    num_lanes = config.data.input_lanes
    if num_hosts > num_lanes:
        logging.warning(
            "each of %d hosts reads at least %.2g times the records that it "
            "needs, because it shares one of input_lanes=%d streams: set "
            "--input_lanes to a multiple of %d in new runs",
            num_hosts,
            num_hosts / num_lanes,
            num_lanes,
            num_hosts,
        )


def open_run(
    config: PretrainingConfig,
    objective: Objective,
    data: TrainingData,
    held_out: RecordSet | None,
    host: Host,
    initial: InitialWeights | None = None,
    began: float | None = None,
) -> Run:
    """Opens a run: resumes it, or starts a new one.

    Args:
        initial: Weights that a new run starts from; None for random ones.
        began: When the start-up began, in seconds since the epoch; None: now.
    """
    began = began or time.time()
    _check_batches(config, held_out, host)
    if objective.reads_lanes:
        _check_lanes(config, workers.num_hosts(host.strategy))
    if not host.is_chief:
        logging.set_verbosity(logging.WARNING)
    # Model, optimizer and program.
    trainer = Trainer(config, objective, data, host)
    evaluator = None
    if held_out is not None:
        model = trainer.state.model
        evaluator = Evaluator(host, model, objective, held_out, config)
    # Variables and position: from the newest checkpoint; or else from another
    # model, at step 0; or else random, at step 0.
    restore_began = time.monotonic()
    resumed = trainer.start(initial)
    restore_s = time.monotonic() - restore_began
    position = trainer.position
    check_agreement(host.strategy, position.step)
    # The settings, which now have been found to fit the checkpoint, and the
    # log. Lines of steps after the checkpoint are dropped.
    run_log = None
    if host.writes:
        run_directory.write(config, data)
        run_log = RunLog.open(
            config.training.output_dir,
            position.step,
            position.to_evaluate,
            position.num_steps,
            host.owner,
        )
    run = Run(trainer, evaluator, run_log, _make_progress(trainer, began))
    times = {
        "start_up_s": time.time() - began - restore_s,
        "restore_s": restore_s,
    }
    _log_start(run, resumed, initial, times)
    _log_summary(trainer)
    # A new run saves its first checkpoint, to which a rollback may return. If
    # it cannot be written, the run ends before training.
    if resumed is None:
        if host.writes:
            objective.write_report(config.training.output_dir, initial)
        run.save()
        run.finish_saving(CHECKPOINTS_DIR)
    return run


def _check_batches(
    config: PretrainingConfig, held_out: RecordSet | None, host: Host
) -> None:
    """Checks that batches are divisible by the number of replicas."""
    num_replicas = host.strategy.num_replicas_in_sync
    per_replica_batch_size(
        "global_batch_size",
        config.data.global_batch_size,
        num_replicas,
        config.data.gradient_accumulation_steps,
    )
    if held_out is not None:
        per_replica_batch_size(
            "eval_batch_size", config.data.eval_batch_size, num_replicas
        )


def _make_progress(trainer: Trainer, began: float) -> Progress:
    config, objective = trainer.config, trainer.objective

    def content_at(step: int) -> BatchContent:
        rows = config.data.global_batch_size
        records = trainer.data.at(step).records
        return BatchContent(
            rows * objective.num_sequences * config.data.max_seq_length,
            rows * records.examples_per_row,
            records.useful_share,
        )

    return Progress(
        config.training.num_train_steps,
        content_at,
        objective.flops_per_step(),
        cost.peak_flops(trainer.host.strategy, config.distribution),
        config.training.output_dir,
        objective.describe,
        began,
    )


def _log_start(
    run: Run,
    resumed: Checkpoint | None,
    initial: InitialWeights | None,
    times: Mapping[str, float],
) -> None:
    """Logs where the run starts, with which software, and its event."""
    position, training = run.position, run.config.training
    logging.info(
        "%s at step %d of %d",
        f"continuing from {resumed.path}" if resumed else "starting",
        position.step,
        training.num_train_steps,
    )
    software = versions.software()
    if run.run_log:
        _log_software(software, training.output_dir)
    facts: dict[str, Any] = {**times, "software": software}
    if resumed:
        lost_s = 0.0
        if run.run_log:
            # The next line includes the time before the checkpoint.
            lost_s = max(run.run_log.lost_seconds - position.times.total, 0.0)
        run.log_event("resume", **facts, lost_s=lost_s)
    elif initial:
        run.log_event("start", **facts, warm_start=initial.report)
    else:
        run.log_event("start", **facts)


def _log_software(software: Mapping[str, str], run_dir: str) -> None:
    """Logs versions and compiler flags, and warns if the run had others."""
    logging.info(
        "software: %s",
        ", ".join(f"{name} {value}" for name, value in software.items()),
    )
    earlier = [
        event["software"]
        for event in read_events(run_dir)
        if "software" in event
    ]
    if not earlier or earlier[-1] == software:
        return
    before = earlier[-1]
    logging.warning(
        "the run continues with other software (%s): its results may differ "
        "in rounding from those of a run that was not stopped",
        ", ".join(
            f"{name}: {before.get(name, 'none')} before, "
            f"now {software.get(name, 'none')}"
            for name in sorted({*before, *software})
            if before.get(name) != software.get(name)
        ),
    )


def _log_summary(trainer: Trainer) -> None:
    """Logs settings, sizes, learning rate and records."""
    config, data = trainer.config, trainer.data
    num_replicas = trainer.host.strategy.num_replicas_in_sync
    logging.info("configuration: %s", config.to_dict())
    variables = trainer.state.model.trainable_variables
    records = data.at(trainer.position.step).records
    is_packed = records.packing != "none"
    logging.info(
        "%d parameters; batch %d = %d replicas x %d %s in %d micro-batches%s",
        sum(math.prod(v.shape) for v in variables),
        config.data.global_batch_size,
        num_replicas,
        config.data.global_batch_size // num_replicas,
        "rows" if is_packed else "examples",
        config.data.gradient_accumulation_steps,
        f"; {config.data.global_batch_size} rows hold "
        f"{config.data.global_batch_size * records.examples_per_row:.0f} "
        "examples on average"
        if is_packed
        else "",
    )
    line, warning = schedules.describe_learning_rate(
        config, records.examples_per_row
    )
    logging.info("%s", line)
    if warning:
        logging.warning("%s", warning)
    for phase in data.phases:
        records = phase.records
        logging.info(
            "from step %d, %s: %d records in %d files; %.1f steps per epoch; "
            "%s",
            phase.first_step,
            phase.name or "input_file",
            records.num_records,
            len(records.files),
            records.num_records / config.data.global_batch_size,
            "; ".join(trainer.objective.describe_records(records)),
        )
