"""Held-out evaluation: each record once, weighed over all replicas."""

import json
from collections.abc import Mapping

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from albert_tf.cluster.strategy import (
    device_type,
    fuses,
    make_strategy,
    per_replica_batch_size,
)
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input import (
    corrupt_records,
)
from albert_tf.input import (
    pipeline as input_pipeline,
)
from albert_tf.input import (
    record_sets as training_records,
)
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.fusion import fusing
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.runs import checkpoints
from albert_tf.runs import directory as run_directory
from albert_tf.runs.log import RunLog
from albert_tf.training import losses, metrics


class Evaluator:
    """Evaluates a model that goes on changing.

    Args:
        strategy: The strategy that the model was made under.
        pretrainer: Model and heads.
        held_out: Records to evaluate on.
        config: The run.
        stop_flag: float32 scalar on the host; not 0 once this process is to
            stop, which ends an evaluation, in all processes.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        pretrainer: AlbertPretrainer,
        held_out: training_records.Records,
        config: PretrainingConfig,
        stop_flag: tf.Variable | None = None,
    ) -> None:
        self._config = config
        self._objective = config.training.sentence_objective
        self._held_out = held_out
        make_dataset, self._num_batches = input_pipeline.evaluation_dataset(
            held_out, config.data
        )
        self._batches = strategy.distribute_datasets_from_function(make_dataset)

        device = device_type(strategy)
        no_dropout = Dropout(on_tpu=device == "TPU")

        @tf.autograph.experimental.do_not_convert
        @fusing(fuses(config.distribution, device))
        def replica_sums(
            batch: input_pipeline.Batch, stop: tf.Tensor
        ) -> Mapping[str, tf.Tensor]:
            context = tf.distribute.get_replica_context()
            outputs = pretrainer(batch, dropout=no_dropout)
            sums = losses.pretraining_sums(outputs, batch)
            # An identity, since only what a replica made can be reduced.
            return context.all_reduce(
                tf.distribute.ReduceOp.SUM,
                {**sums, "stops": tf.identity(stop)},
            )

        @tf.function
        def batch_sums(
            batch: input_pipeline.Batch,
        ) -> Mapping[str, tf.Tensor]:
            stop = tf.constant(0.0)
            if stop_flag is not None:
                stop = tf.identity(stop_flag)
            per_replica = strategy.run(replica_sums, args=(batch, stop))
            return {
                name: strategy.experimental_local_results(value)[0]
                for name, value in per_replica.items()
            }

        self._batch_sums = batch_sums

    def run(self) -> dict[str, float] | None:
        """Means over the held-out records, as `metrics.means`.

        None if a process is to stop, which does not wait for the last batch.

        Raises:
            UserError: If a record is damaged, naming it.
        """
        try:
            return self._run()
        except corrupt_records.READING_ERRORS as error:
            found = corrupt_records.find_in(
                self._held_out.files,
                self._held_out,
                self._config.data,
                self._config.model.vocab_size,
            )
            if not found:
                raise
            raise UserError(
                "held-out records must be whole",
                received="; ".join(map(str, found[:3])),
                remedy="Build or copy that shard again.",
            ) from error

    def _run(self) -> dict[str, float] | None:
        totals: dict[str, float] = {}
        batches = tqdm(
            range(self._num_batches),
            desc="evaluating held-out records",
            unit="batch",
            mininterval=5,
            leave=False,
        )
        for _, batch in zip(batches, self._batches, strict=True):
            for name, value in self._batch_sums(batch).items():
                # Python floats: float32 would lose pieces in long sums.
                totals[name] = totals.get(name, 0.0) + float(value)
            if totals["stops"]:
                return None
        return {
            name: float(value) for name, value in metrics.means(totals).items()
        }

    def run_and_log(
        self, step: int, run_log: RunLog | None
    ) -> dict[str, float] | None:
        """Evaluates and tells the result, beside the paper's figures.

        Returns:
            As `run`.
        """
        figures = self.run()
        if figures is None:
            logging.warning("evaluation at step %d cut short", step)
            return None
        logging.info(
            "eval at step %d: %s; %s",
            step,
            metrics.describe(figures),
            metrics.describe_reference(self._objective),
        )
        if self._held_out.metadata is not None:
            logging.info(
                "held-out mlm loss %.3f nats; unigram entropy of the corpus "
                "%.3f nats",
                figures["masked_lm_loss"],
                self._held_out.metadata.unigram_entropy_nats,
            )
        if run_log:
            run_log.write("eval", step, figures)
        return figures


def evaluate_run(config: PretrainingConfig) -> None:
    """Evaluates the newest checkpoint of `--output_dir` and prints JSON.

    Raises:
        UserError: If there is no checkpoint, or it does not fit.
    """
    config.require("eval_input_file")
    held_out = training_records.find_held_out(config)
    run_directory.check_evaluation(config, held_out)
    strategy = make_strategy(config.distribution)
    per_replica_batch_size(
        "eval_batch_size",
        config.data.eval_batch_size,
        strategy.num_replicas_in_sync,
    )
    with strategy.scope():
        _, pretrainer, step = checkpoints.load_run(config.training.output_dir)
    evaluator = Evaluator(strategy, pretrainer, held_out, config)
    figures = evaluator.run_and_log(step, None)
    assert figures, "nothing stops it"
    print(json.dumps({"step": step, **figures}))
