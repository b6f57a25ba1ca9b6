"""A worker of JAX's runtime that fails, or waits for one that fails.

python -m tests.helpers.failing_worker abort|error|wait
"""

import ctypes

from absl import app

from albert_tf.cluster.host import connect
from albert_tf.config import DistributionConfig, flags
from albert_tf.errors import UserError

TIMEOUT_S = 20


def main(arguments: list[str]) -> None:
    config = DistributionConfig(
        runtime="pjrt", strategy="multi_worker", worker_timeout_s=TIMEOUT_S
    )
    with connect(config) as host:
        host.runtime.sum_over_replicas([1.0])  # both have started
        if arguments[1] == "abort":
            ctypes.CDLL(None).abort()
        if arguments[1] == "error":
            raise UserError("the records of this worker must be intact")
        while True:
            host.runtime.sum_over_replicas([1.0])


if __name__ == "__main__":
    with flags.end_in_one_line():
        app.run(main)
