r"""Train on a Cloud TPU slice of one or several hosts; see docs/tpu.md.

Requests the slice as a queued resource, copies this code to its hosts, and
starts and monitors training there. Runs on your machine or in Cloud Shell, and
needs gcloud, git and Python, but no package.

    python -m tpu.launch COMMAND [--SETTING=VALUE ...] [-- FLAG ...]

The flags after -- are those of albert_tf.run_pretraining. Commands:

    run      create, setup and start, then monitor training until it ends; if
             the slice is preempted or a host fails, continue training, on a
             new slice if necessary
    create   request the slice
    wait     wait until the slice exists
    setup    copy this code to all hosts, install it, check that TPUs are found
    check    run the trainer's --dry_run on the TPU, with some real steps
    start    start training in the background; it logs to host 0
    status   print the states of the request, the slice and training
    logs     follow the log of training
    stop     stop training; it saves a checkpoint within two steps
    delete   delete the slice and the request; the run and its logs remain

--dry_run prints the commands of gcloud instead of running them. Settings, with
their defaults; each can be set by an environment variable instead, e.g. --zone
by ALBERT_TPU_ZONE:

    --project=                     Google Cloud project; default: gcloud's
    --zone=                        zone in which you have quota, e.g. us-west4-a
    --name=albert                  name of the slice and of the request
    --accelerator_type=v5litepod-8 version and size, e.g. v4-128 or v6e-8
    --libtpu_init_args=            flags of the TPU compiler on the hosts
    --runtime=tensorflow           or pjrt: JAX trains, one process on each host
    --create_flags=--spot          further flags of `gcloud compute tpus
                                   queued-resources create`, e.g. --reserved or
                                   --service-account=ACCOUNT
    --ssh_flags=                   those of `gcloud compute tpus tpu-vm ssh` and
                                   scp
    --delete_when_done             delete the slice after training

The flags and flag files after -- are read for --accelerator_type,
--libtpu_init_args and --runtime. Example:

    python -m tpu.launch run --zone=us-west4-a --name=base -- \
        --flagfile=configs/pretrain/base_v2_125k.flags \
        --flagfile=configs/hardware/v5e_8.flags \
        --output_dir=gs://bucket/runs/base \
        --input_file='gs://bucket/records/train/*.tfrecord'

Exit status of run: that of training (0 when all steps are done; for 1 and 130
see docs/runs.md); 75 if several slices in a row brought no new checkpoint, e.g.
since they were preempted or set-up failed on each; or 1 if no slice could be
created.
"""

import argparse
import contextlib
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from albert_tf.errors import RetryError, UserError
from albert_tf.io import shipped

ROOT = pathlib.Path(__file__).resolve().parents[1]
ON_HOST = "albert_tf/tpu/on_host.sh"  # in the home directory of a host

assert __doc__
COMMANDS = re.findall(r"^    (\w+)  +\w", __doc__, re.M)
# The defaults by name, as text.
SETTINGS = dict(re.findall(r"^    --(\w+)=(\S*) ", __doc__, re.M))
SWITCHES = ("delete_when_done", "dry_run")

# https://cloud.google.com/tpu/docs/runtimes
RUNTIME_VERSIONS = {
    **dict.fromkeys(("v2", "v3", "v4"), "tpu-ubuntu2204-base"),
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}

# A preempted host does not close its connections, so ssh would wait without
# end; and networks drop idle connections.
CONNECTION = ("-oConnectTimeout=30", "-oServerAliveInterval=30")

TIMEOUT_STATUS = 124

POLL_S = 60  # between checks of the state
QUERY_S = 120  # limit of one query of a state
COMMAND_S = 1800  # limit of other commands, e.g. set-up
GRACE_S = 180  # before `run` acts on an end or a failed start of training
# How long a slice may be silent or not READY before `run` replaces it.
UNREACHABLE_S = 1800
# Limits of `run`: of requests that become FAILED in a row; and, without a new
# checkpoint, of starts on one slice and of slices.
MAX_FAILURES = 3
MAX_STARTS = 3
MAX_SLICES = 5

Done = subprocess.CompletedProcess
# Runs a command within a limit of seconds; may capture its output.
Call = Callable[[list[str], float, bool], Done]


