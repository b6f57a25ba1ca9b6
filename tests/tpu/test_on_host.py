"""`tpu/on_host.sh` on hosts that are directories.

Python and the server are replaced by scripts, and the metadata server
by a local one.
"""

import ast
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.metadata_server import MetadataServer
from tests.helpers.run_processes import PATIENCE_S, free_ports

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tpu" / "on_host.sh"

# These break if a shell expands them once too often, or too seldom.
TRAINING = ["--output_dir=gs://bucket/run", "--dataset=a='b $HOME \"c\"'"]

PROGRAMS = {
    # Trains: the first line of ~/plan is its exit status, or "wait" for a
    # signal.
    "bin/python": """#!/bin/bash
read -r result < <(sed -n 1p ~/plan)
sed -i 1d ~/plan
echo "saved gs://bucket/run/checkpoints/step-7 in 1.0 s, in the background"
echo "the last words of $result"
trap 'exit 143' TERM
printf '%s\\0' "${TPU_LOAD_LIBRARY-}" "${LIBTPU_INIT_ARGS-}" "$@" >~/trained
[ "$TPU_LOAD_LIBRARY" != 0 ] || echo hello >/dev/tcp/127.0.0.1/$ALBERT_TPU_PORT
while [ "$result" = wait ]; do sleep 0.1; done
exit $result
""",
    # It ignores SIGTERM once a program has used it.
    "bin/start_grpc_tpu_worker": """#!PYTHON
import os, pathlib, signal, socket, time
home, used = pathlib.Path.home(), False
def on_sigterm(*_):
    if not used:
        os._exit(143)
signal.signal(signal.SIGTERM, on_sigterm)
environment = {k: v for k, v in os.environ.items() if "TPU_" in k}
server = socket.create_server(("127.0.0.1", int(os.environ["TPU_TASK_PORT"])))
with open(home / "served", "a") as served:
    print(environment, file=served)
while not server.accept()[0].recv(1):
    pass
used = True
(home / "used").touch()
time.sleep(3600)
""",
}


