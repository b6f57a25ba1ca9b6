"""A pretraining run, from top to bottom.

1. data and the run's directory; 2. devices; 3. model and optimizer; 4. state:
restored from the newest checkpoint, if there is one; 5. the loop: an outer
Python loop around `train_steps`, one `tf.function` that makes `steps_per_loop`
updates without coming back to the host; 6. the end.

Keras 3 supplies the layers, not the loop: its `fit`, its clipping and its
gradient accumulation are wrong or crash under strategies.
"""

import dataclasses
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf import (
    checkpoints,
    distribution,
    evaluate,
    input_pipeline,
    schedules,
)
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.run_log import Progress, RunLog
from albert_tf.train_step import (
    Steps,
    StepSettings,
    TrainState,
    figure_names,
    make_state,
    make_train_steps,
)


@dataclasses.dataclass
class StopRequest:
    """Set by Ctrl-C or SIGTERM; the loop ends at its next boundary.

    Attributes:
        signal_number: The signal received; 0 for none.
    """

    signal_number: int = 0


def train(config: PretrainingConfig) -> int:
    """Trains, or goes on training, until `num_train_steps`.

    Returns:
        0, or 128 + the signal that ended it early, after a checkpoint.

    Raises:
        UserError: For settings, records or checkpoints that do not fit.
    """
    # 1. Data and the run's directory, before any device is touched.
    records = input_pipeline.find_records(
        "input_file", config.data.input_file, config
    )
    held_out = None
    if config.data.eval_input_file:
        held_out = input_pipeline.find_held_out(config)
        input_pipeline.check_held_out(records, held_out)
    checkpoints.check_run_dir(config, records)

    # 2. Devices.
    strategy = distribution.make_strategy(config.distribution)
    num_replicas = strategy.num_replicas_in_sync
    per_replica_batch_size = distribution.per_replica_batch_size(
        "global_batch_size",
        config.data.global_batch_size,
        num_replicas,
        config.data.gradient_accumulation_steps,
    )
    if held_out is not None:
        distribution.per_replica_batch_size(
            "eval_batch_size", config.data.eval_batch_size, num_replicas
        )
    is_chief = distribution.is_chief(strategy)
    if is_chief:
        checkpoints.write_run_dir(config, records)
    else:
        logging.set_verbosity(logging.WARNING)

    # 3. Model and optimizer.
    with strategy.scope():
        state = make_state(config)
        train_steps = make_train_steps(strategy, state, config)
    evaluator = None
    if held_out is not None:
        evaluator = evaluate.Evaluator(
            strategy, state.pretrainer, held_out, config
        )

    # 4. State.
    store = checkpoints.CheckpointStore(
        config.training.output_dir,
        state.variables(),
        config.training.keep_checkpoint_max,
        writes=is_chief,
    )
    restored = store.restore()
    step = int(state.step.read_value())
    logging.info(
        "%s at step %d of %d",
        f"continuing from {restored}" if restored else "starting",
        step,
        config.training.num_train_steps,
    )
    _log_summary(config, records, state, num_replicas, per_replica_batch_size)

    # 5. The loop.
    batches = iter(
        strategy.distribute_datasets_from_function(
            input_pipeline.training_dataset(
                records, config.data, config.training.seed, step
            )
        )
    )
    run_log = RunLog(config.training.output_dir, step) if is_chief else None
    progress = Progress(
        config.training.num_train_steps,
        config.data.global_batch_size * config.data.max_seq_length,
    )
    rates_in_program = None
    evaluated_at = -1
    with _stop_on_signal(distribution.is_one_process(strategy)) as stop:
        while step < config.training.num_train_steps:
            rates = schedules.dropout_rates(step, config)
            if rates != rates_in_program:
                logging.info("tracing the step with dropout %s", rates)
            num_steps = _next_boundary(step, config) - step
            figures = _run_steps(
                train_steps,
                batches,
                num_steps,
                StepSettings(rates),
                config,
                records,
            )
            step += num_steps
            timing = progress.advance(num_steps, rates == rates_in_program)
            rates_in_program = rates
            figures["dropout"] = rates.hidden
            # The loss is that of the weights before the last update, the
            # gradient is what that update was made of.
            if not math.isfinite(figures["loss"] + figures["gradient_norm"]):
                raise UserError(
                    f"loss and gradients must be finite at step {step}",
                    received=f"{figures['loss']} and, as the gradients' norm, "
                    f"{figures['gradient_norm']}",
                    remedy="Lower --learning_rate (the paper's 0.00176 is "
                    "for a batch of 4096; scale it by the root of the batch) "
                    "and start again; checkpoints were kept.",
                )
            if run_log:
                progress.log(step, {**figures, **timing})
                run_log.write("train", step, {**figures, **timing})

            # The evaluation comes first, so that a run cut short between
            # the two repeats it rather than missing it.
            at_end = step == config.training.num_train_steps
            if evaluator and (
                at_end or _falls_on(step, config.training.eval_every_n_steps)
            ):
                evaluator.run_and_log(step, run_log)
                evaluated_at = step
            if (
                at_end
                or stop.signal_number
                or _falls_on(step, config.training.save_checkpoints_steps)
            ):
                path = store.save(step)
                logging.info("saved %s", path)
            progress.pause()
            if stop.signal_number and not at_end:
                logging.warning(
                    "stopped by signal %d at step %d; the same command "
                    "goes on from here",
                    stop.signal_number,
                    step,
                )
                return 128 + stop.signal_number

    # 6. The end.
    if evaluator and evaluated_at != step:  # a finished run, started again
        evaluator.run_and_log(step, None)
    logging.info(
        "finished %d steps; the run is in %s",
        step,
        config.training.output_dir,
    )
    return 0


