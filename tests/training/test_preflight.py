"""The checks of a dry run on valid and invalid runs."""

import json
import math
import os
import re
import shutil

import pytest

from albert_tf.errors import UserError
from albert_tf.training import preflight
from tests.helpers import tiny_run
from tests.helpers.fake_gcs import Rule
from tests.helpers.forked_program import ForkedCode
from tests.helpers.run_processes import PATIENCE_S, worker_environments

pytestmark = pytest.mark.usefixtures("eager")


def checks_of(table):
    """Verdicts and texts by check; texts of several rows are joined."""
    checks, name = {}, ""
    for line in table.splitlines():
        if line.startswith("      "):
            assert "-> " in line
            checks[name] += line
        elif line and line.split()[0] in ("ok", "FAIL", "skip"):
            verdict, rest = line.split(maxsplit=1)
            name, text = re.split(r"  +", rest, maxsplit=1)
            checks[name] = checks.get(name, "") + f"{verdict}: {text}"
    return checks


def check_all(config, capsys):
    """The rows of the table, by check, and the exit status."""
    status = preflight.run(config)
    return checks_of(capsys.readouterr().out), status


def failed(checks):
    """Names of failed checks."""
    return {name for name, text in checks.items() if "FAIL: " in text}


def skipped(checks):
    return {name for name, text in checks.items() if "skip: " in text}


def content_of(directory):
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def test_a_valid_run_passes_and_leaves_nothing(tiny_records, tmp_path, capsys):
    """The table has its records, loss, speed and time."""
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "new" / "run",
        num_train_steps=10**6,
    )
    checks, status = check_all(config, capsys)
    assert status == 0
    assert not failed(checks)
    assert not skipped(checks)
    # ln 400 + ln 2: random weights predict uniformly.
    assert "uniform predictions give 6.685" in checks["steps"]
    loss = float(re.search(r"loss ([\d.]+)", checks["steps"])[1])
    assert loss == pytest.approx(math.log(800), abs=0.1)
    assert "1,000,000 steps" in checks["steps"]
    assert "a new run" in checks["run"]
    assert not list(tmp_path.iterdir())
    seconds, tokens = (
        float(number.replace(",", ""))
        for number in re.findall(r"[\d.,]*\d(?:e-\d+)?", checks["steps"])[:2]
    )
    # 8 examples of 32 tokens; printed to three digits.
    assert tokens == pytest.approx(8 * 32 / seconds, rel=0.01)
    (hours,) = re.findall(r"about (\S+) hours", checks["steps"])
    assert float(hours) == pytest.approx(1e6 * seconds / 3600, rel=0.02)

    counts = json.loads((tiny_records / "train/metadata.json").read_text())
    number = sum(counts["shards"].values())
    assert f"{number:,} in 3 files, static" in checks["records"]
    assert f"{number / 8:.1f} steps an epoch" in checks["records"]
    epochs = re.search(r"([\d,.]+) epochs", checks["records"])[1]
    assert float(epochs.replace(",", "")) == pytest.approx(
        10**6 * 8 / number, abs=0.06
    )


def test_every_fault_is_in_the_table(tiny_records, tmp_path, capsys):
    """The parent of --output_dir is a file; records and TPU are missing."""
    (tmp_path / "run").write_text("a file")
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "run" / "x",
        input_file=("nothing*",),
        strategy="tpu",
        learning_rate=1.0,
        num_train_steps=100_000,
    )
    checks, status = check_all(config, capsys)
    assert status == 1
    assert failed(checks) == {"output", "records", "devices"}
    assert "no file at nothing*" in checks["records"]
    assert "Not a directory" in checks["output"]
    assert "--strategy=auto" in checks["devices"]
    assert skipped(checks) == {"run", "workers", "steps"}
    assert "needs: records, devices" in checks["run"]
    assert (tmp_path / "run").read_text() == "a file"


MIRRORED = {"strategy": "mirrored", "num_logical_cpus": 2}
# By settings: the check that fails, its words, and checks that are skipped.
FAULTS = [
    ({"max_seq_length": 24}, "records", "max_seq_length 32 and 24", None),
    ({"eval_input_file": ("{}/train/*.tfrecord",)}, "records", "", None),
    (
        {"global_batch_size": 9, **MIRRORED},
        *("devices", "-> Nearest: 8 and 10.", ["run", "workers", "steps"]),
    ),
]


@pytest.mark.parametrize(("changes", "check", "words", "others"), FAULTS)
def test_a_fault_fails_its_check(
    tiny_records, tmp_path, capsys, changes, check, words, others
):
    if files := changes.get("eval_input_file"):
        changes = {"eval_input_file": (files[0].format(tiny_records),)}
    config = tiny_run.make_config(tiny_records, tmp_path, **changes)
    checks, status = check_all(config, capsys)
    assert status == 1
    assert failed(checks) == {check}
    assert words in checks[check]
    assert others is None or skipped(checks) == set(others)


