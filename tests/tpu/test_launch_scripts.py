"""The launch scripts, run against a substitute for gcloud and the TPU hosts.

The substitute is `tests/helpers/fake_cloud.py`.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest
from absl import flags as absl_flags

from albert_tf.cluster.devices import TPU_CHIPS
from albert_tf.config import PretrainingConfig, flags
from albert_tf.training.pretraining import Pretraining
from tests.helpers.fake_cloud import (
    ROOT,
    TRAINING,
    copy_repository,
    wait_for,
)

SCRIPTS = [ROOT / "tpu" / "launch.sh", ROOT / "tpu" / "on_host.sh"]


def commands_of(dry_run):
    """The commands that a dry run prints, as lists of arguments."""
    lines = dry_run.stdout.splitlines()
    return [shlex.split(line) for line in lines if line.startswith("gcloud")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_the_linters(script):
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    assert "\nset -euo pipefail\n" in text
    assert max(map(len, text.splitlines())) <= 80
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, script], check=True)


def test_help_lists_commands_settings_and_defaults(cloud):
    text = cloud.launch("--help", settings=()).stdout
    for line in ("--project= ", "--name=albert ", "--poll_s=60 ", "  stop  "):
        assert line in text
    assert cloud.launch("create", "--help").stdout == text
    assert not cloud.calls


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dance"], "the command must be one of: run create"),
        (["create", "--zone="], "--zone is required, or ALBERT_TPU_ZONE"),
        (["create", "--project="], "--project is required"),
        (["create", "--colour=red"], "there is no setting --colour"),
        (["create", "spot"], "settings look like --SETTING=VALUE"),
        (["create", "--name=No_Such"], "--name must be lower-case letters"),
        (["create", "--tier=cheap"], "--tier must be spot, on_demand or"),
        (["create", "--accelerator_type=a100"], "--accelerator_type must be"),
        (["create", "--accelerator_type=v6e-many"], "a version and a size"),
        (["create", "--accelerator_type=v6e-16"], "no server for v6e slices"),
        (["create", "--log_dir=/tmp"], "--log_dir must be gs://"),
        (["start", "--libtpu_init_args=a"], "must be flags that begin with --"),
        (["run", "--poll_s=often"], "--poll_s must be a number"),
        (["run", "--max_failures=0"], "--max_failures must be at least 1"),
        (["run", "--max_preemptions="], "--max_preemptions must be at least"),
        (["run", "--delete_when_done=yes"], "must be true or false. Received"),
        (["start", "--", "--flagfile=none.flags"], "a file of the checkout"),
        (["start"], "flags of run_pretraining must follow --"),
        (["start", "--", "--output_dir=/tmp/x"], "--output_dir=gs://"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_done(
    cloud, words, message
):
    done = cloud.launch(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert not cloud.calls


@pytest.mark.parametrize(
    ("accelerator", "runtime"),
    [
        ("v3-8", "tpu-ubuntu2204-base"),
        ("v4-128", "tpu-ubuntu2204-base"),
        ("v5litepod-256", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-8", "v2-alpha-tpuv6e"),
    ],
)
def test_the_runtime_version_fits_the_chip(cloud, accelerator, runtime):
    """https://cloud.google.com/tpu/docs/runtimes"""
    cloud.launch("create", ALBERT_TPU_ACCELERATOR_TYPE=accelerator)
    (call,) = cloud.calls
    assert " ".join(call) == (
        "compute tpus queued-resources create base --node-id=base "
        f"--accelerator-type={accelerator} --runtime-version={runtime} "
        "--spot --project=mine --zone=us-west4-a"
    )


def test_flags_override_the_environment(cloud):
    given = ["--tier=on_demand", "--create_flags=--network=n --internal-ips"]
    cloud.launch("create", *given, ALBERT_TPU_TIER="reserved")
    (call,) = cloud.calls
    assert "--reserved" not in call and "--spot" not in call
    assert {"--network=n", "--internal-ips"} < set(call)


