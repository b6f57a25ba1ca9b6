"""A directory that acts as Google Cloud, for the tests of `tpu/launch.sh`."""

import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.parse

from tests.helpers.run_processes import PATIENCE_S, free_ports

ROOT = pathlib.Path(__file__).parents[2]

# The files that hosts run in the tests. To copy only these makes `setup` five
# times as fast.
FILES_OF_HOSTS = ("albert_tf", "constraints", "setup.py", "tpu")

SETTINGS = ["--project=mine", "--zone=us-west4-a", "--name=base"]

# These break if a shell expands them once too often, or too seldom.
TRAINING = [
    "--output_dir=gs://bucket/run",
    "--input_file=gs://bucket/*.tfrecord",
    "--dataset=a='b $HOME \"c\"'",
]


class Metadata(http.server.BaseHTTPRequestHandler):
    """Answers like the metadata server of a TPU host."""

    addresses = ("10.0.0.2",)
    preempted = "FALSE"

    def do_GET(self):
        endpoints = ",".join(f"unknown:unknown:{a}" for a in self.addresses)
        answers = {
            "attributes/worker-network-endpoints": endpoints,
            "attributes/agent-worker-number": "0",
            "network-interfaces/0/ip": self.addresses[0],
            "preempted": self.preempted,
            "maintenance-event": "NONE",
        }
        path = urllib.parse.urlparse(self.path).path
        key = path.removeprefix("/computeMetadata/v1/instance/")
        assert self.headers["Metadata-Flavor"] == "Google"
        if key not in answers:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(answers[key].encode())

    def log_message(self, *_):
        pass


def wait_for(function, value):
    """Returns once `function()` is `value`."""
    deadline = time.monotonic() + PATIENCE_S
    while function() != value:
        assert time.monotonic() < deadline, function()
        time.sleep(0.05)


def copy_repository(directory):
    """Copies the files of hosts to a new git repository."""
    subprocess.run(["git", "init", "--quiet", directory], check=True)
    files = subprocess.run(
        ["git", "ls-files", "-z", *FILES_OF_HOSTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, files):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, directory / name)


class Cloud:
    """A directory that acts as Google Cloud for `tpu/launch.sh`.

    Args:
        directory: Gets `gcloud` and the state of the cloud.
        metadata_port: The port of the metadata server.
        repository: The repository whose `tpu/launch.sh` runs.
    """

    def __init__(self, directory, metadata_port, repository):
        self.repository = repository
        self.path = directory / "cloud"
        self.path.mkdir()
        program = directory / "gcloud"
        fake = (ROOT / "tests" / "helpers" / "fake_gcloud.py").read_text()
        program.write_text(f"#!{sys.executable} -S\n{fake}")
        program.chmod(0o755)
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                # Tests of sweeps set TPU_LOAD_LIBRARY in their process.
                if not name.startswith(("ALBERT_TPU_", "TPU_LOAD_LIBRARY"))
            },
            "PATH": f"{directory}:{os.environ['PATH']}",
            "GCE_METADATA_HOST": f"127.0.0.1:{metadata_port}",
            "ALBERT_TPU_PORT": str(free_ports(1)[0]),
        }
        self.set_up(["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
        (self.path / "failing_deletes").touch()

    def set_up(self, states=("ACTIVE",), plan=("0",), num_hosts=1):
        (self.path / "new_states").write_text(" ".join(states))
        (self.path / "plan").write_text("\n".join(plan) + "\n")
        (self.path / "num_hosts").write_text(str(num_hosts))
        Metadata.addresses = ("10.0.0.2", "10.0.0.3")[:num_hosts]

    def launch(self, *words, settings=SETTINGS, **environment):
        return subprocess.run(
            [
                self.repository / "tpu" / "launch.sh",
                words[0],
                *settings,
                *words[1:],
            ],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def run(self, *settings):
        return self.launch(
            "run", "--poll_s=0", "--grace_s=1", *settings, "--", *TRAINING
        )

    def complete(self, *settings):
        """`run`, which must succeed."""
        done = self.run(*settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def succeed(self, *commands):
        """Runs commands; `start` with flags of training."""
        for command in commands:
            flags = ["--", *TRAINING] if command == "start" else []
            assert self.launch(command, *flags).returncode == 0

    def start(self):
        """Starts training, and returns when it runs."""
        self.succeed("start")
        while not (self.path / "trained").exists():
            time.sleep(0.01)

    @property
    def calls(self):
        path = self.path / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def num_served(self):
        """Number of servers that have started."""
        path = self.path / "served"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def verbs(self):
        """The create and delete commands of requests, in order."""
        return [
            call[3]
            for call in self.calls
            if call[2] == "queued-resources" and call[3] in ("create", "delete")
        ]

    def copied_log(self):
        """The parts of the log in gs://bucket/logs, joined."""
        parts = sorted((self.path / "bucket" / "logs").glob("*.log"))
        return "".join(part.read_text() for part in parts)

    def trained(self):
        """TPU_LOAD_LIBRARY and the arguments of Python, for each start."""
        path = self.path / "trained"
        text = path.read_text() if path.exists() else ""
        starts = [start.split("\0") for start in text.split("END\0") if start]
        return [(start[0].split("=")[1], start[1:-1]) for start in starts]