def test_a_batch_above_the_number_of_records_is_marked(
    tiny_packed_records, tmp_path, capsys
):
    """Packed records are counted as rows. No step is trained."""
    config = tiny_run.make_config(
        tiny_packed_records,
        tmp_path / "run",
        global_batch_size=10**6,
        init_checkpoint=str(tmp_path / "none"),
        **tiny_run.PACKING,
    )
    checks, _ = check_all(config, capsys)
    assert failed(checks) == {"run"}
    assert "A BATCH HOLDS SOME RECORDS TWICE" in checks["records"]
    assert "1 replicas x 1,000,000 rows, in 1 micro" in checks["devices"]


@pytest.mark.slow
def test_a_run_to_resume_is_not_changed(
    source, tiny_records, tmp_path, capsys, caplog
):
    run_dir = shutil.copytree(source, tmp_path / "run")
    config = tiny_run.make_config(tiny_records, run_dir, eval_input_file=())
    before = content_of(run_dir)
    checks, status = check_all(config, capsys)
    assert status == 0
    assert "complete, at step 12" in checks["run"]
    assert "no step is left" in checks["steps"]
    assert checks["records"].endswith("held-out: none")

    longer = config.replace(num_train_steps=22, allow_config_change=True)
    checks, status = check_all(longer, capsys)
    assert status == 0
    assert "resumes from step 12" in checks["run"]
    assert "changed since the last start of this run" in caplog.text
    assert "at step 12" in checks["steps"]
    assert "10 steps" in checks["steps"]

    other = config.replace(learning_rate=0.5)
    checks, status = check_all(other, capsys)
    assert status == 1
    assert "learning_rate was 0.02 and is 0.5" in checks["run"]
    assert "--allow_config_change" in checks["run"]
    assert content_of(run_dir) == before

    (newest,) = run_dir.glob("checkpoints/step-00000012/variables.data*")
    os.truncate(newest, 100)
    checks, status = check_all(longer, capsys)
    assert status == 0
    assert "step-00000012 is not intact" in caplog.text
    assert "at step 8" in checks["steps"]


def test_a_damaged_shard_is_named(tiny_records, tmp_path, capsys):
    copy = shutil.copytree(tiny_records, tmp_path / "records")
    for shard in (copy / "train").glob("*.tfrecord"):
        content = bytearray(shard.read_bytes())
        content[20] ^= 1
        shard.write_bytes(content)
    config = tiny_run.make_config(copy, tmp_path / "run")
    checks, status = check_all(config, capsys)
    assert status == 1
    assert "FAIL: " in checks["steps"]
    assert "has another SHA-256" in checks["steps"]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_bucket_is_written_to(storage, tiny_records, tmp_path, capsys):
    """Nothing is left there. No step is trained."""
    config = tiny_run.make_config(
        tiny_records,
        "gs://bucket/new/run",
        init_checkpoint=str(tmp_path / "none"),
    )
    checks, _ = check_all(config, capsys)
    assert failed(checks) == {"run"}
    assert checks["output"] == "ok: gs://bucket/new/run can be written to"
    assert not storage.read("")
    storage.set_rules([Rule("start", status=403)])
    checks, _ = check_all(config, capsys)
    assert "storage.objects.create" in checks["output"], checks["output"]
    assert failed(checks) == {"output", "run"}


def test_an_evaluation_has_no_dry_run(tiny_records, tmp_path):
    with pytest.raises(UserError, match=r"mode must be train\. Received: eval"):
        tiny_run.make_config(tiny_records, tmp_path, dry_run=True, mode="eval")


RUN_PRETRAINING = """
import runpy

runpy.run_module("albert_tf.run_pretraining", run_name="__main__")
"""


def check_on_workers(tmp_path, configs):
    """The rows of each worker's table, and its exit status."""
    environments = worker_environments(len(configs))
    workers = [
        ForkedCode(
            RUN_PRETRAINING,
            tiny_run.as_flags(config, tmp_path / "model.json"),
            environment,
        )
        for config, environment in zip(configs, environments, strict=True)
    ]
    statuses = [worker.wait(PATIENCE_S) for worker in workers]
    tables = [worker.stdout.read() for worker in workers]
    return list(zip(map(checks_of, tables), statuses, strict=True))


@pytest.mark.slow
def test_no_worker_waits_for_one_that_failed(tiny_records, tmp_path):
    """Otherwise the test would wait for the timeout of a lost worker. Each
    prints its own table and leaves nothing."""
    settings = {
        "dry_run": True,
        "strategy": "multi_worker",
        "worker_timeout_s": 10 * PATIENCE_S,
    }
    config, faulty = (
        tiny_run.make_config(
            tiny_records, tmp_path / "run", **settings, **changes
        )
        for changes in ({}, {"input_file": ("nothing*",)})
    )
    valid, other = check_on_workers(tmp_path, [config, faulty])
    assert (valid[1], other[1]) == (1, 1)
    assert "8 = 2 replicas x 4 examples" in valid[0]["devices"]
    assert failed(valid[0]) == {"workers"}
    assert failed(other[0]) == {"records", "workers"}
    assert "failed checks on other workers" in valid[0]["workers"]
    assert "failed checks on this worker." in other[0]["workers"]
    assert "steps" in skipped(valid[0]) & skipped(other[0])
    assert not (tmp_path / "run").exists()
