"""The values of variables, which are equal on all replicas of a TPU slice.

`tf.Variable.assign` and the creation of a variable send the value from host 0
to each replica: 256 times on a slice of 256 chips. Here, host 0 sends it to the
first replica only, and one program copies it to the others, over the links
between the chips. Other strategies have few replicas, and need no program.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# How `TPUStrategy` names the variable of each replica but the first.
_OTHER_REPLICA = re.compile(r"/replica_(\d+)/$")


class Replicas:
    """The values of variables on all replicas.

    Args:
        variables: Equal on all replicas, except before `copy_from_first`.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        self._variables = dict(variables)
        strategies = [
            getattr(variable, "distribute_strategy", None)
            for variable in self._variables.values()
        ]
        self._strategy: Any = next(filter(_has_program, strategies), None)
        self._copied = {
            name: variable
            for name, variable in self._variables.items()
            if self._strategy and _is_copied(variable.dtype)
        }
        self._program = tf.function(self._copy_on_all, autograph=False)

    def assign(self, values: Mapping[str, tf.Tensor | np.ndarray]) -> None:
        """Assigns values by name, on all replicas."""
        for name, variable in self._variables.items():
            if self._strategy and name in self._copied:
                variable, *_ = self._strategy.experimental_local_results(
                    variable
                )
            variable.assign(values[name])
        self.copy_from_first()

    def copy_from_first(self) -> None:
        """Makes the variables equal to those of the first replica."""
        if self._copied:
            self._program()

    def read(self) -> dict[str, np.ndarray]:
        """The values by name."""
        return {n: v.numpy() for n, v in self._variables.items()}

    def _copy_on_all(self) -> None:
        self._strategy.run(
            copy_on_replica, args=(tuple(self._copied.values()),)
        )


@tf.autograph.experimental.do_not_convert
def copy_on_replica(variables: Iterable[tf.Variable]) -> None:
    """Assigns the values of the first replica; for use in `strategy.run`.

    Args:
        variables: Of any strategy and of types that its devices can sum. Their
            values on the other replicas may be anything, also NaN.
    """
    replica = tf.distribute.get_replica_context()
    is_first = tf.equal(replica.replica_id_in_sync_group, 0)
    for variable in variables:
        value = tf.convert_to_tensor(variable)
        sent = tf.where(is_first, value, tf.zeros_like(value))
        variable.assign(replica.all_reduce(tf.distribute.ReduceOp.SUM, sent))


@contextlib.contextmanager
def values_on_first(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Creates variables with their initial value on the first replica only.

    Applies to float32 variables under a `TPUStrategy` with several replicas; on
    the other replicas they are 0 until `Replicas.copy_from_first`. Enter it
    outside the strategy's scope.
    """
    if not _has_program(strategy):
        yield
        return

    def create(next_creator: Any, **settings: Any) -> tf.Variable:
        other = _OTHER_REPLICA.search(settings.get("name") or "")
        value = settings["initial_value"]
        if other and tf.is_tensor(value) and _is_copied(value.dtype):
            device = strategy.extended.worker_devices[int(other[1])]
            host = tf.DeviceSpec.from_string(device).replace(
                device_type="CPU", device_index=0
            )
            with tf.device(host.to_string()):
                settings["initial_value"] = tf.zeros(value.shape, value.dtype)
        return next_creator(**settings)

    with tf.variable_creator_scope(create):
        yield


def _has_program(strategy: tf.distribute.Strategy | None) -> bool:
    return (
        isinstance(strategy, tf.distribute.TPUStrategy)
        and strategy.num_replicas_in_sync > 1
    )


def _is_copied(dtype: tf.DType) -> bool:
    # TPUs cannot sum int64. Only the step is int64, and it is not copied.
    return dtype == tf.float32