@pytest.mark.parametrize(
    "words",
    [
        ["create", "--valid_until_duration=6h", "--service_account=a@b.c"],
        ["setup", "--ssh_flags=--internal-ip", "--user=me"],
        ["start", "--", *TRAINING],
        ["check", "--", *TRAINING],
        ["status"],
        ["stop"],
        ["delete"],
    ],
    ids=lambda words: words[0],
)
def test_dry_run_prints_the_commands_and_runs_none(cloud, words):
    dry = cloud.launch(words[0], "--dry_run", *words[1:])
    assert dry.returncode == 0, dry.stderr
    assert not cloud.calls
    cloud.launch("create")
    cloud.launch("setup")
    if words[0] == "stop":
        cloud.set_up(plan=["wait"])
        cloud.launch("start", "--", *TRAINING)
    before = len(cloud.calls)
    done = cloud.launch(*words)
    assert "error" not in done.stderr
    for printed, called in zip(
        commands_of(dry), cloud.calls[before:], strict=True
    ):
        if "scp" in called:
            archives = called.pop(4), printed.pop(5)
            assert {pathlib.Path(a).name for a in archives} == {
                "albert_tf.tar.gz"
            }
        assert printed == ["gcloud", *called]


def test_dry_run_of_run_prints_all_commands(cloud):
    dry = cloud.launch("run", "--dry_run", "--", *TRAINING)
    verbs = " ".join(command[4] for command in commands_of(dry))
    assert verbs == "list create describe ssh ssh scp ssh ssh ssh ssh delete"
    assert "git ls-files" in dry.stdout and not cloud.calls


V5E_256 = "--flagfile=configs/hardware/v5e_256.flags"
LIMIT = "--xla_tpu_scoped_vmem_limit_kib=24576"


@pytest.mark.parametrize(
    ("own", "training", "chips", "compiler_flags"),
    [
        ([], [V5E_256], 256, LIMIT),
        ([V5E_256], [], 256, LIMIT),
        ([], V5E_256.split("="), 256, LIMIT),
        (["--accelerator_type=v5litepod-128"], [V5E_256], 128, LIMIT),
        ([], [V5E_256, "--libtpu_init_args="], 256, ""),
        (["--libtpu_init_args=--a=1"], [V5E_256], 256, "--a=1"),
        ([], ["--flagfile={}/own.flags"], 256, LIMIT),
    ],
)
def test_a_flag_file_has_the_slice_and_the_flags_of_its_compiler(
    cloud, tmp_path, own, training, chips, compiler_flags
):
    """Also if another file includes it; settings of the script go first."""
    (tmp_path / "own.flags").write_text(f"# Ours.\n{V5E_256}\n--seed=3")
    training = [word.format(tmp_path) for word in training]
    cloud.repository = ROOT
    dry = cloud.launch("run", *own, "--dry_run", "--", *training, *TRAINING)
    assert dry.returncode == 0, dry.stderr
    (create,) = (c for c in commands_of(dry) if c[4] == "create")
    assert f"--accelerator-type=v5litepod-{chips}" in create
    (train,) = (line for line in dry.stdout.splitlines() if " train " in line)
    assert ("LIBTPU_INIT_ARGS=" in train) == bool(compiler_flags)
    assert f"LIBTPU_INIT_ARGS={compiler_flags} " in train or not compiler_flags


