"""A TPU slice of two hosts on this machine; see `slice_program`."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from tests.helpers import run_processes, slice_program

LAST = 1  # the host that a test may lose


class Slice:
    """The servers of two hosts; a context manager.

    Attributes:
        addresses: HOST:PORT of each server.
    """

    def __init__(self):
        self._resources = contextlib.ExitStack()
        self._servers = {}
        self.addresses = [
            f"127.0.0.1:{port}" for port in run_processes.free_ports(2)
        ]

    def __enter__(self):
        with contextlib.ExitStack() as cleanup:
            cleanup.push(self._resources)
            for host in range(len(self.addresses)):
                self.serve(host)
            cleanup.pop_all()
        return self

    def __exit__(self, *_):
        self._resources.close()

    def serve(self, host):
        """Starts the server of a host, in place of an earlier one."""
        if host in self._servers:
            self._servers[host].kill()
            self._servers[host].wait()
        command = [sys.executable, slice_program.__file__, "serve", str(host)]
        server = subprocess.Popen(
            [*command, *self.addresses],
            # The hosts of a slice reach each other without a proxy.
            env={**os.environ, "no_grpc_proxy": "*", "https_proxy": ""},
            stderr=subprocess.DEVNULL,
        )
        self._servers[host] = server
        self._resources.callback(server.wait)
        self._resources.callback(server.kill)
        address, port = self.addresses[host].split(":")
        deadline = time.monotonic() + run_processes.PATIENCE_S
        while True:
            try:
                socket.create_connection((address, int(port)), 1).close()
                break
            except OSError:
                assert server.poll() is None, "the server has ended"
                assert time.monotonic() < deadline, "the server is silent"
                time.sleep(0.05)

    def wait_for_work(self, cpu_s=0.5):
        """Returns when the last host has used so much more processor time.

        A step of a tiny model takes some 30 ms of it. Nothing logs the steps
        within a device loop.
        """
        pid = self._servers[LAST].pid
        end = processor_time(pid) + cpu_s
        deadline = time.monotonic() + run_processes.PATIENCE_S
        while processor_time(pid) < end:
            assert time.monotonic() < deadline, "the host does nothing"
            time.sleep(0.02)

    def terminate(self):
        """Sends SIGTERM to the server of the last host."""
        self._servers[LAST].terminate()

    def kill(self):
        """Ends the server of the last host."""
        self._servers[LAST].kill()
        self._servers[LAST].wait()

    def silence(self):
        """Stops the server of the last host, whose connections stay open."""
        self._servers[LAST].send_signal(signal.SIGSTOP)

    def train(self, config, directory):
        """Starts a run on this slice."""
        directory.mkdir()
        return run_processes.RunProcesses(
            config,
            directory,
            options=(
                "--strategy=tpu",
                f"--tpu_name=grpc://{','.join(self.addresses)}",
            ),
            command=(slice_program.__name__, "train"),
        )


def processor_time(pid):
    """Seconds of processor time that a process has used."""
    # The name of the program, in parentheses, may contain spaces.
    status = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    user, system = status.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
