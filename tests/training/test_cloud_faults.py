"""Commands on gs:// with delays, limits, missing permissions and kills."""

import os
import random
import re
from collections import Counter

import pytest
import tensorflow as tf

from albert_tf.config.commands import (
    ConvertConfig,
    ExportConfig,
    ReportConfig,
)
from albert_tf.errors import RetryError, UserError
from albert_tf.interop.convert import convert
from albert_tf.io import faults, files
from albert_tf.io.ownership import own
from albert_tf.report import __main__ as report
from albert_tf.runs import checkpoint_files
from albert_tf.runs.checkpoint_files import list_checkpoints
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.serving.export import export
from albert_tf.training import trainer
from albert_tf.training.train import train
from data_prep import inspect_records
from data_prep.config import InspectConfig
from tests.helpers import tiny_run
from tests.helpers.fake_gcs import Rule
from tests.helpers.run_processes import RunProcesses, check_same_run

pytestmark = pytest.mark.slow

RUN = "gs://bucket/run"


@pytest.fixture
def config(storage, tiny_records):
    storage.put_files(tiny_records, "records")
    return tiny_run.make_config("gs://bucket/records", RUN)


def test_limits_and_slow_answers_change_nothing(storage, config, source):
    """One 429 for each kind of request, and a rate limit for each log file."""
    kinds = ("stat", "list", "read", "start", "put", "rewrite", "delete")
    storage.set_rules(
        [
            *(Rule(kind, status=429, times=1, skip=3) for kind in kinds),
            Rule("start", "jsonl", action="limit", seconds=0.5, times=4),
            Rule(seconds=0.005),
        ]
    )
    assert train(config) == 0
    assert storage.num_faults() > len(kinds) + 4
    check_same_run(RUN, source)


def test_stale_listings_change_nothing(storage, config, source):
    """Listings show none of the files that the resumed run writes."""
    storage.put_files(source, "run")
    storage.remove("run/checkpoints/step-00000012")
    storage.remove("run/checkpoints/step-00000008")
    storage.set_rules([Rule("list", "run/", action="stale")])
    assert train(config) == 0
    assert storage.num_faults()
    storage.set_rules([])
    check_same_run(RUN, source)
    written = list_checkpoints(f"{RUN}/checkpoints")
    assert all(len(checkpoint.sizes) == 2 for checkpoint in written)


def test_a_hanging_answer_changes_nothing(
    storage, config, source, tmp_path, monkeypatch
):
    monkeypatch.setenv("GCS_REQUEST_IDLE_TIMEOUT_SECS", "1")
    storage.set_rules(
        [
            Rule("put", "checkpoints", skip=1, times=1, seconds=4),
            Rule("read", "tfrecord", skip=1, times=1, seconds=4),
            Rule("list", "checkpoints", skip=1, times=1, seconds=4),
        ]
    )
    run = RunProcesses(config, tmp_path)
    assert run.wait() == [0], run.log()
    assert storage.num_faults() == 3
    check_same_run(RUN, source)


def test_an_outage_while_records_are_read_is_logged(
    storage, config, source, monkeypatch, caplog
):
    """TensorFlow repeats the reads without a message."""
    monkeypatch.setattr(trainer, "LONG_LOOP_S", 1.0)
    storage.set_rules([Rule("read", "train/.*tfrecord", times=3, status=503)])
    assert train(config) == 0
    assert storage.num_faults() == 3
    check_same_run(RUN, source)
    assert re.search(
        r"device loop of 1 steps from step 0 on has taken [1-9]\d* s so far: "
        ".*records cannot be read",
        caplog.text,
    )


@pytest.mark.parametrize("after", [60, 160])
def test_a_token_that_expires_ends_a_run_with_one_line(
    after, storage, config, source, tmp_path
):
    """With a valid token, the same command ends like an undisturbed run."""
    run = RunProcesses(config, tmp_path)
    storage.set_rules([Rule(skip=after, status=401)])
    assert run.wait() == [1], run.log()
    [message] = re.findall(r"^error: .*", run.log(), re.MULTILINE)
    assert "have expired" in message
    assert "gcloud auth application-default login" in message
    assert "Traceback" not in run.log()
    storage.set_rules([])
    assert RunProcesses(config, tmp_path).wait() == [0]
    check_same_run(RUN, source)


def test_a_last_save_without_an_answer_calls_for_a_retry(
    tiny_records, tmp_path, monkeypatch
):
    """TensorFlow gives up only after minutes, so its error is raised here."""
    write = checkpoint_files.write_checkpoint
    error = tf.errors.AbortedError(
        None,
        None,
        "All 10 retry attempts failed. The last failure: Error executing an "
        "HTTP request: HTTP response code 503 with body '{}'\n\t when "
        "initiating an upload to gs://bucket/run/x",
    )

    def fail_after_step_0(directory, step, *arguments):
        if step:
            raise error
        write(directory, step, *arguments)

    monkeypatch.setattr(checkpoint_files, "write_checkpoint", fail_after_step_0)
    with pytest.raises(
        RetryError, match=r"checkpoint .*step-\d+ must be written.* HTTP 503"
    ):
        train(tiny_run.make_config(tiny_records, tmp_path / "run"))


