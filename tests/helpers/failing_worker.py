"""A worker that fails, or waits for one that fails or is lost.

python -m tests.helpers.failing_worker RUNTIME abort|error|internal|wait
"""

import ctypes
import sys

import tensorflow as tf
from absl import app

from albert_tf.cluster.host import connect
from albert_tf.config import DistributionConfig, flags
from albert_tf.errors import UserError

# For both workers to start, on a machine that may be busy.
TIMEOUT_S = 20


def main(arguments: list[str]) -> None:
    config = DistributionConfig(
        runtime=arguments[1],
        strategy="multi_worker",
        worker_timeout_s=TIMEOUT_S,
    )
    with connect(config) as host:
        host.runtime.sum_over_replicas([1.0])
        print("both have started", file=sys.stderr, flush=True)
        if arguments[2] == "abort":
            ctypes.CDLL(None).abort()
        if arguments[2] == "error":
            raise UserError("the records of this worker must be intact")
        if arguments[2] == "internal":
            raise tf.errors.InternalError(None, None, "a kernel failed")
        while True:
            host.runtime.sum_over_replicas([1.0])


if __name__ == "__main__":
    with flags.end_in_one_line():
        app.run(main)
