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
    start    start training in the background; it logs to host 0 and --log_dir
    status   print the states of the request, the slice and training
    logs     follow the log of training
    stop     stop training; it saves a checkpoint within two steps
    delete   delete the slice and the request; the run and its logs remain

--dry_run prints the commands of gcloud instead of running them. Settings, with
their defaults; each can be set by an environment variable instead, e.g. --zone
by ALBERT_TPU_ZONE:

    --project=                     Google Cloud project
    --zone=                        zone in which you have quota, e.g. us-west4-a
    --name=albert                  name of the slice and of the request
    --accelerator_type=v5litepod-8 version and size, e.g. v4-128 or v6e-8
    --runtime_version=             VM image; default: the base image of the chip
    --tier=spot                    spot, on_demand or reserved
    --valid_until_duration=        longest wait for capacity, e.g. 6h
    --service_account=             that of the hosts; default: Compute Engine's
    --libtpu_init_args=            flags of the TPU compiler on the hosts
    --create_flags=                further flags for create, e.g. --network=n
    --user=                        user on the hosts; default: as here
    --ssh_flags=                   further flags for ssh and scp
    --log_dir=                     gs://... to which the log is copied each
                                   minute
    --max_code_mb=100              limit of the packed code
    --poll_s=60                    seconds between checks of the state
    --query_s=120                  limit of one query of a state
    --command_s=1800               limit of other commands, e.g. set-up
    --grace_s=180                  seconds before run acts on an end or a failed
                                   start of training
    --unreachable_s=1800           seconds that a slice may be silent or not
                                   READY before run replaces it
    --max_failures=3               limit of failed requests; of starts and of
                                   slices without a new checkpoint
    --max_preemptions=10           limit of preemptions in a row without a new
                                   checkpoint
    --delete_when_done=false       true: delete the slice after training

--flagfile=FILE, here or after --, reads --accelerator_type and
--libtpu_init_args from a file such as configs/hardware/v5e_256.flags. Example:

    python -m tpu.launch run --project=mine --zone=us-west4-a --name=base \
        --log_dir=gs://bucket/logs/base -- \
        --flagfile=configs/pretrain/base_v2_125k.flags \
        --flagfile=configs/hardware/v5e_8.flags \
        --output_dir=gs://bucket/runs/base \
        --input_file='gs://bucket/records/train/*.tfrecord'

