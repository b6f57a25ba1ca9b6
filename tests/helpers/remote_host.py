"""Processes with gRPC servers of TensorFlow, and a program that uses them.

As on a TPU slice, the program's operations run in the first server's process.
"""

import contextlib

from tests.helpers.forked_program import ForkedCode
from tests.helpers.run_processes import free_ports

SERVER = """
import sys
import tensorflow as tf

cluster = tf.train.ClusterSpec({"worker": sys.argv[2:]})
tf.distribute.Server(
    cluster, job_name="worker", task_index=int(sys.argv[1])
).join()
"""
# The first server then has the variables and functions. A resolver for TPUs
# makes TensorFlow start its coordination service.
CONNECT = """
import sys
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
    tpu=f"grpc://{','.join(sys.argv[1:])}"
)
tf.config.experimental_connect_to_cluster(resolver)
"""


@contextlib.contextmanager
def run_on_hosts(program, num_hosts=1):
    """Starts servers and a program that is connected to them.

    Args:
        program: Python code, which prints "begins" first. Its arguments are
            the addresses of the servers.

    Yields:
        The processes of program and servers, once the program has begun.
    """
    addresses = [f"localhost:{port}" for port in free_ports(num_hosts)]
    with contextlib.ExitStack() as processes:

        def start(code, *arguments):
            process = ForkedCode(code, [*arguments, *addresses])
            return processes.enter_context(process)

        servers = [start(SERVER, str(host)) for host in range(num_hosts)]
        started = start(CONNECT + program)
        assert started.stdout.readline() == "begins\n"
        yield started, *servers
