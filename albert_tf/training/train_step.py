"""The program that a run spends its time in: updates, on all replicas.

`make_train_steps` wraps `make_replica_step`, one update as every replica makes
it at the same time, in the loop which runs on the devices. What is a Python
number in it (`StepSettings`) is a constant of the program: other numbers trace
another program, and dropout of rate 0 is no operation at all.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from albert_tf.cluster.strategy import device_type, fuses
from albert_tf.config import PretrainingConfig
from albert_tf.input import pipeline as input_pipeline
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.fusion import fusing
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.runs import checkpoints
from albert_tf.training import losses, metrics, schedules
from albert_tf.training.optimizers import AdamW, make_optimizer
from albert_tf.training.schedules import DropoutRates


@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that training changes.

    Attributes:
        pretrainer: Model and heads.
        optimizer: Built for the model's trainable variables.
        step: int64 scalar, updates made.
    """

    pretrainer: AlbertPretrainer
    optimizer: AdamW
    step: tf.Variable

    def variables(self) -> dict[str, tf.Variable]:
        """Everything a checkpoint holds, by path."""
        return {
            **checkpoints.model_variables(self.pretrainer),
            **self.optimizer.slots,
            "step": self.step,
        }


class StepSettings(NamedTuple):
    """What is constant in a program, and differs between phases of a run.

    Attributes:
        dropout: Rates.
        learning_rate_scale: Factor of the scheduled learning rate; rollbacks
            may lower it.
    """

    dropout: DropoutRates
    learning_rate_scale: float = 1.0


class Steps(NamedTuple):
    """What some updates gave.

    Attributes:
        totals: float32 scalars by name: what came in, plus each step's
            figures.
        num_steps: int32 scalar, updates made; fewer than asked for if the run
            is to stop.
        stops: float32 scalar, the same in all processes; not 0 if one of them
            is to stop.
        learning_rate: float32 scalar, of the last update.
        times: float64, `(num_steps, 2)`: seconds since the epoch at which each
            step asked for its batch, and had it.
    """

    totals: Mapping[str, tf.Tensor]
    num_steps: tf.Tensor
    stops: tf.Tensor
    learning_rate: tf.Tensor
    times: tf.Tensor


def make_state(config: PretrainingConfig) -> TrainState:
    """Initial model, optimizer and step, in the current strategy's scope."""
    # Initializers draw their seeds from Python's generator, in the order in
    # which variables are made: the same on every host and in every run.
    keras.utils.set_random_seed(config.training.seed)
    pretrainer = AlbertPretrainer(
        config.model,
        config.training.sentence_objective,
        dtype=config.distribution.precision,
        remat=config.distribution.remat,
    )
    pretrainer.build()
    optimizer = make_optimizer(config.optimizer)
    optimizer.build(pretrainer.trainable_variables)
    step = tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name="step",
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    return TrainState(pretrainer, optimizer, step)


def figure_names(config: PretrainingConfig) -> tuple[str, ...]:
    """The figures of a step, of which `Steps.totals` holds the sums."""
    adapted = ("trust_ratio_min", "trust_ratio_mean", "trust_ratio_max")
    return (
        *metrics.names(config.training.sentence_objective),
        "gradient_norm",
        "update_norm",
        *(adapted if config.optimizer.optimizer == "lamb" else ()),
    )


