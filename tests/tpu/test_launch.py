"""`tpu.launch` on a simulated Google Cloud, through its one function `call`.

In the last test, a script stands for gcloud, and a directory for the host.
"""

import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tarfile
import types

import pytest

from albert_tf.config import PretrainingConfig, flags
from tests.helpers.metadata_server import MetadataServer
from tpu import launch

ROOT = pathlib.Path(__file__).parents[2]
PLACE = ["--project=mine", "--zone=us-west4-a", "--name=base"]
TRAINING = ["--output_dir=gs://bucket/run", "--dataset=a='b $HOME \"c\"'"]
# States of a slice whose request is ACTIVE.
SLICE_STATES = ("PREEMPTED", "REPAIRING", "STOPPED", "unknown")


class Cloud:
    """Google Cloud and the hosts of a slice; called as `launch.call` is.

    Attributes:
        plan: How each training ends, five minutes after its start: its exit
            status, "reboot" or "silent" (ssh then fails); also, optionally, the
            checkpoint that it saves at its start, "broken" (later starts on
            this slice fail) or "wiped" (until the next set-up), and the state
            of the slice from then on ("A|B" alternates), two minutes later with
            "late".
        states: Of a new request, one for each query; the last one stays.
        failing: For each verb of gcloud or command of a host, whether a call
            fails, in order; "late" fails after the effect.
        calls: All commands.
        now_s: The time.
    """

    def __init__(self, monkeypatch):
        self.plan, self.states, self.failing = ["0"], ["ACTIVE"], {}
        self.calls, self.starts, self.now_s = [], [], 0.0
        self.archives = []
        self._clear()
        clock = types.SimpleNamespace(
            monotonic=lambda: self.now_s,
            sleep=self._sleep,
            strftime=lambda form: "",
        )
        monkeypatch.setattr(launch, "time", clock)

    def _clear(self):
        self._request, self._words, self._end_s, self._step = None, (), 0, ""

    def _sleep(self, seconds):
        self.now_s += seconds
        assert self.now_s < 1e6, "run does not end"

    def __call__(self, command, limit_s, capture):
        self.calls.append(command)
        verb = command[4]
        if verb == "ssh":
            (remote,) = (w for w in command if w.startswith("--command="))
            verb = re.search(r"on_host\.sh (\w+)", remote)[1]
        limits = {"logs": math.inf, "train": 1800, "status_of": 120}
        assert limit_s == limits.get(verb, limit_s) > 0
        status, said = 255, ""
        if not self._fails(verb, is_remote=command[4] == "ssh"):
            status, said = 0, getattr(self, f"_{verb}", str)() or ""
            if verb == "train":
                self.starts.append(remote)
            elif verb == "scp":
                with tarfile.open(command[5]) as archive:
                    self.archives.append(archive.getnames())
        return subprocess.CompletedProcess(command, status, said)

    def _fails(self, verb, is_remote):
        planned = self.failing.get(verb, [])
        if planned and (fault := planned.pop(0)):
            if fault == "late":
                getattr(self, f"_{verb}")()
            return True
        faults = {"silent"} | (
            {"broken", "wiped"} if verb == "serve" else set()
        )
        return is_remote and bool(faults & {*self._ended})

    @property
    def _ended(self):
        """The plan of the training that has ended."""
        return self._words if self.now_s >= self._end_s else ()

    def _state(self):
        """The state that the end of training has brought."""
        late = 120 * ("late" in self._words)
        for word in self._words if self.now_s >= self._end_s + late else ():
            if word.strip("|").isupper() or word == "unknown":
                return word.split("|")[len(self.calls) % 2 * ("|" in word)]
        return ""

    def _create(self):
        self._request = list(self.states)

    def _list(self):
        if self._request is None:
            return ""
        state, *later = self._request
        self._request = later or [state]
        new = self._state()
        return new if new and new not in SLICE_STATES else state

    def _describe(self):
        return self._state() or "READY"

    def _delete(self):
        self._clear()

    def _install(self):
        self._words = [word for word in self._words if word != "wiped"]

    def _train(self):
        self._words, self._end_s = self.plan.pop(0).split(), self.now_s + 300
        steps = [word for word in self._words if word.startswith("step-")]
        self._step = (*steps, self._step)[0]

    def _status_of(self):
        state = "running" if self._words else "none"
        if self._ended:
            lost = self._words[0] == "reboot"
            state = "lost" if lost else f"exit {self._words[0]}"
        return f"{state}\n{self._step}\n"

    def _tail(self):
        return "the last words"

    def launch(self, command, *words):
        return launch.main([command, *PLACE, *words], self)

    def run(self, *words):
        return self.launch("run", *words, "--", *TRAINING)

    def verbs(self):
        """The create and delete commands of requests, in order."""
        verbs = [call[4] for call in self.calls]
        return [verb for verb in verbs if verb in ("create", "delete")]


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    """With a checkout of one file and a flag file."""
    for name in os.environ:
        if name.startswith("ALBERT_TPU_"):
            monkeypatch.delenv(name)
    root = tmp_path / "two words"
    root.mkdir()
    (root / "setup.py").touch()
    hardware = "--accelerator_type=v5litepod-256\n--libtpu_init_args=--b=2 --c"
    (root / "slice.flags").write_text(f"# Ours.\n{hardware}\n--seed=3\n")
    (root / "own.flags").write_text("--flagfile=slice.flags\n")
    subprocess.run(["git", "init", "--quiet", root], check=True)
    monkeypatch.setattr(launch, "ROOT", root)
    return Cloud(monkeypatch)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["dance"], 2, "invalid choice: 'dance'"),
        (["create", "--colour=red"], 2, "unrecognized arguments: --colour=red"),
        (["create", "--accelerator_type=a100"], 1, "--accelerator_type must"),
        (["create", "--accelerator_type=v6e-16"], 1, "no server for v6e"),
        (["create", "--runtime=jax"], 1, "must be tensorflow or pjrt"),
        (["start", "--", "--flagfile=no.flags"], 1, "--flagfile must be a"),
        (["start"], 1, "flags of run_pretraining must follow --"),
        (["start", "--", "--output_dir=/tmp/x"], 1, "--output_dir=gs://"),
        # After --, it would reach the trainer, on a slice that is charged.
        (["run", "--", *TRAINING, "--dry_run"], 1, "must stand before --"),
        (["run", "--", *TRAINING, "--zone=z"], 1, "Received: --zone=z"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_done(
    cloud, capsys, words, status, message
):
    with pytest.raises(SystemExit) as exited:
        raise SystemExit(cloud.launch(*words))
    assert exited.value.code == status
    assert "error: " in (said := capsys.readouterr().err) and message in said
    assert not cloud.calls


def test_help_has_the_settings_with_their_defaults(cloud, capsys):
    assert launch.main([]) == cloud.launch("create", "--help") == 0
    assert capsys.readouterr().out.count("--name=albert  ") == 2
    assert launch.SETTINGS["create_flags"] == "--spot"
    assert not cloud.calls


@pytest.mark.parametrize(
    ("accelerator", "runtime"),
    [
        ("v4-128", "tpu-ubuntu2204-base"),
        ("v5litepod-256", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-8", "v2-alpha-tpuv6e"),
    ],
)
def test_the_runtime_version_fits_the_chip(
    cloud, monkeypatch, accelerator, runtime
):
    """https://cloud.google.com/tpu/docs/runtimes. Flags replace environment."""
    monkeypatch.setenv("ALBERT_TPU_ACCELERATOR_TYPE", accelerator)
    assert cloud.launch("create") == 0
    monkeypatch.setenv("ALBERT_TPU_CREATE_FLAGS", "--reserved")
    cloud.launch("create", "--create_flags=--network=n --internal-ips")
    call, other = cloud.calls
    assert "--reserved" not in other and "--spot" not in other
    assert {"--network=n", "--internal-ips"} < {*other}
    assert " ".join(call) == (
        "gcloud compute tpus queued-resources create base --node-id=base "
        f"--accelerator-type={accelerator} --runtime-version={runtime} "
        "--spot --project=mine --zone=us-west4-a"
    )


@pytest.mark.parametrize("command", launch.COMMANDS)
def test_dry_run_prints_the_commands_and_runs_none(cloud, capsys, command):
    """Those of `run` are without polls; ssh gets options to find lost hosts."""
    training = ["--", *TRAINING] if command in ("run", "start", "check") else []
    words = ["--ssh_flags=--internal-ip", *training]
    assert cloud.launch(command, "--dry_run", *words) == 0
    assert not cloud.calls
    lines = capsys.readouterr().out.splitlines()
    printed = [shlex.split(line) for line in lines if line.startswith("gcloud")]
    cloud.launch("create")
    cloud.calls.clear()
    cloud.launch(command, *words)
    verbs = "list create describe ssh ssh scp ssh ssh ssh ssh delete"
    if command == "run":
        assert [line[4] for line in printed] == verbs.split()
        return
    assert len(printed) == len(cloud.calls) > 0
    for shown, called in zip(printed, cloud.calls, strict=True):
        if "scp" in called:
            archives = pathlib.Path(shown.pop(5)), pathlib.Path(called.pop(5))
            assert archives[0].name == archives[1].name
        assert shown == called
        if called[4] in ("ssh", "scp"):
            assert "--internal-ip" in called
            flag = f"--{called[4]}-flag="
            options = [w.removeprefix(flag) for w in called if flag in w]
            assert options == [*launch.CONNECTION]


@pytest.mark.parametrize(
    ("own", "training", "chips", "compiler_flags"),
    [
        ([], ["--flagfile", "slice.flags"], 256, "--b=2 --c"),
        ([], ["--flagfile=own.flags"], 256, "--b=2 --c"),
        (["--accelerator_type=v4-8"], ["--flagfile=own.flags"], 8, "--b=2 --c"),
        ([], ["--flagfile=slice.flags", "--libtpu_init_args="], 256, ""),
    ],
)
def test_a_flag_file_has_the_slice_and_the_flags_of_its_compiler(
    cloud, own, training, chips, compiler_flags
):
    """Also if another file includes it; settings of the command go first."""
    assert cloud.launch("run", *own, "--", *training, *TRAINING) == 0
    (create,) = (call for call in cloud.calls if call[4] == "create")
    assert any(
        re.fullmatch(rf"--accelerator-type=\w+-{chips}", w) for w in create
    )
    (start,) = cloud.starts
    environment = [f"LIBTPU_INIT_ARGS={compiler_flags}"] * bool(compiler_flags)
    words = shlex.split(start.removeprefix("--command="))
    assert words == [
        *(["env"] * len(environment) + environment),
        *("bash", launch.ON_HOST, "train", *training, *TRAINING),
    ]


@pytest.mark.parametrize("place", ["own", "training"])
def test_jax_trains_in_a_process_of_each_host(cloud, place):
    """Also on v6e, for which TensorFlow has no servers."""
    own, training = (
        ["--runtime=pjrt"] * (place == name) for name in ("own", "training")
    )
    kind = "--accelerator_type=v6e-16"
    assert cloud.launch("run", kind, *own, "--", *training, *TRAINING) == 0
    environment = "env ALBERT_TPU_RUNTIME=pjrt bash"
    for verb in ("install", "serve", "train"):
        (call,) = (c for c in cloud.calls if f"on_host.sh {verb}" in str(c))
        assert "--worker=all" in call
        assert f"{environment} {launch.ON_HOST} {verb}" in str(call)


def test_the_code_must_be_a_checkout(cloud, capsys):
    shutil.rmtree(launch.ROOT / ".git")
    assert cloud.run() == 1
    assert "must be a checkout of git" in capsys.readouterr().err
    assert "create" not in cloud.verbs()


def test_later_slices_get_the_code_of_the_first(cloud):
    """Also if files have been deleted since, but not if they were before."""
    subprocess.run(["git", "add", "."], cwd=launch.ROOT, check=True)
    (launch.ROOT / "own.flags").unlink()
    cloud.plan = ["143 SUSPENDED", "0"]
    delete = cloud._delete
    cloud._delete = lambda: (launch.ROOT / "setup.py").unlink() or delete()
    assert cloud.run() == 0
    assert cloud.archives == [["setup.py", "slice.flags"]] * 2


def test_wait_goes_on_after_a_query_that_fails(cloud, capsys):
    cloud.states = ["PROVISIONING", "ACTIVE"]
    cloud.failing = {"list": [True]}
    cloud.launch("create")
    assert cloud.launch("wait") == 0
    said = capsys.readouterr().out
    assert "request: unknown" in said and "request: PROVISIONING" in said
    cloud.states = ["FAILED"]
    cloud.launch("create")
    assert cloud.launch("wait") == 1


@pytest.mark.parametrize("command", ["setup", "start", "check"])
def test_training_that_runs_keeps_its_servers_and_modules(cloud, command):
    """Only host 0 knows about it."""
    cloud.failing = {"status": [True]}
    training = ["--", *TRAINING] if command != "setup" else []
    assert cloud.launch(command, *training)
    assert len(cloud.calls) == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("stopped", "training was stopped. The slice still exists"),
        ("other", "training on this slice has other flags"),
    ],
)
def test_run_leaves_training_alone(cloud, monkeypatch, capsys, state, message):
    """If it was stopped or has other flags."""
    monkeypatch.setattr(cloud, "_status_of", lambda: f"{state}\n", False)
    cloud.launch("create")
    assert cloud.run() == 1
    assert message in capsys.readouterr().err
    assert not cloud.starts


