"""A TPU slice of two hosts on this machine; see `slice_program`.

Where it is permitted, the second host has a network of its own, so that its
addresses are not those of the first host and its link can be cut.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from albert_tf.cluster import notices
from tests.helpers import run_processes, slice_program
from tests.helpers.metadata_server import MetadataServer

LAST = 1  # the host that a test may lose


class Slice:
    """The servers of two hosts; a context manager.

    Attributes:
        addresses: HOST:PORT of each server.
        metadata: The metadata server of the last host. The first has none.
        has_own_network: Whether the last host has a network of its own.
    """

    def __init__(self):
        self._resources = contextlib.ExitStack()
        self._servers = {}
        number = os.getpid()
        self._network = f"albert-{number}"
        self._links = f"a{number}", f"b{number}"  # at most 15 characters
        # One subnet for each test worker.
        subnet = f"10.{200 + number // 4096 % 50}.{number // 16 % 256}"
        first = number % 16 * 16
        hosts = [f"{subnet}.{first + 1}", f"{subnet}.{first + 2}"]
        self.has_own_network = self._make_network(*hosts)
        if not self.has_own_network:
            hosts = ["127.0.0.1", "127.0.0.1"]
        self.addresses = [
            f"{host}:{port}"
            for host, port in zip(
                hosts, run_processes.free_ports(len(hosts)), strict=True
            )
        ]

    def _make_network(self, first, last):
        here, there = self._links
        name = self._network
        commands = [
            f"netns add {name}",
            f"link add {here} type veth peer name {there} netns {name}",
            f"address add {first}/28 dev {here}",
            f"-netns {name} address add {last}/28 dev {there}",
            f"link set {here} up",
            f"-netns {name} link set {there} up",
            f"-netns {name} link set lo up",
        ]
        for command in commands:
            if not run_ip(command):
                return False
            # The link ends with the network.
            self._resources.callback(run_ip, f"netns delete {name}")
        return True

    def __enter__(self):
        with contextlib.ExitStack() as cleanup:
            cleanup.push(self._resources)
            first = self.addresses[0].split(":")[0]
            self.metadata = self._resources.enter_context(
                MetadataServer.serve(first)
            )
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
        # As in `tpu/on_host.sh`.
        command = [sys.executable, "-m", notices.__name__]
        command += [slice_program.__file__, "serve", str(host), *self.addresses]
        if self.has_own_network and host == LAST:
            command = ["ip", "netns", "exec", self._network, *command]
        server = subprocess.Popen(
            command,
            # The hosts of a slice reach each other without a proxy.
            env={
                **os.environ,
                "no_grpc_proxy": "*",
                "https_proxy": "",
                notices.METADATA_HOST_VARIABLE: self.metadata.host
                if host == LAST
                else "",
            },
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

    def kill(self):
        """Ends the server of the last host."""
        self._servers[LAST].kill()
        self._servers[LAST].wait()

    def silence(self):
        """Cuts the link to the last host, or stops its server."""
        if self.has_own_network:
            link = f"link set {self._links[1]} down"
            assert run_ip(f"-netns {self._network} {link}")
        else:
            self._servers[LAST].send_signal(signal.SIGSTOP)

    def train(self, config, directory):
        """Starts a run on this slice, as `tpu/on_host.sh` does."""
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


def run_ip(arguments):
    """Runs the command `ip`; returns whether it exists and succeeds."""
    try:
        done = subprocess.run(
            ["ip", *arguments.split()], check=False, capture_output=True
        )
    except OSError:
        return False
    return done.returncode == 0