def test_a_failed_check_of_the_owner_costs_one_checkpoint(storage):
    """The next checkpoint is saved."""
    files.make_directories(RUN)
    variables = {"kernel": tf.Variable([1.0, 2.0])}
    with own(RUN) as owner:
        store = CheckpointStore(RUN, variables, owner=owner)
        storage.set_rules([Rule("read", "owner.json", status=403)])
        store.save(1, {})
        store.wait()
        assert "storage.objects.get" in str(store.save_errors["checkpoints"])
        storage.set_rules([])
        store.save(2, {})
        store.wait()
        assert not store.save_errors
        assert store.restore().step == 2


def test_a_command_that_lost_its_directory_saves_no_checkpoint(storage):
    files.make_directories(RUN)
    variables = {"kernel": tf.Variable([1.0, 2.0])}
    with own(RUN) as first, own(RUN):
        store = CheckpointStore(RUN, variables, owner=first)
        store.save(1, {})
        with pytest.raises(UserError, match="which has taken it over"):
            store.wait()
        assert not storage.read("run/checkpoints")


@pytest.fixture
def commands(storage, source, tiny_records):
    """By command: a call of it on gs://, and the object that it writes."""
    storage.put_files(source, "made/run")
    storage.put_files(tiny_records, "made/records")
    made = "gs://bucket/made"
    return {
        "export": (
            lambda: export(
                ExportConfig(
                    run_dir=f"{made}/run", export_dir="gs://bucket/out/exported"
                )
            ),
            "out/exported/saved_model.pb",
        ),
        "convert": (
            lambda: convert(
                ConvertConfig(
                    from_=f"{made}/run", to="gs://bucket/out/converted"
                )
            ),
            "out/converted/config.json",
        ),
        "report": (
            lambda: report.main(
                ReportConfig(
                    run_dirs=(f"{made}/run",),
                    output_file=("gs://bucket/out/report.html",),
                )
            ),
            "out/report.html",
        ),
        "inspect": (
            lambda: inspect_records.main(
                InspectConfig(
                    input_file=(f"{made}/records",),
                    output_file="gs://bucket/out/picture.png",
                    num_workers=1,
                )
            ),
            "out/picture.png",
        ),
    }


FAULTS = {
    "an expired token": (Rule(status=401), "have expired"),
    "no permission to write": (
        Rule("start|mkdir", status=403),
        "storage.objects.create",
    ),
    "no permission to read": (
        Rule("read", status=403),
        "storage.objects.get",
    ),
}


@pytest.mark.parametrize("name", ["export", "convert", "report", "inspect"])
def test_commands_end_with_a_result_or_one_line(
    name, storage, commands, monkeypatch
):
    """A refusal gives one line; transient faults do not change the result."""
    monkeypatch.setattr(files, "REREAD_WAIT_S", 0)
    main, written = commands[name]
    unexplained = {}
    for fault, (rule, words) in FAULTS.items():
        storage.set_rules([rule])
        try:
            main()
        except Exception as error:
            message = str(faults.explain(error))
            if words not in message or "\n" in message:
                unexplained[fault] = repr(error)[:300], message
        else:
            unexplained[fault] = "accepted"
        storage.remove("out/")
    assert not unexplained
    storage.set_rules(
        [
            Rule("stat|list", status=503, times=1),
            Rule("read", action="half", times=1),
            Rule("put", action="reset_after", times=1),
        ]
    )
    main()
    assert storage.num_faults() >= 2
    assert storage.read(written)


# Approximate number of requests of a resumed run, by kind.
REQUESTS = {
    "stat": 60,
    "list": 40,
    "read": 40,
    "start": 16,
    "put": 16,
    "delete": 6,
    "rewrite": 3,
    "mkdir": 1,
}
KILLS_OF_A_RUN = 5


@pytest.mark.long
def test_a_run_killed_at_its_requests_ends_like_an_undisturbed_one(
    storage, source, tiny_records, tmp_path
):
    """At least CLOUD_KILLS kills; the request of a kill takes effect or not.

    A run is killed up to five times, then it finishes and is compared.
    """
    kills = int(os.environ.get("CLOUD_KILLS", "12"))
    rng = random.Random(18)
    storage.put_files(tiny_records, "records")
    config = tiny_run.make_config("gs://bucket/records", RUN)
    killed: Counter[tuple[str, str]] = Counter()
    points = []
    while killed.total() < kills:
        storage.remove("run/")
        for _ in range(KILLS_OF_A_RUN):
            kind = list(REQUESTS)[len(points) % len(REQUESTS)]
            action = rng.choice(["reset", "reset_after"])
            skip = int(REQUESTS[kind] * rng.random())
            points.append((kind, skip, action))
            trainer = RunProcesses(config, tmp_path)
            pid = trainer.processes[0].pid
            rule = Rule(kind, skip=skip, times=1, action=action, signalled=pid)
            storage.set_rules([rule])
            [status] = trainer.wait()
            if status == 0:
                break
            assert status == -9 and storage.num_faults(), trainer.log()
            killed[kind, action] += 1
        storage.set_rules([])
        trainer = RunProcesses(config, tmp_path)
        assert trainer.wait() == [0], (points, trainer.log())
        check_same_run(RUN, source)
        assert "Traceback" not in trainer.log()
        print(dict(killed), flush=True)