LOST = "1 PREEMPTED"
REPLACED = ["create", "delete", "create"]
NEVER_READY = "the slice is not READY: requesting a new slice"
FAILS = [True] * 99

# The cloud; the exit status of `run` and a part of what it prints; the
# requests, and how often training was started. All limits are 2.
CASES = {
    "one host trains until all steps are done": (
        {"states": ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]},
        *(0, "training is done; charged until: python -m", ["create"], 1),
    ),
    "a failed delete is retried, since the slice is charged": (
        {"failing": {"delete": FAILS[:4]}, "flags": ["--delete_when_done"]},
        *(0, "STILL CHARGED", ["create", *["delete"] * 5], 1),
    ),
    "a delete that fails late is not retried": (
        {"failing": {"delete": ["late"]}, "flags": ["--delete_when_done"]},
        *(0, "is done", ["create", "delete"], 1),
    ),
    "an error of training ends run with the end of the log": (
        {"plan": ["1"]},
        *(1, "the last words", ["create"], 1),
    ),
    "a preempted slice is requested again": (
        {"plan": ["143 step-1 SUSPENDED", "143 step-2 PREEMPTED", "0"]},
        *(0, "done", [*REPLACED, "delete", "create"], 3),
    ),
    "a preemption may be reported late": (
        {"plan": ["1 PREEMPTED late", "0"]},
        *(0, "done", REPLACED, 2),
    ),
    "an outage after a preemption is waited for, since nothing is charged": (
        {
            "plan": ["143 PREEMPTED", "0"],
            "failing": {"create": [False, *FAILS[:4]]},
        },
        *(0, "the slice cannot be requested", [*REPLACED, *["create"] * 4], 2),
    ),
    "a request that is refused from the start ends run": (
        {"failing": {"create": FAILS}},
        *(1, "the slice cannot be requested", ["create"], 0),
    ),
    "repeated failures of the request end run": (
        {"states": ["FAILED"]},
        *(1, "the request failed 2 times", REPLACED, 0),
    ),
    # A checkpoint between two preemptions starts the count again.
    "preemptions without a new checkpoint end run": (
        {"plan": [LOST, "143 step-1", LOST, LOST, "0"]},
        *(75, "preempted, and 2 slices brought no new checkpoint"),
        *([*REPLACED, "delete", "create"], 4),
    ),
    "training restarts after SIGTERM without preemption": (
        {"plan": ["143", "0"]},
        *(0, "done", ["create"], 2),
    ),
    "training that has lost a host is started again if it progresses": (
        {"plan": [*(f"75 step-{n}" for n in (1, 1, 2, 2, 3, 3)), "0"]},
        *(0, "done", ["create"], 7),
    ),
    # Two starts on each slice; the log, which names the checkpoints, is deleted
    # with its slice.
    "training that saves no checkpoint gets a new slice, then ends": (
        {"plan": ["75 step-5", "143", "75", "143 step-5", *["143"] * 9]},
        *(75, "2 starts brought no new checkpoint, and 2 slices", REPLACED, 5),
    ),
    # A reboot after a checkpoint does not count, even between two polls.
    "hosts that reboot again and again are replaced": (
        {
            "plan": ["reboot step-1", "reboot step-2", *["reboot"] * 2, "0"],
            "poll_s": 600,
        },
        *(0, "2 starts brought no new checkpoint: requesting", REPLACED, 5),
    ),
    # Two attempts on each slice; the last slice is charged.
    **{
        f"a set-up that fails on each slice ends run: {verb}": (
            {"failing": {verb: list(FAILS)}},
            *(75, "training cannot be started", REPLACED, 0),
        )
        for verb in ("scp", "install", "serve", "train")
    },
    "a host that has lost its files is set up again": (
        {"plan": ["143 step-1 wiped", "0"]},
        *(0, "training cannot be started", ["create"], 2),
    ),
    **{
        f"a slice whose second host stays away is replaced after {end}": (
            {"plan": [f"{end} step-1 broken", "0"]},
            *(0, "training cannot be started", REPLACED, 2),
        )
        for end in ("143", "reboot")
    },
    **{
        f"a slice that does not become ready is replaced: {state}": (
            {"plan": [f"75 {state}", "0"]},
            *(0, NEVER_READY, REPLACED, 2),
        )
        for state in ("REPAIRING", "STOPPED", "unknown", "REPAIRING|STOPPED")
    },
    "any number of silent hosts is replaced if training progresses": (
        {"plan": [*(f"silent step-{n}" for n in (1, 2, 3)), "0"]},
        *(0, "done", [*["create", "delete"] * 3, "create"], 4),
    ),
    "silent hosts without a new checkpoint end run": (
        {"plan": ["silent step-1"] * 3},
        *(75, "host 0 does not answer, and 2 slices", REPLACED, 2),
    ),
    "a slice that cannot be deleted counts once": (
        {"plan": ["silent", "0"], "failing": {"delete": FAILS[:2]}},
        *(0, "STILL CHARGED", ["create", *["delete"] * 3, "create"], 2),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_run_after(cloud, monkeypatch, capsys, case):
    circumstances, status, said, verbs, num_starts = CASES[case]
    for name in ("MAX_FAILURES", "MAX_STARTS", "MAX_SLICES"):
        monkeypatch.setattr(launch, name, 2)
    monkeypatch.setattr(launch, "POLL_S", circumstances.get("poll_s", 60))
    for name in circumstances.keys() & {"plan", "states", "failing"}:
        setattr(cloud, name, circumstances[name])
    assert cloud.run(*circumstances.get("flags", [])) == status
    out, error = capsys.readouterr()
    assert said in out + error
    assert cloud.verbs() == verbs
    assert len(cloud.starts) == num_starts
    assert len(set(cloud.starts)) <= 1
    if status == 75:
        assert "Delete the last one: python -m tpu.launch delete --" in error


def test_a_command_that_does_not_end_has_a_limit(tmp_path):
    """Also if a process that it started keeps its output open."""
    sleep = ["bash", "-c", "echo READY; sleep 60 & wait"]
    done = launch.call(sleep, 0.5, True)
    assert (done.returncode, done.stdout) == (launch.TIMEOUT_STATUS, "READY\n")


def test_the_documented_command_is_valid(cloud, monkeypatch):
    """The trainer reads its flags, and estimates that it fits the slice."""
    (command,) = re.findall(
        r"-m tpu\.launch (run --name=base(?:.*\\\n)+.*)",
        (ROOT / "docs" / "tpu.md").read_text(),
    )
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(launch, "ROOT", ROOT)
    words = shlex.split(command.replace("$BUCKET", "mine-albert"))
    assert cloud.launch(*words) == 0
    (start,) = cloud.starts
    training = shlex.split(start.partition("=")[2])[3:]
    config = flags.parse_line(PretrainingConfig, filter(str.strip, training))
    assert config.training.output_dir == "gs://mine-albert/runs/base"
    assert any("--accelerator-type=v5litepod-8" in call for call in cloud.calls)


GCLOUD = """#!/bin/bash
cd HOST
echo "$4" >>calls
case "$4" in
list) [ ! -e requested ] || echo ACTIVE ;;
create) touch requested ;;
describe) echo READY ;;
scp) cp "$5" . ;;
ssh) for word; do case $word in --command=*) command=${word#*=} ;; esac; done
  exec bash -c "$command" ;;
delete) rm requested ;;
esac
"""
UV = """#!/bin/bash
echo "$@" >>~/installed
[ "$1" != venv ] || { mkdir -p ~/albert_tf_venv/bin && cp ~/python $_; }
"""
PYTHON = """#!/bin/bash
[ "$1" != - ] || exec cat
echo "$@" >>~/started
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "constraints", "extras", "flag"),
    [
        ([], "tpu.txt", "tpu", "--strategy=tpu"),
        (
            ["--runtime=pjrt"],
            *("tensorflow-2.21.txt", "cpu,jax-tpu", "--runtime=pjrt"),
        ),
    ],
)
def test_run_trains_on_a_host(
    tmp_path, monkeypatch, capsys, words, constraints, extras, flag
):
    """With the real tpu/on_host.sh; uv and Python are replaced."""
    host = tmp_path / "host"
    for path, text in (
        (tmp_path / "gcloud", GCLOUD.replace("HOST", str(host))),
        (host / ".local" / "bin" / "uv", UV),
        (host / "python", PYTHON),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setattr(launch, "POLL_S", 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(host))
    words = ["run", *PLACE, "--delete_when_done", *words, "--", *TRAINING]
    with MetadataServer.serve() as metadata:
        metadata.values["attributes/worker-network-endpoints"] = "a:b:10.0.0.2"
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
        assert launch.main(words) == 0
    assert "training is done" in capsys.readouterr().out
    assert (host / "started").read_text().splitlines() == [
        f"-m albert_tf.run_pretraining {flag} {' '.join(TRAINING)}",
    ]
    code = host / "albert_tf"
    *_, installed = (host / "installed").read_text().splitlines()
    assert f"--constraint {code}/constraints/{constraints} " in installed
    assert installed.endswith(f"--editable {code}[{extras}]")
    assert (host / "albert_tf" / "setup.py").exists()
    calls = (host / "calls").read_text().split()
    assert calls[-1] == "delete" and calls.count("create") == 1
