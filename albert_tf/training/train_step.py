"""One training step on all replicas.

Dropout rates are Python numbers and so constants of the program: new rates
trace a new program, and dropout of rate 0 adds no operation to it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf.config import PretrainingConfig
from albert_tf.input.record_format import Batch
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.target import ProgramTarget
from albert_tf.runs import checkpoints
from albert_tf.training import schedules
from albert_tf.training.objective import Objective, Scalars
from albert_tf.training.optimizers import AdamW, Muon, make_optimizer
from albert_tf.training.schedules import DropoutRates


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The objective and the variables that training changes."""

    objective: Objective
    model: keras.layers.Layer
    optimizer: AdamW | Muon
    step: tf.Variable  # int64 scalar, number of steps done

    def variables(self) -> dict[str, tf.Variable]:
        """Everything that a checkpoint holds, by path."""
        return {
            **checkpoints.model_variables(self.model),
            **self.optimizer.slots,
            "step": self.step,
        }


def make_state(config: PretrainingConfig, objective: Objective) -> TrainState:
    """Initial model, optimizer and step, in the current strategy's scope."""
    # Initializers draw their seeds from Python's generator, in the order in
    # which variables are made: the same on every host and in every run.
    keras.utils.set_random_seed(config.training.seed)
    model = objective.make_model()
    optimizer = make_optimizer(config.optimizer)
    optimizer.build(model.trainable_variables)
    step = tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name="step",
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    return TrainState(objective, model, optimizer, step)


def metric_names(
    config: PretrainingConfig, objective: Objective
) -> tuple[str, ...]:
    """The metrics of a step, in the order of the vector that it returns."""
    names = (*objective.metric_names, "gradient_norm", "update_norm")
    if config.optimizer.optimizer == "lamb":
        names += ("trust_ratio_min", "trust_ratio_mean", "trust_ratio_max")
    return names


def fold_in(seed: tf.Tensor, number: Any) -> tf.Tensor:
    """A new seed, int32 (2,), a function of a seed and a number."""
    return tf.random.experimental.stateless_fold_in(
        seed, tf.cast(number, tf.int32)
    )


def make_replica_step(
    state: TrainState,
    config: PretrainingConfig,
    rates: DropoutRates,
    device_type: str = "CPU",
) -> Callable[..., tf.Tensor]:
    """Makes the step that all replicas run at the same time.

    Args:
        state: Updated in place.
        rates: Constants of the program.
        device_type: The device to compile for, "TPU", "GPU" or "CPU".

    Returns:
        `replica_step(batch, stop)` for the batch of this replica and,
        optionally, the stop flag of its process. It returns a float32 vector
        equal on all replicas: the metrics of `metric_names` over the global
        batch, with gradient_norm before clipping; and, if `stop` is given, its
        sum over all replicas. One copy transfers the vector to the host. With
        one scalar per metric, TensorFlow would also merge a metric's sum over
        steps with sums inside the metric, in an order that differs between
        processes.
    """
    names = metric_names(config, state.objective)
    target = ProgramTarget.from_config(config.distribution, device_type)
    objective = state.objective
    update = _make_update(state, config, target)

    @tf.autograph.experimental.do_not_convert
    def replica_step(batch: Batch, stop: tf.Tensor | None = None) -> tf.Tensor:
        batch = _with_static_shapes(batch, config)
        seed = _seed_of_replica(config.training.seed, state.step)
        # All losses are divided by the weights of the global batch, so each
        # label counts the same in every replica and micro-batch.
        _, weights = _sum_over_replicas([], objective.weights(batch))

        def add_gradients(
            micro_batch: Batch, number: Any, so_far: Sequence[tf.Tensor] | None
        ) -> tuple[list[tf.Tensor], Scalars]:
            dropout = Dropout(
                rates.hidden, rates.attention, fold_in(seed, number)
            )
            with tf.GradientTape() as tape:
                outputs = state.model(
                    micro_batch, dropout=dropout, target=target
                )
                sums = objective.sums(outputs, micro_batch)
                loss = objective.loss(sums, weights)
            variables = [v.value for v in state.model.trainable_variables]
            # Sparse gradients of embeddings may have several terms for one row.
            # Norm and moments need the square of their sum: make them dense.
            gradients = [
                tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)
            ]
            if so_far is not None:
                gradients = list(map(tf.add, so_far, gradients))
            return gradients, sums

        gradients, sums = _add_micro_batches(
            add_gradients,
            [tf.zeros(v.shape) for v in state.model.trainable_variables],
            batch,
            config.data.gradient_accumulation_steps,
            target.jit_compile,
        )
        if stop is not None:
            sums = {**sums, "stops": stop}
        gradients, sums = _sum_over_replicas(gradients, sums)
        learning_rate = schedules.learning_rate(
            state.step, config.optimizer, config.training.num_train_steps
        )
        norms = update(gradients, learning_rate)
        state.step.assign_add(1)
        metrics = {**objective.metrics(sums), **norms}
        results = [metrics[name] for name in names]
        if stop is not None:
            results.append(sums["stops"])
        return tf.stack(results)

    return replica_step


