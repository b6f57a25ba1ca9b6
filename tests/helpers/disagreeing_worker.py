"""A worker with a step of its own, to compare with the others.

    python -m tests.helpers.disagreeing_worker STEP

prints the error about the different steps. Then it waits: at its end, it would
be a lost worker for one that is still receiving.
"""

import signal
import sys

from albert_tf.cluster.strategy import make_strategy
from albert_tf.cluster.workers import wait_for_all
from albert_tf.config import DistributionConfig
from albert_tf.errors import UserError


def main() -> None:
    step = int(sys.argv[1])
    strategy = make_strategy(
        DistributionConfig(strategy="multi_worker", worker_timeout_s=300)
    )
    wait_for_all(strategy, 7)  # this step is common
    try:
        wait_for_all(strategy, step)
    except UserError as error:
        print(error, file=sys.stderr)
        signal.pause()


if __name__ == "__main__":
    main()
