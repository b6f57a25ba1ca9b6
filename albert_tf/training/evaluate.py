"""Evaluation on held-out records, each counted once, over all replicas."""

import json
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from tqdm import tqdm

from albert_tf.cluster.host import Host, connect
from albert_tf.cluster.runtime import ReplicaFunction
from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.config import PretrainingConfig
from albert_tf.input import pipeline as input_pipeline
from albert_tf.input.record_format import Batch, explained_reads
from albert_tf.input.record_sets import RecordSet
from albert_tf.modeling.dropout import NO_DROPOUT
from albert_tf.modeling.target import ProgramTarget
from albert_tf.runs import directory as run_directory
from albert_tf.runs.log import RunLog
from albert_tf.training.objective import Objective, Scalars
from albert_tf.training.pretraining import Pretraining


class Evaluator:
    """Evaluates a model on held-out records, each counted once.

    Args:
        host: Its strategy is the one in whose scope the model was made. After
            a request to stop one process, the evaluation ends in all.
        objective: Losses, metrics and format of the records.
    """

    def __init__(
        self,
        host: Host,
        model: keras.layers.Layer,
        objective: Objective,
        held_out: RecordSet,
        config: PretrainingConfig,
    ) -> None:
        self._host = host
        self._config = config
        self._objective = objective
        self._held_out = held_out
        make_dataset, self._num_batches = input_pipeline.evaluation_dataset(
            held_out, config.data, objective.record_format(held_out)
        )
        self._batches = host.strategy.distribute_datasets_from_function(
            make_dataset
        )
        target = ProgramTarget.from_config(
            config.distribution, host.runtime.cluster.device_type
        )
        function = _make_function(model, objective, target)
        self._evaluate_batch = host.runtime.compile(function, host.stop_flag)

    def collect(
        self,
    ) -> tuple[dict[str, float], dict[str, np.ndarray]] | None:
        """The arguments of `Objective.evaluate`, of the model as it is now.

        None if a request to stop cut the evaluation short.

        Raises:
            UserError: If a shard is damaged; the error names it.
            RetryError: If reading failed, but all records are intact.
        """
        totals: dict[str, float] = {}
        collected: dict[str, list[np.ndarray]] = {}
        batches = tqdm(
            range(self._num_batches),
            "evaluating held-out records",
            unit="batch",
            mininterval=5,
            leave=False,
        )
        limit = self._host.watchdog.limit
        with explained_reads(self._host, self._held_out):
            with limit("opening the held-out records"):
                iterator = iter(self._batches)
            for _ in batches:
                # The loop requests no batch after the last one: on a TPU slice,
                # such a request would log an error of another host.
                with limit("a batch of the evaluation"):
                    sums, predictions = self._evaluate_batch(next(iterator))
                    for name, value in sums.items():
                        # Python floats: float32 cannot count beyond 2^24.
                        totals[name] = totals.get(name, 0.0) + float(value)
                    for name, value in predictions.items():
                        collected.setdefault(name, []).append(np.asarray(value))
                if totals["stops"]:
                    return None
        # The last batch may end in padding examples, which are dropped here.
        return totals, {
            name: np.concatenate(values)[: self._held_out.num_records]
            for name, values in collected.items()
        }

    def run_and_log(
        self, step: int, run_log: RunLog | None
    ) -> dict[str, float] | None:
        """Logs and returns the metrics of the model as it is now.

        None if a request to stop cut the evaluation short.
        """
        began = time.monotonic()
        collected = self.collect()
        if collected is None:
            logging.warning("evaluation at step %d was cut short", step)
            return None
        metrics = self._objective.evaluate(*collected)
        first, *others = self._objective.describe_evaluation(
            metrics, self._held_out
        )
        logging.info("eval at step %d: %s", step, first)
        for line in others:
            logging.info("%s", line)
        if run_log:
            seconds = time.monotonic() - began
            timed = {**metrics, "evaluation_seconds": seconds}
            run_log.write("eval", step, timed)
        return metrics


def _make_function(
    model: keras.layers.Layer, objective: Objective, target: ProgramTarget
) -> ReplicaFunction:
    """The evaluation of a batch on one replica, for `Runtime.compile`."""

    @tf.autograph.experimental.do_not_convert
    def compute(batch: Batch) -> tuple[Scalars, dict[str, tf.Tensor]]:
        outputs = model(batch, dropout=NO_DROPOUT, target=target)
        sums = objective.sums(outputs, batch)
        return sums, objective.predictions(outputs, batch)

    if target.jit_compile:
        compute = tf.function(compute, jit_compile=True)

    @tf.autograph.experimental.do_not_convert
    def evaluate_on_replica(
        batch: Batch, stop: tf.Tensor | None = None
    ) -> tuple[Scalars, dict[str, tf.Tensor]]:
        replica = tf.distribute.get_replica_context()
        sums, predictions = compute(batch)
        if stop is not None:
            # Only values made on the replica can be reduced.
            sums = {**sums, "stops": tf.identity(stop)}
        sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, sums)
        return sums, {
            name: replica.all_gather(value, axis=0)
            for name, value in predictions.items()
        }

    return evaluate_on_replica


def evaluate_run(
    config: PretrainingConfig,
    make_objective: Callable[[Any], Objective] = Pretraining,
) -> None:
    """Evaluates a checkpoint of `--output_dir` and prints JSON.

    Raises:
        UserError: If there is no checkpoint, or it does not fit the settings.
        RetryError: For lost workers and hosts.
    """
    config.require("eval_input_file")
    run_dir = config.training.output_dir
    objective = make_objective(config)
    held_out = objective.find_held_out()
    assert held_out is not None
    run_directory.check_evaluation(config, held_out)
    with connect(config.distribution) as host:
        num_replicas = host.strategy.num_replicas_in_sync
        per_replica_batch_size(config.data, num_replicas, "eval_batch_size")
        with host.watchdog.limit("the start of the evaluation"):
            with host.strategy.scope():
                # The model comes from the settings of the run, not from the
                # flags.
                trained = run_directory.load_config(run_dir, type(config))
                model = make_objective(trained).make_model()
                step = run_directory.restore_model(
                    run_dir, model, config.training.checkpoint_step
                )
            evaluator = Evaluator(host, model, objective, held_out, config)
        metrics = evaluator.run_and_log(step, None)
    assert metrics is not None, "no stop flag was given"
    print(json.dumps({"step": step, **metrics}))