def _with_static_shapes(batch: Batch, config: PretrainingConfig) -> Batch:
    """The batch of a replica; those of several workers lack the static size."""
    replica = tf.distribute.get_replica_context()
    rows = config.data.global_batch_size // replica.num_replicas_in_sync
    return {
        name: tf.ensure_shape(value, [rows, *value.shape[1:]])
        for name, value in batch.items()
    }


def _seed_of_replica(run_seed: int, step: tf.Tensor) -> tf.Tensor:
    """A function of (seed, step, replica)."""
    replica = tf.distribute.get_replica_context()
    seed = tf.constant([run_seed & 0x7FFFFFFF, run_seed >> 31], tf.int32)
    seed = fold_in(seed, step)
    return fold_in(seed, replica.replica_id_in_sync_group)


def _sum_over_replicas(
    tensors: Sequence[tf.Tensor], scalars: Scalars
) -> tuple[list[tf.Tensor], Scalars]:
    """Sums over all replicas, in one call, with all scalars in one vector."""
    replica = tf.distribute.get_replica_context()
    vector = tf.stack(list(scalars.values()))
    summed = replica.all_reduce(tf.distribute.ReduceOp.SUM, [*tensors, vector])
    sums = dict(zip(scalars, tf.unstack(summed[-1]), strict=True))
    return list(summed[:-1]), sums


def _make_update(
    state: TrainState, config: PretrainingConfig, target: ProgramTarget
) -> Callable[[list[tf.Tensor], tf.Tensor], Scalars]:
    """A function of gradients and learning rate that updates all variables.

    It clips, and returns the norms.
    """
    clip_norm = config.optimizer.clip_norm

    @tf.autograph.experimental.do_not_convert
    def update(gradients: list[tf.Tensor], learning_rate: tf.Tensor) -> Scalars:
        gradient_norm = tf.linalg.global_norm(gradients)
        scale = tf.constant(1.0)
        if clip_norm:
            # The optimizer multiplies by the factor that clips.
            (scale,), _ = tf.clip_by_global_norm(
                [scale], clip_norm, use_norm=gradient_norm
            )
        norms = state.optimizer.apply(
            gradients, learning_rate, scale, fuse=target.fuse
        )
        return {"gradient_norm": gradient_norm, **norms}

    if target.device_type == "GPU":
        # One program, instead of some fifteen kernels for each variable.
        return tf.function(update, jit_compile=True, autograph=False)
    return update


def _add_micro_batches(
    add_gradients: Callable[..., tuple[list[tf.Tensor], Scalars]],
    zeros: Sequence[tf.Tensor],
    batch: Batch,
    num_micro_batches: int,
    jit_compile: bool,
) -> tuple[list[tf.Tensor], Scalars]:
    """Adds up gradients and sums over the micro-batches of a replica.

    `add_gradients` gets a micro-batch, its number from 0 on, and the gradients
    of the micro-batches before it, None for none, at first `zeros`. It returns
    these plus its own gradients, and its own `Objective.sums`.
    """
    compute: Any = add_gradients
    if jit_compile:
        # Compiles only the gradients, not the complete step: XLA cannot
        # compile TensorFlow's all-reduce between GPUs.
        compute = tf.function(add_gradients, jit_compile=True)
    elif num_micro_batches > 1:
        # If this function is inlined into the loop over micro-batches,
        # TensorFlow's memory optimizer stores the sums of large gradients
        # under fixed names, and the next call fails: AlreadyExistsError.
        compute = tf.function(
            add_gradients, experimental_attributes={"_noinline": True}
        )
    if num_micro_batches == 1:
        return compute(batch, 0, None)
    micro_batches = {
        name: tf.reshape(
            value,
            [
                num_micro_batches,
                value.shape[0] // num_micro_batches,
                *value.shape[1:],
            ],
        )
        for name, value in batch.items()
    }

    def micro_batch(index: tf.Tensor) -> Batch:
        return {name: value[index] for name, value in micro_batches.items()}

    def add(
        index: tf.Tensor, gradients: list[tf.Tensor], sums: Scalars
    ) -> tuple[tf.Tensor, list[tf.Tensor], Scalars]:
        gradients, more = compute(micro_batch(index), index, gradients)
        return index + 1, gradients, tf.nest.map_structure(tf.add, sums, more)

    # The loop starts from zeros rather than from the first micro-batch, so that
    # the program contains the computation only once.
    first, gradients = tf.constant(0), list(zeros)
    outputs = compute.get_concrete_function(
        micro_batch(first), first, gradients
    )
    _, sums_of_one = outputs.structured_outputs
    sums = {
        name: tf.zeros(output.shape, output.dtype)
        for name, output in sums_of_one.items()
    }
    _, gradients, sums = tf.while_loop(
        lambda index, *_: index < num_micro_batches,
        add,
        (first, gradients, sums),
    )
    return gradients, sums