def make_train_steps(
    strategy: tf.distribute.Strategy,
    state: TrainState,
    config: PretrainingConfig,
    stop_flag: tf.Variable | None = None,
) -> Callable[..., Steps]:
    """The loop of updates that runs without coming back to Python.

    Args:
        strategy: Replicas.
        state: What is updated.
        config: The run.
        stop_flag: float32 scalar on the host; not 0 once this process is to
            stop. All processes then stop at the same step, at most two
            updates later.

    Returns:
        `train_steps(batches, totals, num_steps, settings) -> Steps`, where
        `batches` is a distributed iterator, `totals` float32 scalars by the
        names of `figure_names`, `num_steps` an int32 scalar tensor and
        `settings` the `StepSettings`.
    """
    replica_step = make_replica_step(state, config, device_type(strategy))

    @tf.function
    def train_steps(
        batches: Iterator[input_pipeline.Batch],
        totals: Mapping[str, tf.Tensor],
        num_steps: tf.Tensor,
        settings: StepSettings,
    ) -> Steps:
        # One vector: TensorFlow makes one sum of a scalar and a figure that is
        # itself a sum, in an order that is another in each process.
        names = list(totals)
        sums = tf.stack([totals[name] for name in names])
        done = tf.constant(0)
        # The flag that ends the loop is a step old, so that the next step
        # can be sent to the devices before the last one has ended.
        stops, stops_before = tf.constant(0.0), tf.constant(0.0)
        times = tf.TensorArray(
            tf.float64, size=0, dynamic_size=True, element_shape=[2]
        )
        while done < num_steps and stops_before == 0.0:
            with tf.control_dependencies([sums]):
                asked = tf.timestamp()
            with tf.control_dependencies([asked]):
                batch = next(batches)
            with tf.control_dependencies(_local_tensors(strategy, batch)):
                times = times.write(done, tf.stack([asked, tf.timestamp()]))
            stop = tf.constant(0.0)
            if stop_flag is not None:
                stop = tf.identity(stop_flag)
            # TPUStrategy makes tensors of all arguments: settings are none.
            per_replica = strategy.run(
                functools.partial(replica_step, settings=settings),
                args=(batch, stop),
            )
            # Figures are equal on all replicas: take the first.
            figures = {
                name: strategy.experimental_local_results(value)[0]
                for name, value in per_replica.items()
            }
            stops_before, stops = stops, figures.pop("stops")
            sums += tf.stack([figures[name] for name in names])
            done += 1
        return Steps(
            dict(zip(names, tf.unstack(sums), strict=True)),
            done,
            stops,
            _learning_rate(state.step - 1, config, settings),
            times.stack(),
        )

    return train_steps