def call(command: list[str], limit_s: float, capture: bool) -> Done:
    """Runs a command; status 124 after the limit."""
    # A file, since a pipe would stay open if ssh outlives gcloud.
    with tempfile.TemporaryFile("w+") as output:
        stdout = output if capture else None
        try:
            process = subprocess.Popen(command, stdout=stdout)
        except FileNotFoundError:
            raise UserError(
                "gcloud must be installed: https://cloud.google.com/sdk/docs"
            ) from None
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = TIMEOUT_STATUS
            process.terminate()  # gcloud then ends its ssh
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
        output.seek(0)
        return Done(command, status, output.read())


def show(command: list[str], limit_s: float, capture: bool) -> Done:
    """Prints a command instead; every state is ACTIVE."""
    print(shlex.join(command))
    return Done(command, 0, "ACTIVE")


def say(text: str) -> None:
    """Prints a line with the time."""
    print(time.strftime("%F %T"), text, flush=True)


class Slice:
    """The commands for one slice; those that return an int return a status."""

    def __init__(
        self, settings: Any, training_flags: list[str], archive: str, call: Call
    ) -> None:
        self.settings = settings
        self._training_flags = training_flags
        self._archive = archive
        self._call = call
        self._limit_s: float = COMMAND_S
        self._place = [
            f"--{name}={getattr(settings, name)}"
            for name in ("project", "zone")
            if getattr(settings, name)
        ]

    @property
    def _uses_jax(self) -> bool:
        return self.settings.runtime == "pjrt"

    def _tpus(self, *words: str, capture: bool = False) -> Done:
        command = ["gcloud", "compute", "tpus", *words, *self._place]
        return self._call(
            command, QUERY_S if capture else self._limit_s, capture
        )

    def _request(self, verb: str, *words: str) -> int:
        words = "queued-resources", verb, self.settings.name, *words
        return self._tpus(*words).returncode

    def _connect(self, verb: str, *words: str, capture: bool = False) -> Done:
        options = [f"--{verb}-flag={option}" for option in CONNECTION]
        flags = ["--quiet", *options, *self.settings.ssh_flags.split()]
        return self._tpus("tpu-vm", verb, *words, *flags, capture=capture)

    def _remote(self, worker: str, command: str, capture: bool = False) -> Done:
        words = self.settings.name, f"--worker={worker}", f"--command={command}"
        return self._connect("ssh", *words, capture=capture)

    def _host_command(self, *words: str) -> str:
        flags, environment = self.settings.libtpu_init_args, []
        if flags:
            environment.append(f"LIBTPU_INIT_ARGS={flags}")
        if self._uses_jax:
            environment.append("ALBERT_TPU_RUNTIME=pjrt")
        command = ["env", *environment] if environment else []
        return shlex.join([*command, "bash", ON_HOST, *words])

    def _on_host(self, worker: str, *words: str) -> int:
        return self._remote(worker, self._host_command(*words)).returncode

    def _ask_host(self, *words: str) -> str:
        """The output of on_host.sh on host 0; "none" before the set-up."""
        command = self._host_command(*words)
        command = f"if [ -f {ON_HOST} ]; then {command}; else echo none; fi"
        return self._remote("0", command, capture=True).stdout

    def _state(self, *words: str) -> str:
        done = self._tpus(*words, capture=True)
        return "unknown" if done.returncode else done.stdout.strip()

    def request_state(self) -> str:
        """The state of the request; "" if there is no request."""
        pattern = f"--filter=name~/queuedResources/{self.settings.name}$"
        form = "--format=value(state.state)"
        return self._state("queued-resources", "list", pattern, form)

    def slice_state(self) -> str:
        form = "--format=value(state)"
        return self._state("tpu-vm", "describe", self.settings.name, form)

    def training_state(self) -> tuple[str, str]:
        """The state of training, and its newest checkpoint; "" if unknown.

        The state is that of `on_host.sh status_of`; "unreachable" without an
        answer.
        """
        said = self._ask_host("status_of", *self._training_flags)
        states = r"^(?:none|running|stopped|lost|other|exit \d+)$"
        found = (
            re.search(pattern, said, re.M)
            for pattern in (states, r"^step-\d+$")
        )
        state, checkpoint = (match[0] if match else "" for match in found)
        return state or "unreachable", checkpoint

    def print_end_of_log(self) -> None:
        print(self._ask_host("tail", "50"))

    def create(self) -> int:
        kind = self.settings.accelerator_type
        return self._request(
            "create",
            f"--node-id={self.settings.name}",
            f"--accelerator-type={kind}",
            f"--runtime-version={RUNTIME_VERSIONS[kind.partition('-')[0]]}",
            *self.settings.create_flags.split(),
        )

    def delete(self) -> int:
        return self._request("delete", "--force", "--quiet")

    def delete_until_gone(self) -> None:
        """Retries without limit: a slice that is not deleted is charged."""
        while self.delete() and self.request_state():
            say("the slice cannot be deleted, is STILL CHARGED: trying again")
            time.sleep(POLL_S)

    def deletion(self) -> str:
        """The command that deletes the slice."""
        words = [*self._place, f"--name={self.settings.name}"]
        return shlex.join(["python", "-m", "tpu.launch", "delete", *words])

    def wait(self) -> int:
        while (state := self.request_state()) != "ACTIVE":
            if state in ("", "FAILED", "SUSPENDED"):
                raise UserError(
                    "the request must become ACTIVE",
                    received=state or "none",
                    remedy="See the command status; then delete and create.",
                )
            say(f"request: {state}")
            time.sleep(POLL_S)
        return 0

    def pack(self) -> None:
        """Makes the archive of the files that git tracks or does not ignore."""
        list_files = ["git", "ls-files", "-zco", "--exclude-standard"]
        try:
            listed = subprocess.check_output(list_files, cwd=ROOT, text=True)
            with tarfile.open(self._archive, "w:gz") as archive:
                for name in listed.split("\0")[:-1]:
                    if (ROOT / name).exists():  # git lists deleted files, too
                        archive.add(ROOT / name, name)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(
                f"{ROOT} must be a checkout of git, of files that can be read",
                received=error,
                remedy="Get one by git clone.",
            ) from None

    def setup(self) -> int:
        self.pack()
        return self.install()

    def install(self) -> int:
        """Copies the archive to all hosts, and installs it."""
        copy = "scp", self._archive, f"{self.settings.name}:", "--worker=all"
        unpack = (
            "rm -rf albert_tf && mkdir albert_tf && tar -xzf "
            "albert_tf.tar.gz -C albert_tf && " + self._host_command("install")
        )
        return (
            self._refuse_if_running()
            or self._connect(*copy).returncode
            or self._remote("all", unpack).returncode
        )

    def _refuse_if_running(self) -> int:
        """Otherwise, training would lose its modules and servers."""
        return self._remote(
            "0",  # only this host knows
            f'if [ -f {ON_HOST} ] && [ "$(bash {ON_HOST} status)" = running ]; '
            "then echo 'error: training must not be running' >&2; exit 1; fi",
        ).returncode

    def start(self) -> int:
        return self._serve_and("train")

    def check(self) -> int:
        return self._serve_and("check")

    def _serve_and(self, *words: str) -> int:
        """Starts the servers of all hosts, then the trainer on host 0.

        JAX needs no servers, and a trainer on each host.
        """
        where = "all" if self._uses_jax else "0"
        return (
            self._refuse_if_running()
            or self._on_host("all", "serve")
            or self._on_host(where, *words, *self._training_flags)
        )

    def describe_request(self) -> int:
        return self._request("describe")

    def status(self) -> int:
        form = "--format=yaml(state,health,acceleratorType,runtimeVersion)"
        words = "tpu-vm", "describe", self.settings.name, form
        return (
            self.describe_request()
            or self._tpus(*words).returncode
            or self._on_host("0", "status")
        )

    def logs(self) -> int:
        self._limit_s = math.inf
        return self._on_host("0", "logs")

    def stop(self) -> int:
        return self._on_host("0", "stop")

    def run(self) -> int:
        if not self.settings.dry_run:
            return Run(self).until_done()
        print("# git ls-files | tar")
        for step in (
            *(self.request_state, self.create, self.slice_state),
            *(self.training_state, self.install, self.start, self.delete),
        ):
            print(f"# {step.__name__}")
            step()
        return 0