def test_one_host_trains_until_all_steps_are_done(cloud):
    cloud.repository = ROOT
    cloud.set_up(["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
    done = cloud.complete("--log_dir=gs://bucket/logs")
    assert "request: PROVISIONING" in done.stdout
    assert "training is done; charged until: " in done.stdout
    assert cloud.verbs() == ["create"]
    module = ["-m", "albert_tf.run_pretraining", "--strategy=tpu"]
    assert cloud.trained() == [("", [*module, *TRAINING])]
    assert "the last words of 0" in cloud.copied_log()
    assert (cloud.path / "host-0" / "albert_tf" / "setup.py").exists()
    assert not (cloud.path / "served").exists()


@pytest.mark.parametrize("failures", [["refused"] * 4, ["late"]])
def test_a_failed_delete_is_retried(cloud, failures):
    """A slice that remains is charged. "late" fails after the deletion."""
    cloud.set_up(plan=["0"])
    (cloud.path / "failing_deletes").write_text("\n".join(failures))
    done = cloud.complete("--delete_when_done=true")
    assert "training is done" in done.stdout
    assert done.stdout.count("STILL CHARGED") == failures.count("refused")
    tries = len(failures) + failures.count("refused") // 4
    assert cloud.verbs() == ["create"] + ["delete"] * tries
    assert not (cloud.path / "requested").exists()


def test_the_python_code_of_on_host_finds_its_modules():
    """The fake Python of the other tests does not run this code."""
    script = (ROOT / "tpu" / "on_host.sh").read_text()
    code = script.partition("<<'PYTHON'\n")[2].partition("\nPYTHON\n")[0]
    done = subprocess.run(
        [sys.executable, "-", "2"],
        input=code,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no TPU chip" in done.stderr, done.stderr


def test_data_in_the_checkout_is_not_copied_to_the_hosts(cloud, tmp_path):
    cloud.repository = tmp_path / "repository"
    copy_repository(cloud.repository)
    (cloud.repository / "my text.txt").write_bytes(os.urandom(2_000_000))
    done = cloud.launch("setup", "--max_code_mb=1")
    assert done.returncode == 1
    assert "at most --max_code_mb=1 MB" in done.stderr
    assert "Received: 2 MB, with my text.txt " in done.stderr
    assert not cloud.calls
    cloud.launch("create")
    assert cloud.launch("setup", "--max_code_mb=2").returncode == 0


def test_ssh_has_options_that_detect_lost_hosts(cloud):
    cloud.succeed("create", "setup", "start")
    assert {call[3] for call in cloud.calls} == {"create", "ssh", "scp"}
    wanted = {"ConnectTimeout": "30", "ServerAliveInterval": "30"}
    options = [f"-o{name}={value}" for name, value in wanted.items()]
    for call in cloud.calls[1:]:
        flag = f"--{call[3]}-flag="
        given = [w.removeprefix(flag) for w in call if w.startswith(flag)]
        assert given == options
    if ssh := shutil.which("ssh"):
        shown = subprocess.run(
            [ssh, "-G", "-F", "none", *options, "host"],
            capture_output=True,
            text=True,
            check=False,
        )
        if "No user exists" in shown.stderr:
            return
        for name, value in wanted.items():
            assert f"{name.lower()} {value}" in shown.stdout.splitlines()


def test_the_temporary_directory_may_hold_spaces(cloud, tmp_path):
    place = tmp_path / "two words"
    place.mkdir()
    cloud.launch("create")
    done = cloud.launch("setup", TMPDIR=str(place))
    assert done.returncode == 0, done.stderr
    assert (cloud.path / "host-0" / "albert_tf" / "setup.py").exists()
    assert not list(place.iterdir())


def test_an_error_of_training_ends_run_with_the_end_of_the_log(cloud):
    cloud.set_up(plan=["1"])
    done = cloud.run()
    assert done.returncode == 1
    assert "the last words of 1" in done.stdout
    assert cloud.verbs() == ["create"]
    assert len(cloud.trained()) == 1


def test_run_finds_running_training_and_stop_ends_it(cloud):
    cloud.set_up(plan=["wait"])
    cloud.succeed("create", "setup")
    status = ["--worker=0", "--command=bash albert_tf/tpu/on_host.sh status"]
    cloud.start()
    assert cloud.launch("status").stdout.splitlines()[-1] == "running"
    assert set(status) < set(cloud.calls[-1])
    again = cloud.launch("start", "--", *TRAINING)
    assert again.returncode and "must not be running" in again.stderr
    over = cloud.launch("setup")
    assert over.returncode and "must not be running" in over.stderr
    assert cloud.launch("stop").returncode == 0
    done = cloud.run()
    assert done.returncode == 1
    assert "training was stopped" in done.stderr
    assert len(cloud.trained()) == 1


def test_stop_also_ends_training_that_would_be_started_again(cloud):
    cloud.set_up(plan=["143", "0"])
    cloud.succeed("create", "setup", "start")
    state = cloud.path / "host-0" / "albert_tf_state"
    wait_for((state / "exit_status").exists, True)
    for _ in range(2):
        assert cloud.launch("stop").returncode == 0
    done = cloud.run()
    assert done.returncode == 1
    assert "training was stopped" in done.stderr
    assert len(cloud.trained()) == 1


def test_the_code_must_be_a_checkout(cloud, tmp_path):
    """`run` says so before it requests a slice."""
    cloud.repository = tmp_path / "zip"
    (cloud.repository / "tpu").mkdir(parents=True)
    shutil.copy(ROOT / "tpu" / "launch.sh", cloud.repository / "tpu")
    done = cloud.run()
    assert done.returncode == 1
    assert "must be a checkout of git" in done.stderr
    assert not cloud.calls


def test_a_query_that_fails_does_not_end_wait(cloud):
    cloud.launch("create")
    (cloud.path / "failing_lists").write_text("refused\n")
    done = cloud.launch("wait", "--poll_s=0")
    assert done.returncode == 0, done.stderr
    assert "base: unknown" in done.stdout


def test_without_metadata_a_slice_is_not_treated_as_one_host(cloud):
    cloud.set_up(num_hosts=2)
    cloud.succeed("create", "setup")
    done = cloud.launch(
        "start", "--", *TRAINING, GCE_METADATA_HOST="127.0.0.1:9"
    )
    assert done.returncode
    assert "metadata server must return the hosts" in done.stderr
    assert not (cloud.path / "trained").exists()


def test_each_part_of_the_log_is_copied_once_it_is_full(cloud):
    """Two starts on one host continue the same parts of 64 bytes."""
    cloud.environment["ALBERT_TPU_LOG_PART_BYTES"] = "64"
    cloud.set_up(plan=["143", "0"])
    cloud.complete("--log_dir=gs://bucket/logs")
    log = cloud.path / "host-0" / "albert_tf_state" / "train.log"
    assert cloud.copied_log() == log.read_text()
    uploads = [
        line.split()
        for line in (cloud.path / "uploads").read_text().split("\n")
    ][:-1]
    assert {len(log.read_text()) % 64, 64} < {int(size) for _, size in uploads}
    assert max(int(size) for _, size in uploads) == 64
    full = [name for name, size in uploads if size == "64"]
    assert len(full) == len(set(full)) == len(log.read_text()) // 64


def test_the_log_is_copied_once_the_bucket_permits_it(cloud):
    """While training runs, and after it has ended."""
    cloud.environment["ALBERT_TPU_LOG_PART_BYTES"] = "64"
    cloud.environment["ALBERT_TPU_COPY_LOG_S"] = "0.1"
    cloud.set_up(plan=["wait"])
    (cloud.path / "broken_bucket").touch()
    cloud.succeed("create", "setup")
    start = ["start", "--log_dir=gs://bucket/logs", "--", *TRAINING]
    assert cloud.launch(*start).returncode == 0
    log = cloud.path / "host-0" / "albert_tf_state" / "train.log"
    wait_for(lambda: "could not be copied" in log.read_text(), True)
    assert not cloud.copied_log()
    (cloud.path / "broken_bucket").unlink()
    wait_for(lambda: "(gcloud) no permission" in cloud.copied_log(), True)
    assert cloud.launch("status").stdout.splitlines()[-1] == "running"
    with log.open("a") as file:
        file.write("the end\n")
    assert cloud.launch("stop").returncode == 0
    wait_for((log.parent / "exit_status").exists, True)
    assert cloud.copied_log() == log.read_text()
    (*_, last) = sorted((cloud.path / "bucket" / "logs").iterdir())
    assert last.stat().st_size <= 64


def test_training_with_other_flags_is_detected(cloud):
    cloud.set_up(plan=["0", "0"])
    cloud.complete()
    others = ["--poll_s=0", "--", *TRAINING, "--seed=2"]
    for done in (
        cloud.launch("run", *others),
        cloud.run("--libtpu_init_args=--xla_a=1"),
    ):
        assert done.returncode == 1
        assert "training on this slice has other flags" in done.stderr
    assert len(cloud.trained()) == 1
    assert cloud.launch("start", *others).returncode == 0
    assert cloud.launch("run", *others).returncode == 0
    assert cloud.trained()[1][1][-1] == "--seed=2"


def test_the_documented_command_is_valid(cloud, monkeypatch):
    """The script accepts it, and the trainer its training flags."""
    blocks = (ROOT / "docs" / "tpu.md").read_text().split("\n\n")
    (block,) = (b for b in blocks if "tpu/launch.sh run --name=" in b)
    dry = subprocess.run(
        ["bash", "-ec", block.replace(".sh run", ".sh run --dry_run")],
        env={
            **cloud.environment,
            "PROJECT": "mine",
            "ZONE": "us-west4-a",
            "BUCKET": "mine-albert",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    train = commands_of(dry)[-2][-3]
    words = shlex.split(train.removeprefix("--command="))
    assert words[:3] == ["bash", "albert_tf/tpu/on_host.sh", "train"]
    assert words[3] == "gs://mine-albert/logs/base"
    monkeypatch.chdir(ROOT)
    values = absl_flags.FlagValues()
    flags.define(PretrainingConfig, values)
    values(["run_pretraining", *words[4:]])
    config = flags.parse(PretrainingConfig, values)
    assert config.training.output_dir == "gs://mine-albert/runs/base"
    # The run fits the slice, by the trainer's estimate.
    (create,) = (c for c in commands_of(dry) if c[4] == "create")
    assert "--accelerator-type=v5litepod-8" in create
    needed = sum(Pretraining(config).memory_per_replica(8).values())
    assert 1.5 * needed < TPU_CHIPS["v5e"].memory_bytes