def make_replica_step(
    state: TrainState, config: PretrainingConfig, device_type: str = "CPU"
) -> Callable[..., Mapping[str, tf.Tensor]]:
    """One update, as every replica makes it at the same time.

    Args:
        state: What is updated.
        config: The run.
        device_type: What it is for, "TPU", "GPU" or "CPU".

    Returns:
        `replica_step(batch, stop, settings)` for this replica's share of the
        batch, and its process' float32 scalar `stop`. It gives float32 scalars
        equal on all replicas: the figures of `figure_names`, of the whole
        batch, gradient_norm before global clipping; and `stops`, the sum of
        `stop`.
    """
    pretrainer = state.pretrainer
    num_parts = config.data.gradient_accumulation_steps
    clip_norm = config.optimizer.clip_norm
    clip_each_replica = config.optimizer.clip_scope == "per_replica"

    @tf.autograph.experimental.do_not_convert
    @fusing(fuses(config.distribution, device_type))
    def replica_step(
        batch: input_pipeline.Batch, stop: tf.Tensor, settings: StepSettings
    ) -> Mapping[str, tf.Tensor]:
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        # Workers' iterators do not know how large their batches are.
        share = config.data.global_batch_size // replicas
        batch = {
            name: tf.ensure_shape(value, [share, *value.shape[1:]])
            for name, value in batch.items()
        }
        reduce_sum = functools.partial(
            context.all_reduce, tf.distribute.ReduceOp.SUM
        )
        seed = _replica_seed(
            config.training.seed, state.step, context.replica_id_in_sync_group
        )

        # Every masked piece weighs the same, whichever replica and part it
        # falls to: losses are divided by the weights of the whole batch.
        mlm_weight, sentence_weight = tf.unstack(
            reduce_sum(
                tf.stack(
                    [
                        tf.reduce_sum(batch["masked_lm_weights"]),
                        tf.reduce_sum(losses.example_weights(batch)),
                    ]
                )
            )
        )

        def part_gradients(
            part: input_pipeline.Batch, index: Any
        ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
            dropout = Dropout(
                settings.dropout.hidden,
                settings.dropout.attention,
                _fold_in(seed, index),
                on_tpu=device_type == "TPU",
            )
            with tf.GradientTape() as tape:
                sums = losses.pretraining_sums(
                    pretrainer(part, dropout=dropout), part
                )
                loss = tf.math.divide_no_nan(sums["mlm_loss_sum"], mlm_weight)
                if "sentence_loss_sum" in sums:
                    loss += tf.math.divide_no_nan(
                        sums["sentence_loss_sum"], sentence_weight
                    )
            variables = [v.value for v in pretrainer.trainable_variables]
            gradients = tape.gradient(loss, variables)
            # Sparse gradients of embeddings hold repeated rows, whose
            # squares would not be those of their sum: make them dense.
            return [tf.convert_to_tensor(g) for g in gradients], sums

        if config.distribution.jit_compile:
            # The gradients alone: XLA has no all-reduce between GPUs here.
            part_gradients = tf.function(part_gradients, jit_compile=True)
        elif num_parts > 1:
            # Inlined into the loop over parts, sums of large gradients are
            # kept by TensorFlow's memory optimizer under names that the next
            # call finds taken: AlreadyExistsError.
            part_gradients = tf.function(
                part_gradients, experimental_attributes={"_noinline": True}
            )
        gradients, sums = _sum_over_parts(part_gradients, batch, num_parts)
        if clip_norm and clip_each_replica:
            # A replica's own mean is its share times the replicas.
            scaled = [g * replicas for g in gradients]
            clipped, _ = tf.clip_by_global_norm(scaled, clip_norm)
            gradients = [g / replicas for g in clipped]
        *gradients, reduced = reduce_sum(
            [*gradients, tf.stack([*sums.values(), stop])]
        )
        *reduced_sums, stops = tf.unstack(reduced)
        sums = dict(zip(sums, reduced_sums, strict=True))
        gradient_norm = tf.linalg.global_norm(gradients)
        scale = tf.constant(1.0)
        if clip_norm and not clip_each_replica:
            # What clips a 1 clips gradients, in the pass that reads them.
            (scale,), _ = tf.clip_by_global_norm(
                [scale], clip_norm, use_norm=gradient_norm
            )

        update_figures = state.optimizer.apply(
            gradients, _learning_rate(state.step, config, settings), scale
        )
        state.step.assign_add(1)

        return {
            **metrics.means(sums),
            "gradient_norm": gradient_norm,
            **update_figures,
            "stops": stops,
        }

    return replica_step


def _sum_over_parts(
    part_gradients: Any,
    batch: input_pipeline.Batch,
    num_parts: int,
) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
    """Gradients and sums of a batch, worked through in equal parts.

    Args:
        part_gradients: Of a part and its number; a `tf.function` where there
            are several.
        batch: All parts, one after the other.
        num_parts: How many.
    """
    if num_parts == 1:
        return part_gradients(batch, 0)
    parts = {
        name: tf.reshape(
            value, [num_parts, value.shape[0] // num_parts, *value.shape[1:]]
        )
        for name, value in batch.items()
    }

    def part(index: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: value[index] for name, value in parts.items()}

    def add_part(index: tf.Tensor, so_far: Any) -> tuple[tf.Tensor, Any]:
        more = part_gradients(part(index), index)
        return index + 1, tf.nest.map_structure(tf.add, so_far, more)

    # From zeros, so that the program holds the computation of a part once.
    first = tf.constant(0)
    outputs = part_gradients.get_concrete_function(part(first), first)
    zeros = tf.nest.map_structure(
        lambda output: tf.zeros(output.shape, output.dtype),
        outputs.structured_outputs,
    )
    _, totals = tf.while_loop(
        lambda index, _: index < num_parts, add_part, (first, zeros)
    )
    return totals


def _learning_rate(
    step: tf.Tensor, config: PretrainingConfig, settings: StepSettings
) -> tf.Tensor:
    scheduled = schedules.learning_rate(
        step, config.optimizer, config.training.num_train_steps
    )
    return settings.learning_rate_scale * scheduled


def _local_tensors(
    strategy: tf.distribute.Strategy, batch: Any
) -> list[tf.Tensor]:
    """The tensors of a batch on this host, of all its replicas."""
    return tf.nest.flatten(strategy.experimental_local_results(batch))


def _replica_seed(
    seed: int, step: tf.Tensor, replica_id: tf.Tensor
) -> tf.Tensor:
    """int32 (2,), a function of (seed, step, replica)."""
    base = tf.constant([seed & 0x7FFFFFFF, seed >> 31], tf.int32)
    return _fold_in(_fold_in(base, step), replica_id)


def _fold_in(seed: tf.Tensor, number: Any) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(
        seed, tf.cast(number, tf.int32)
    )