AGAIN = (
    "The slice still exists. To train on it again: start, then run; if the "
    "code has changed, setup first."
)


class Run:
    """Training until it ends, on as many slices as it takes."""

    def __init__(self, slice_: Slice) -> None:
        self._slice = slice_
        self._was_accepted = False  # a request
        self._failures = 0  # of requests, in a row
        # Without a new checkpoint: starts on this slice, and replaced slices.
        self._starts = self._slices = 0
        self._checkpoint = ""  # the newest one
        self._states = ("", "", "")
        self._changed_s = 0.0  # when the states changed or training started
        self._silent_s = math.inf  # since when no host answers

    def until_done(self) -> int:
        """Returns the exit status of training."""
        # All set-ups use one archive: files may change during the run.
        self._slice.pack()
        while (status := self._react(*self._observe())) is None:
            time.sleep(POLL_S)
        return status

    def _observe(self) -> tuple[str, str, str]:
        """The states of request, slice and training; "" if there is none."""
        slice_state = training = checkpoint = ""
        request = self._slice.request_state()
        if request == "ACTIVE":
            slice_state = self._slice.slice_state()
            self._failures = 0
        if slice_state == "READY":
            training, checkpoint = self._slice.training_state()
        if checkpoint not in ("", self._checkpoint):
            self._checkpoint = checkpoint
            self._starts = self._slices = 0
        states, now_s = (request, slice_state, training), time.monotonic()
        if states != self._states:
            named = zip(("request", "slice", "training"), states, strict=True)
            say("; ".join(f"{name}: {s or 'none'}" for name, s in named))
            self._states, self._changed_s = states, now_s
        # Not from the last change: a broken slice may alternate between two
        # states.
        silent = request == "ACTIVE" and training in ("", "unreachable")
        self._silent_s = min(self._silent_s, now_s) if silent else math.inf
        return states

    def _react(
        self, request: str, slice_state: str, training: str
    ) -> int | None:
        """Does what the states need; returns the status of `run` at its end."""
        now_s = time.monotonic()
        too_long = now_s - self._silent_s >= UNREACHABLE_S
        if not request:
            self._request()
        elif request == "FAILED":
            self._count_failure()
        elif {request, slice_state} & {"SUSPENDED", "PREEMPTED", "TERMINATED"}:
            self._replace("the slice was preempted", counts=self._starts > 0)
        elif training in ("", "unreachable"):
            if too_long and training:
                self._replace("host 0 does not answer")
            elif too_long:
                self._replace("the slice is not READY")
        elif training in ("none", "lost"):
            self._begin(set_up=True)
        elif training == "exit 0":
            if self._slice.settings.delete_when_done:
                self._slice.delete_until_gone()
                say("training is done")
            else:
                deletion = self._slice.deletion()
                say(f"training is done; charged until: {deletion}")
            return 0
        elif training == "stopped":
            raise UserError(f"training was stopped. {AGAIN}")
        elif training == "other":
            raise UserError(
                f"training on this slice has other flags. {AGAIN} To inspect "
                "it: status, logs. Or choose another --name"
            )
        # "exit N": training may end before a preemption is reported.
        elif training != "running" and now_s - self._changed_s >= GRACE_S:
            if training not in ("exit 143", "exit 75"):
                self._slice.print_end_of_log()
                say(f"training ended: {training}. {AGAIN}")
                return int(training.removeprefix("exit "))
            # If the first start fails, the files of a host may be missing.
            self._begin(set_up=self._starts > 0)
        return None

    def _request(self) -> None:
        self._starts = 0
        if not self._slice.create():
            self._was_accepted = True
        elif self._was_accepted:
            say("the slice cannot be requested: see above. Nothing is charged.")
            time.sleep(GRACE_S)
        else:
            raise UserError(
                "the slice cannot be requested", remedy="See the message above."
            )

    def _count_failure(self) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._slice.describe_request()
            raise UserError(
                f"the request failed {self._failures} times",
                remedy="See the message above: quota, zone, accelerator type "
                "or capacity, or an outage.",
            )
        self._slice.delete()

    def _begin(self, *, set_up: bool) -> None:
        """Starts training, or replaces a slice on which no start succeeds."""
        self._starts += 1
        if self._starts > MAX_STARTS:  # a host may be broken
            self._replace(f"{MAX_STARTS} starts brought no new checkpoint")
            return
        say(f"starting training, attempt {self._starts} of {MAX_STARTS}")
        self._changed_s = time.monotonic()
        if (set_up and self._slice.install()) or self._slice.start():
            # A host may reboot, or a preemption may not be reported yet.
            say(f"training cannot be started: see above; waiting {GRACE_S} s")
            time.sleep(GRACE_S)

    def _replace(self, problem: str, *, counts: bool = True) -> None:
        """Deletes the slice, so that the next poll requests another one."""
        self._slices += counts
        if self._slices >= MAX_SLICES:
            self._slice.print_end_of_log()
            raise RetryError(
                f"{problem}, and {self._slices} slices brought no new "
                f"checkpoint. Delete the last one: {self._slice.deletion()}",
                remedy="If they were preempted, save checkpoints more often "
                "(--save_checkpoints_minutes), or use on-demand slices "
                "(--create_flags=).",
            )
        say(f"{problem}: requesting a new slice")
        # Otherwise, the next poll would find and count the same slice again.
        self._slice.delete_until_gone()