Exit status of run: that of training (0 when all steps are done; for 1 and 130
see docs/runs.md); 75 if --max_failures slices in a row brought no new
checkpoint, e.g. since set-up failed on each, or after --max_preemptions; or 1
if no slice could be created.
"""

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
import types
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

# Names of settings, what their text must match, and how an error says it.
RULES = {
    "project|zone": (".+", "given, or ALBERT_TPU_{}"),
    "name": (
        "[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
        "lower-case letters, digits and -",
    ),
    "accelerator_type": (
        "(v[234]|v5litepod|v5p|v6e)-[1-9][0-9]*",
        "v2, v3, v4, v5litepod, v5p or v6e and a size, e.g. v5litepod-256",
    ),
    "tier": ("spot|on_demand|reserved", "spot, on_demand or reserved"),
    "libtpu_init_args": ("(--.*)?", "flags that begin with --"),
    "log_dir": ("(gs://.*)?", "gs://..."),
    ".*_s": ("0|[1-9][0-9]*", "a number"),
    "max_.*": ("[1-9][0-9]*", "at least 1"),
    # A misspelt true would leave a slice running, and charged.
    "delete_when_done": ("true|false", "true or false"),
}

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
        self._login = f"{settings.user}@" * bool(settings.user) + settings.name
        self._place = [
            f"--project={settings.project}",
            f"--zone={settings.zone}",
        ]

    def _tpus(self, *words: str, capture: bool = False) -> Done:
        limit_s = self.settings.query_s if capture else self.settings.command_s
        command = ["gcloud", "compute", "tpus", *words, *self._place]
        return self._call(command, limit_s, capture)

    def _request(self, verb: str, *words: str) -> int:
        words = "queued-resources", verb, self.settings.name, *words
        return self._tpus(*words).returncode

    def _connect(self, verb: str, *words: str, capture: bool = False) -> Done:
        options = [f"--{verb}-flag={option}" for option in CONNECTION]
        flags = ["--quiet", *options, *self.settings.ssh_flags.split()]
        return self._tpus("tpu-vm", verb, *words, *flags, capture=capture)

    def _remote(self, worker: str, command: str, capture: bool = False) -> Done:
        words = self._login, f"--worker={worker}", f"--command={command}"
        return self._connect("ssh", *words, capture=capture)

    def _host_command(self, *words: str) -> str:
        flags = self.settings.libtpu_init_args
        environment = ["env", f"LIBTPU_INIT_ARGS={flags}"] if flags else []
        return shlex.join([*environment, "bash", ON_HOST, *words])

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

    def training_state(self) -> str:
        """As by `on_host.sh status_of`; "unreachable" without an answer."""
        said = self._ask_host("status_of", *self._training_flags)
        states = r"^(?:none|running|stopped|lost|other|exit \d+)$"
        return next(iter(re.findall(states, said, re.M)), "unreachable")

    def newest_checkpoint(self) -> str:
        """The name of the newest checkpoint in the log; "" if unknown."""
        said = self._ask_host("newest_checkpoint")
        return next(iter(re.findall(r"^step-\d+$", said, re.M)), "")

    def print_end_of_log(self) -> None:
        print(self._ask_host("tail", "50"))

    def create(self) -> int:
        settings = self.settings
        flags = {
            "node-id": settings.name,
            "accelerator-type": settings.accelerator_type,
            "runtime-version": settings.runtime_version,
            "valid-until-duration": settings.valid_until_duration,
            "service-account": settings.service_account,
        }
        given = [f"--{name}={value}" for name, value in flags.items() if value]
        tier = [f"--{settings.tier}"] * (settings.tier != "on_demand")
        more = settings.create_flags.split()
        return self._request("create", *given, *tier, *more)

    def delete(self) -> int:
        return self._request("delete", "--force", "--quiet")

    def delete_until_gone(self) -> None:
        """Retries without limit: a slice that is not deleted is charged."""
        while self.delete() and self.request_state():
            say("the slice cannot be deleted, is STILL CHARGED: trying again")
            time.sleep(self.settings.poll_s)

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
            time.sleep(self.settings.poll_s)
        return 0

    def pack(self) -> None:
        """Makes the archive of the files that git tracks or does not ignore."""
        list_files = ["git", "ls-files", "-zco", "--exclude-standard"]
        try:
            listed = subprocess.check_output(list_files, cwd=ROOT, text=True)
            # git lists deleted files, too.
            names = listed.split("\0")[:-1]
            files = [name for name in names if (ROOT / name).exists()]
            with tarfile.open(self._archive, "w:gz") as archive:
                for name in files:
                    archive.add(ROOT / name, name)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(
                f"{ROOT} must be a checkout of git, of files that can be read",
                received=error,
                remedy="Get one by git clone.",
            ) from None
        limit_mb = self.settings.max_code_mb
        size_mb = os.path.getsize(self._archive) // 1_000_000
        if size_mb > limit_mb:
            files.sort(key=lambda name: -os.path.getsize(ROOT / name))
            raise UserError(
                f"the packed code must have at most --max_code_mb={limit_mb} MB"
                ", since each host gets a copy",
                received=f"{size_mb} MB, with {' '.join(files[:3])}",
                remedy="Move data out of the checkout, or add it to "
                ".git/info/exclude.",
            )

    def setup(self) -> int:
        self.pack()
        return self.install()

    def install(self) -> int:
        """Copies the archive to all hosts, and installs it."""
        copy = "scp", self._archive, f"{self._login}:", "--worker=all"
        unpack = (
            "rm -rf albert_tf && mkdir albert_tf && tar -xzf "
            f"albert_tf.tar.gz -C albert_tf && bash {ON_HOST} install"
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
        return self._serve_and("train", self.settings.log_dir)

    def check(self) -> int:
        return self._serve_and("check")

    def _serve_and(self, *words: str) -> int:
        """Starts the servers of all hosts, then the trainer on host 0."""
        return (
            self._refuse_if_running()
            or self._on_host("all", "serve")
            or self._on_host("0", *words, *self._training_flags)
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
        self.settings.command_s = math.inf
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
        self._slice, self._settings = slice_, slice_.settings
        self._failures = 0  # of requests, in a row
        # Without a new checkpoint: starts on this slice, replaced slices, and
        # preemptions.
        self._starts = self._replaced = self._preempted = 0
        self._checkpoint = ""  # the newest one
        self._problem = ""  # of the last start
        self._retry_s = 0  # pause before a request, once one was accepted
        self._states = ("", "", "")
        self._changed_s = 0.0  # when the states changed or training started
        self._silent_s = math.inf  # since when no host answers

    def until_done(self) -> int:
        """Returns the exit status of training."""
        # All set-ups use one archive: files may change during the run.
        self._slice.pack()
        while (status := self._react(*self._observe())) is None:
            if self._failures >= self._settings.max_failures:
                self._slice.describe_request()
                raise UserError(
                    f"the request failed {self._failures} times",
                    remedy="See the message above: quota, zone, accelerator "
                    "type or capacity, or an outage.",
                )
            time.sleep(self._settings.poll_s)
        return status

    def _observe(self) -> tuple[str, str, str]:
        """The states of request, slice and training; "" if there is none."""
        slice_state = training = ""
        request = self._slice.request_state()
        if request == "ACTIVE":
            slice_state = self._slice.slice_state()
            self._failures = 0
        if slice_state == "READY":
            training = self._slice.training_state()
        states, now_s = (request, slice_state, training), time.monotonic()
        if states != self._states:
            named = zip(("request", "slice", "training"), states, strict=True)
            say("; ".join(f"{name}: {s or 'none'}" for name, s in named))
            self._states, self._changed_s = states, now_s
        # Not from the last change: a broken slice may alternate between two
        # states.
        silent = request in ("SUSPENDING", "DELETING") or (
            request == "ACTIVE" and training in ("", "unreachable")
        )
        self._silent_s = min(self._silent_s, now_s) if silent else math.inf
        return states

    def _react(
        self, request: str, slice_state: str, training: str
    ) -> int | None:
        """Does what the states need; returns the status of `run` at its end."""
        now_s = time.monotonic()
        too_long = now_s - self._silent_s >= self._settings.unreachable_s
        if not request:
            self._request()
        elif request == "FAILED":
            self._failures += 1
            if self._failures < self._settings.max_failures:
                self._slice.delete()
        elif {request, slice_state} & {"SUSPENDED", "PREEMPTED", "TERMINATED"}:
            self._count_preemption()
            self._slice.delete()
        elif request in ("SUSPENDING", "DELETING"):
            if too_long:
                self._slice.delete()
        elif training in ("", "unreachable"):
            if too_long and training:
                self._replace("host 0 does not answer")
            elif too_long:
                self._replace("the slice is not READY")
        elif training in ("none", "lost"):
            if training == "lost":
                self._forget_failures()
            self._begin(set_up=True)
        elif training == "running":
            # Not later: a silent host cannot report its checkpoints.
            counts = self._replaced + self._starts + self._preempted
            if counts or not self._checkpoint:
                self._forget_failures()
        elif training == "exit 0":
            if self._settings.delete_when_done == "true":
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
        elif now_s - self._changed_s >= self._settings.grace_s:
            if training not in ("exit 143", "exit 75"):
                self._slice.print_end_of_log()
                say(f"training ended: {training}. {AGAIN}")
                return int(training.removeprefix("exit "))
            self._forget_failures()
            # If the first start fails, the files of a host may be missing.
            self._begin(set_up=self._starts > 0)
        return None

    def _request(self) -> None:
        self._starts = 0
        if not self._slice.create():
            self._retry_s = max(self._settings.grace_s, 1)
        elif self._retry_s:
            say("the slice cannot be requested: see above. Nothing is charged.")
            time.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, 1800)
        else:
            self._failures += 1

    def _begin(self, *, set_up: bool) -> None:
        """Starts training, or replaces a slice on which no start succeeds."""
        limit, grace_s = self._settings.max_failures, self._settings.grace_s
        self._starts += 1
        if self._starts > limit:  # a host may be broken
            self._replace(self._problem)
            return
        say(f"starting training, attempt {self._starts} of {limit}")
        self._changed_s = time.monotonic()
        times = f"{self._starts} times without a new checkpoint"
        self._problem = f"training was started {times}"
        if (set_up and self._slice.install()) or self._slice.start():
            # A host may reboot, or a preemption may not be reported yet.
            self._problem = "training cannot be started"
            say(f"{self._problem}: see above. Next attempt in {grace_s} s.")
            time.sleep(grace_s)

    def _replace(self, problem: str) -> None:
        """Deletes the slice, so that `run` requests another one."""
        self._replaced += 1
        if self._replaced >= self._settings.max_failures:
            self._slice.print_end_of_log()
            raise RetryError(
                f"{problem}, on {self._replaced} slices. The last one still "
                f"exists, and is charged until: {self._slice.deletion()}"
            )
        say(f"{problem}: requesting a new slice")
        # Otherwise, the next poll would find and count the same slice again.
        self._slice.delete_until_gone()

    def _count_preemption(self) -> None:
        """Counts the end of a slice on which training was started."""
        self._preempted += self._starts > 0
        if self._starts and self._preempted >= self._settings.max_preemptions:
            self._slice.delete_until_gone()
            raise RetryError(
                f"training was preempted {self._preempted} times without a new "
                "checkpoint. No slice exists any more",
                remedy="Save checkpoints more often "
                "(--save_checkpoints_minutes), or use --tier=on_demand.",
            )
        self._starts = 0

    def _forget_failures(self) -> None:
        """Resets the counts if training has saved a checkpoint since."""
        newest = self._slice.newest_checkpoint()
        if newest not in ("", self._checkpoint):
            self._starts = self._replaced = self._preempted = 0
            self._checkpoint = newest


def read_hardware(words: Iterable[str]) -> dict[str, str]:
    """The slice and the compiler's flags among the flags of training.

    Also in their flag files. The trainer ignores these two.
    """
    with contextlib.chdir(ROOT):  # as on the hosts
        expanded = shipped.expand(words)
    flags = (word.lstrip("-").partition("=") for word in expanded)
    return {
        name: value
        for name, _, value in flags
        if name in ("accelerator_type", "libtpu_init_args")
    }


def parse(command: str, own: list[str], training_flags: list[str]) -> Any:
    """Returns the settings: own flags, those of training, the environment."""
    texts = {
        n: os.getenv(f"ALBERT_TPU_{n.upper()}", SETTINGS[n]) for n in SETTINGS
    }
    texts |= read_hardware(training_flags)
    settings = types.SimpleNamespace(dry_run=False)
    for word in own:
        name, equals, text = word.removeprefix("--").partition("=")
        if word in ("--dry_run", "--dry_run=true"):
            settings.dry_run = True
        elif not (word.startswith("--") and equals):
            raise UserError("settings look like --SETTING=VALUE", received=word)
        elif name == "flagfile":
            texts |= read_hardware([word])
        elif name in SETTINGS:
            texts[name] = text
        else:
            raise UserError(
                f"there is no setting --{name}", remedy="See --help."
            )
    for names, (pattern, wanted) in RULES.items():
        for name in filter(re.compile(names).fullmatch, texts):
            if not re.fullmatch(pattern, texts[name]):
                wanted = wanted.format(name.upper())
                raise UserError(f"--{name} must be {wanted}", texts[name])
    for name, text in texts.items():
        is_number = name.endswith("_s") or name.startswith("max_")
        setattr(settings, name, int(text) if is_number else text)
    version, size = settings.accelerator_type.split("-")
    settings.runtime_version = (
        settings.runtime_version or RUNTIME_VERSIONS[version]
    )
    # The server of tensorflow-tpu 2.20.0, start_grpc_tpu_worker, ends with a
    # KeyError on v6e; a slice of one host needs no server.
    if version == "v6e" and int(size) > 8:
        raise UserError(
            "tensorflow-tpu 2.20.0 has no server for v6e slices of several "
            "hosts",
            received=settings.accelerator_type,
            remedy="Take v6e-8, or v5litepod or v5p.",
        )
    ours = {"dry_run", *SETTINGS} - {"accelerator_type", "libtpu_init_args"}
    for flag in training_flags:
        if flag.partition("=")[0].lstrip("-").removeprefix("no") in ours:
            raise UserError(
                "settings of the launcher must stand before --, since the "
                "flags after it are those of training",
                received=flag,
            )
    if command in ("run", "check", "start") and not any(
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
    command, *own = words[:end] or ["--help"]
    training_flags = words[end + 1 :]
    if {"-h", "--help"} & {command, *own}:
        print(__doc__)
        return 0
    try:
        if command not in COMMANDS:
            raise UserError(
                f"the command must be one of: {' '.join(COMMANDS)}", command
            )
        settings = parse(command, own, training_flags)
        with tempfile.TemporaryDirectory() as scratch:
            archive = f"{scratch}/albert_tf.tar.gz"
            run = show if settings.dry_run else call
            slice_ = Slice(settings, training_flags, archive, run)
            return getattr(slice_, command)()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