def wait_for(function):
    """Returns once `function()` is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not function():
        assert time.monotonic() < deadline, function
        time.sleep(0.05)


class Host:
    """A directory that acts as a host; called with a command of the script."""

    def __init__(self, home, metadata):
        self.home, self.state = home, home / "albert_tf_state"
        (home / "bin").mkdir(parents=True)
        for name, text in PROGRAMS.items():
            (home / name).write_text(text.replace("PYTHON", sys.executable))
            (home / name).chmod(0o755)
        self.environment = {
            "HOME": str(home),
            "PATH": f"{home}:{os.environ['PATH']}",
            "GCE_METADATA_HOST": metadata.host,
            "ALBERT_TPU_BIN_DIR": str(home / "bin"),
            "ALBERT_TPU_PORT": str(free_ports(1)[0]),
            "ALBERT_TPU_ENV_FILE": str(home / "tpu-env"),
        }
        (home / "tpu-env").write_text("TPU_OF_IMAGE='set by it'\n")
        self.plan("0")

    def __call__(self, *words, status=0):
        done = subprocess.run(
            ["bash", SCRIPT, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return (done.stdout + done.stderr).strip()

    def plan(self, *results):
        (self.home / "plan").write_text("".join(f"{r}\n" for r in results))

    def train(self):
        """Trains until the end, if there is one."""
        waits = (self.home / "plan").read_text().startswith("wait")
        self("train", *TRAINING)
        if not waits:
            wait_for(lambda: self("status") != "running")
        wait_for(lambda: (self.home / "trained").exists())

    def trained(self):
        """TPU_LOAD_LIBRARY, LIBTPU_INIT_ARGS and arguments of Python."""
        return (self.home / "trained").read_text().split("\0")[:-1]

    def served(self):
        """The environments of its servers."""
        path = self.home / "served"
        lines = path.read_text().splitlines() if path.exists() else []
        return [ast.literal_eval(line) for line in lines]

    def kill(self):
        for path in self.state.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(os.getpgid(int(path.read_text())), signal.SIGKILL)


@pytest.fixture
def metadata():
    """The metadata server of a slice of one host."""
    with MetadataServer.serve() as server:
        set_hosts(server, "10.0.0.2")
        yield server


def set_hosts(metadata, *addresses):
    endpoints = ",".join(f"unknown:unknown:{a}" for a in addresses)
    metadata.values |= {
        "attributes/worker-network-endpoints": endpoints,
        "attributes/agent-worker-number": "0",
        "network-interfaces/0/ip": addresses[0],
    }


@pytest.fixture
def host(tmp_path, metadata):
    made = Host(tmp_path / "host", metadata)
    yield made
    made.kill()


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
def test_the_script_passes_shellcheck():
    subprocess.run(["shellcheck", SCRIPT], check=True)


def test_the_python_code_of_the_script_finds_its_modules():
    """The Python of the other tests does not run this code."""
    code = SCRIPT.read_text().partition("<<'PYTHON'\n")[2]
    done = subprocess.run(
        [sys.executable, "-", "2"],
        input=code.partition("\nPYTHON\n")[0],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no TPU chip" in done.stderr, done.stderr


@pytest.mark.slow
def test_training_is_known_by_its_state_and_flags(host):
    """Also after a reboot of the host; not by a process id."""
    assert host("status_of", *TRAINING) == "none"
    host.plan("wait", "3", "wait", "143")
    host.train()
    assert host.trained() == [
        *("", "", "-m", "albert_tf.run_pretraining", "--strategy=tpu"),
        *TRAINING,
    ]
    assert host("status_of", *TRAINING).startswith("running")
    assert "must not be running" in host("train", *TRAINING, status=1)
    host.kill()
    assert host("status_of", *TRAINING) == "lost\nstep-7"
    host.train()
    assert host("status_of", *TRAINING) == "exit 3\nstep-7"
    assert host("status_of", *TRAINING, "--seed=2").startswith("other")
    host.environment["LIBTPU_INIT_ARGS"] = "--a=1"
    assert host("status_of", *TRAINING).startswith("other")
    assert host("tail", "1") == "the last words of 3"
    host.train()
    host("stop")
    wait_for(lambda: host("status") == "stopped")
    # Otherwise, `tpu.launch run` would start it again.
    host.train()
    assert "is not started again" in host("stop")
    assert "was stopped before" in host("stop")
    assert host("status") == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["--xla_a=1 --b='2 3'", ""])
def test_a_host_of_a_slice_runs_a_server(host, metadata, flags):
    """Without flags of the compiler, servers get those of the image."""
    set_hosts(metadata, "10.0.0.2", "10.0.0.3")
    settings = host.home / "tpu-env"
    settings.write_text("TPU_OF_IMAGE='set by it'\nLIBTPU_INIT_ARGS=--image\n")
    host.environment |= {"LIBTPU_INIT_ARGS": flags} if flags else {}
    host("serve")
    host.train()
    port = host.environment["ALBERT_TPU_PORT"]
    assert host.trained()[:6] == [
        "0",  # the servers have the TPU
        *(flags, "-m", "albert_tf.run_pretraining", "--strategy=tpu"),
        f"--tpu_name=grpc://10.0.0.2:{port},10.0.0.3:{port}",
    ]
    (environment,) = host.served()
    expected = {
        "CLOUD_TPU_TASK_ID": "0",
        "LIBTPU_INIT_ARGS": flags or "--image",
        "TPU_HOSTNAME_OVERRIDE": "10.0.0.2",
        "TPU_MESH_CONTROLLER_ADDRESS": "10.0.0.2:8476",
        "TPU_OF_IMAGE": "set by it",
        "TPU_TASK_PORT": port,
    }
    assert {name: environment.get(name) for name in expected} == expected
    # A server that has been used ignores SIGTERM, and is replaced.
    wait_for((host.home / "used").exists)
    host.environment["ALBERT_TPU_GRACE_S"] = "1"
    host("serve")
    assert len(host.served()) == 2


@pytest.mark.slow
def test_a_host_of_a_slice_trains_by_jax(host, metadata):
    """Without a server; what an earlier run has left ends first."""
    set_hosts(metadata, "10.0.0.2", "10.0.0.3")
    host.environment["ALBERT_TPU_RUNTIME"] = "pjrt"
    host.plan("wait", "0")
    host.train()
    assert host.trained() == [
        *("", "", "-m", "albert_tf.run_pretraining"),
        *("--runtime=pjrt", "--strategy=multi_worker", *TRAINING),
    ]
    host("serve")
    assert host("status_of", *TRAINING) == "exit 143\nstep-7"
    host.train()
    assert host("status") == "exit 0"
    assert not host.served()
    del host.environment["ALBERT_TPU_RUNTIME"]
    assert host("status_of", *TRAINING).startswith("other")


@pytest.mark.slow
def test_without_metadata_a_slice_is_not_treated_as_one_host(host):
    host.environment["GCE_METADATA_HOST"] = "127.0.0.1:9"
    for words in (["serve"], ["train", *TRAINING]):
        said = host(*words, status=1)
        assert "metadata server must return the hosts" in said
    assert not (host.home / "trained").exists()