def read_hardware(words: Iterable[str]) -> dict[str, str]:
    """The slice, the compiler's flags and the runtime, of flags of training.

    Also in their flag files. The trainer ignores the first two.
    """
    with contextlib.chdir(ROOT):  # as on the hosts
        expanded = shipped.expand(words)
    flags = (word.lstrip("-").partition("=") for word in expanded)
    return {
        name: value
        for name, _, value in flags
        if name in ("accelerator_type", "libtpu_init_args", "runtime")
    }


def parse(own: list[str], training_flags: list[str]) -> argparse.Namespace:
    """Returns the command and its settings.

    Own flags override those of training, which override the environment.
    """
    parser = argparse.ArgumentParser(
        "tpu.launch",
        usage="python -m tpu.launch COMMAND [--SETTING=VALUE ...] "
        "[-- FLAG ...]; see --help",
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=COMMANDS)
    hardware = read_hardware(training_flags)
    for name, default in SETTINGS.items():
        default = os.getenv(f"ALBERT_TPU_{name.upper()}", default)
        parser.add_argument(f"--{name}", default=hardware.get(name, default))
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    settings = parser.parse_args(own)
    version, _, size = settings.accelerator_type.partition("-")
    if version not in RUNTIME_VERSIONS:
        raise UserError(
            "--accelerator_type must begin with a version of TPUs: "
            f"{', '.join(RUNTIME_VERSIONS)}",
            received=settings.accelerator_type,
            remedy="Example: v5litepod-256.",
        )
    if settings.runtime not in ("tensorflow", "pjrt"):
        raise UserError(
            "--runtime must be tensorflow or pjrt", received=settings.runtime
        )
    # The server of tensorflow-tpu 2.20.0, start_grpc_tpu_worker, ends with a
    # KeyError on v6e; a slice of one host needs no server.
    if (version, settings.runtime) == ("v6e", "tensorflow") and (
        size not in ("1", "4", "8")
    ):
        raise UserError(
            "tensorflow-tpu 2.20.0 has no server for v6e slices of several "
            "hosts",
            received=settings.accelerator_type,
            remedy="Take --runtime=pjrt, or v6e-8, v5litepod or v5p.",
        )
    ours = vars(settings).keys() - {
        *("accelerator_type", "libtpu_init_args", "runtime")
    }
    for flag in training_flags:
        if flag.partition("=")[0].lstrip("-") in ours:
            raise UserError(
                "settings of the launcher must stand before --, since the "
                "flags after it are those of training",
                received=flag,
            )
    if settings.command in ("run", "check", "start") and not any(
        flag.startswith("--output_dir=gs://") for flag in training_flags
    ):
        raise UserError(
            "flags of run_pretraining must follow --, with "
            "--output_dir=gs://..., since files on the hosts are lost with the "
            "slice"
        )
    return settings


def main(words: list[str], call: Call = call) -> int:
    """Runs a command line; returns the exit status."""
    end = words.index("--") if "--" in words else len(words)
    own, training_flags = words[:end], words[end + 1 :]
    if not own or {"-h", "--help"} & {*own}:
        print(__doc__)
        return 0
    try:
        settings = parse(own, training_flags)
        with tempfile.TemporaryDirectory() as scratch:
            archive = f"{scratch}/albert_tf.tar.gz"
            run = show if settings.dry_run else call
            slice_ = Slice(settings, training_flags, archive, run)
            return getattr(slice_, settings.command)()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