def _run_steps(
    train_steps: Callable[..., Steps],
    batches: Any,
    num_steps: int,
    settings: StepSettings,
    config: PretrainingConfig,
    records: input_pipeline.Records,
) -> dict[str, float]:
    totals = {name: tf.constant(0.0) for name in figure_names(config)}
    try:
        steps = train_steps(batches, totals, tf.constant(num_steps), settings)
        means = {
            name: float(total) / num_steps
            for name, total in steps.totals.items()
        }
        return {**means, "learning_rate": float(steps.learning_rate)}
    except tf.errors.DataLossError as error:
        raise UserError(
            f"the records of {records.directory} must be whole",
            received=str(error.message).splitlines()[0],
            remedy="Build or copy that shard again; the run goes on from its "
            "last checkpoint.",
        ) from None


def _next_boundary(step: int, config: PretrainingConfig) -> int:
    """The step at which the program comes back to the host.

    A function of the step alone, so that a continued run cuts its loops,
    and so its log, as one that was never stopped.
    """
    training = config.training
    every = (
        training.steps_per_loop,
        training.save_checkpoints_steps,
        training.eval_every_n_steps,
    )
    boundaries = [(step // n + 1) * n for n in every if n]
    change = schedules.next_dropout_change(step, config)
    if change is not None:
        boundaries.append(change)
    return min(*boundaries, training.num_train_steps)


def _falls_on(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


@contextmanager
def _stop_on_signal(enabled: bool) -> Iterator[StopRequest]:
    """Turns SIGINT and SIGTERM into a request, and back at the end.

    Python's own handlers wait until the loop on the device has ended, so a
    thread listens: it answers at once, and a second signal ends the process.
    Several processes would not stop at the same step, so theirs is left to
    the scheduler.
    """
    request = StopRequest()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield request
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen() -> None:
        while received := receiver.recv(1):
            number = received[0]
            if request.signal_number:
                os._exit(128 + number)
            request.signal_number = number
            logging.warning(
                "signal %d: stopping, with a checkpoint, when this loop of at "
                "most steps_per_loop updates has ended; a second signal ends "
                "the process at once",
                number,
            )

    numbers = (signal.SIGINT, signal.SIGTERM)
    # The handlers do nothing: that they are there makes Python write the
    # number to the socket.
    previous = {n: signal.signal(n, lambda *_: None) for n in numbers}
    previous_descriptor = signal.set_wakeup_fd(sender.fileno())
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(previous_descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)
        sender.close()
        listener.join()
        receiver.close()


def _log_summary(
    config: PretrainingConfig,
    records: input_pipeline.Records,
    state: TrainState,
    num_replicas: int,
    per_replica_batch_size: int,
) -> None:
    logging.info("configuration: %s", config.to_dict())
    logging.info(
        "%d parameters; batch %d = %d replicas x %d examples in %d parts",
        sum(math.prod(v.shape) for v in state.pretrainer.trainable_variables),
        config.data.global_batch_size,
        num_replicas,
        per_replica_batch_size,
        config.data.gradient_accumulation_steps,
    )
    logging.info(
        "%d records in %d files, %s masking; %.1f steps an epoch",
        records.num_examples,
        len(records.files),
        records.masking,
        records.num_examples / config.data.global_batch_size,
    )
    if records.metadata is not None:
        logging.info(
            "unigram entropy of the corpus: %.3f nats, the masked-LM loss "
            "of frequencies alone",
            records.metadata.unigram_entropy_nats,
        )
