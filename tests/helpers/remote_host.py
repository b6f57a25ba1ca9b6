"""A process with a gRPC server of TensorFlow, and a program that uses it.

As on a TPU slice, the program's operations run in the server's process.
"""

import contextlib
import pathlib
import subprocess
import sys

from tests.helpers.run_processes import free_ports

REPOSITORY = pathlib.Path(__file__).parents[2]

SERVER = """
import sys
import tensorflow as tf

cluster = tf.train.ClusterSpec({"worker": [f"localhost:{sys.argv[1]}"]})
tf.distribute.Server(cluster, job_name="worker", task_index=0).join()
"""
# Variables and functions are then those of the server.
CONNECT = """
import sys
import tensorflow as tf

server = f"localhost:{sys.argv[1]}"
cluster = tf.train.ClusterSpec({"worker": [server]})
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    cluster, master=server
)
tf.config.experimental_connect_to_cluster(resolver)
"""


@contextlib.contextmanager
def run_on_host(program):
    """Starts a server and a program that is connected to it.

    Args:
        program: Python code, which prints "begins" first.

    Yields:
        The processes of server and program, once the program has begun.
    """
    port = str(free_ports(1)[0])
    with contextlib.ExitStack() as processes:
        started = []
        for code in (SERVER, CONNECT + program):
            process = subprocess.Popen(
                [sys.executable, "-c", code, port],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=REPOSITORY,
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            started.append(process)
        assert started[1].stdout.readline() == "begins\n"
        yield started
