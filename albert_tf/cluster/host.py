"""This process in a run: its devices, and what stops or protects it."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Self

import tensorflow as tf

from albert_tf.cluster import workers
from albert_tf.cluster.preemption import StopRequest, watch_for_stop
from albert_tf.cluster.runtime import Runtime, runtime_of
from albert_tf.cluster.strategy import make_strategy
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import DistributionConfig
from albert_tf.io.artifact import lock
from albert_tf.io.files import make_directories


@dataclasses.dataclass(frozen=True)
class Host:
    """This process in a run."""

    strategy: tf.distribute.Strategy  # the devices, also of other processes
    stop: StopRequest | None = None  # set by signals
    watchdog: Watchdog = dataclasses.field(default_factory=Watchdog)
    # Whether this process writes the run directory. In a training, only the
    # chief does, which alone has a `RunLog`.
    writes: bool = False

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that logs and writes results."""
        return self.runtime.cluster.process_index == 0

    @property
    def runtime(self) -> Runtime:
        """What runs the programs; see `cluster.runtime`."""
        return runtime_of(self.strategy)

    @property
    def stop_flag(self) -> tf.Variable | None:
        """float32 scalar; not 0 after a request to stop this process."""
        return self.stop and self.stop.flag

    @contextlib.contextmanager
    def owning(self, run_dir: str) -> Iterator[Self]:
        """Makes the chief the writer of a run directory, which it locks.

        Raises:
            UserError: If another command has locked the directory.
        """
        if not self.is_chief:
            yield self
            return
        make_directories(run_dir)
        with lock(run_dir):
            yield dataclasses.replace(self, writes=True)


@contextlib.contextmanager
def connect(
    config: DistributionConfig,
    strategy: tf.distribute.Strategy | None = None,
    can_stop: bool = False,
) -> Iterator[Host]:
    """Connects the devices for a block, and names lost workers.

    Args:
        strategy: Devices; None connects those of the settings.
        can_stop: Whether the host listens to signals.

    Raises:
        RetryError: If another process of the run, or the TPU, was lost.
    """
    strategy = strategy or make_strategy(config)
    with contextlib.ExitStack() as block:
        stop = None
        if can_stop:
            stop = block.enter_context(watch_for_stop())
        block.enter_context(workers.name_lost_workers(strategy))
        # Without others, the first step may take any time.
        can_hang = runtime_of(strategy).cluster.can_be_lost
        watchdog = Watchdog(config.hang_timeout_s if can_hang else 0)
        yield Host(strategy, stop, watchdog)
