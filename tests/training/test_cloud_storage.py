"""Commands on gs://: faults, limits, permissions and kills, and their requests.

See tests/helpers/fake_gcs.py.
"""

import contextlib
import dataclasses
import os
import random
from collections import Counter

import pytest
import tensorflow as tf

from albert_tf.config.commands import (
    ConvertConfig,
    ReportConfig,
)
from albert_tf.errors import RetryError, UserError
from albert_tf.finetuning import run as finetuning
from albert_tf.interop.convert import convert
from albert_tf.io import faults, files
from albert_tf.report import __main__ as report
from albert_tf.runs.checkpoints import (
    COMMIT_FILE,
    CheckpointStore,
    list_checkpoints,
)
from albert_tf.runs.log import RunLog, read_events, read_metrics
from albert_tf.training.train import train
from data_prep import build_tfrecords
from tests.helpers import tiny_run, tiny_task
from tests.helpers.fake_gcs import Rule
from tests.helpers.run_processes import RunProcesses, check_same_run
from tests.helpers.small_builds import read_files

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eager")]

RUN = "gs://bucket/run"
RECORDS = "gs://bucket/records"
SHARD = r"train/.*tfrecord"


@pytest.fixture
def settings(storage, tiny_records):
    """Settings of a build and of a run on gs://."""
    for name in ("text.txt", "spm.model"):
        content = (tiny_records.parent / name).read_bytes()
        storage.put(f"source/{name}", content)
    build = dataclasses.replace(
        tiny_run.records_config(tiny_records.parent),
        input_file=("gs://bucket/source/text.txt",),
        spm_model_file="gs://bucket/source/spm.model",
        output_dir=RECORDS,
    )
    return build, tiny_run.make_config(RECORDS, RUN)


@pytest.fixture
def config(storage, tiny_records):
    storage.put_files(tiny_records, "records")
    return tiny_run.make_config("gs://bucket/records", RUN)


@pytest.mark.long
def test_transient_faults_change_nothing(
    storage, settings, source, tiny_records
):
    """Nor do limits, slow answers and an outage."""
    build, config = settings
    storage.set_rules(
        [
            *(
                Rule(kind, status=503, times=1)
                for kind in ("stat", "list", "read", "start", "rewrite")
            ),
            Rule("put", action="reset_after", times=2),
            Rule("delete", action="reset_after", times=1),
        ]
    )
    build_tfrecords.main(build)
    assert storage.num_faults() == 8
    assert storage.read("records/") == read_files(tiny_records)

    storage.set_rules(
        [
            Rule("read", SHARD, at=0.02, times=1, action="flip"),
            Rule("read", r"eval/.*tfrecord", times=1, action="flip"),
            Rule("put", "checkpoints", skip=3, times=1, status=503),
            Rule("put", "metrics", times=1, action="reset_after"),
        ]
    )
    with pytest.raises(RetryError, match="although all records are intact"):
        train(config)
    with contextlib.suppress(RetryError):  # of an evaluation
        train(config)
    assert storage.num_faults() == 4

    # It has also lost its last checkpoint. Listings show none of the files
    # that it writes. TensorFlow believes for 5 s that the file exists which it
    # has just looked at.
    lost = "run/checkpoints/step-00000012"
    tf.io.gfile.stat(f"gs://bucket/{lost}/{COMMIT_FILE}")
    storage.remove(lost)
    kinds = ("stat", "list", "read", "start", "put", "rewrite", "delete")
    storage.set_rules(
        [
            Rule("read", SHARD, times=3, status=503),
            # One for each kind of request, and a limit for each log file.
            *(Rule(kind, status=429, times=1) for kind in kinds),
            Rule("start", "jsonl", action="limit", seconds=0.5, times=4),
            Rule("list", "run/", action="stale"),
            Rule(seconds=0.005),
        ]
    )
    assert train(config) == 0
    assert storage.num_faults() > len(kinds) + 7
    storage.set_rules([])
    check_same_run(RUN, source)
    written = list_checkpoints(f"{RUN}/checkpoints")
    assert all(len(checkpoint.sizes) == 2 for checkpoint in written)


def test_a_checkpoint_that_looks_damaged_is_read_again(storage, monkeypatch):
    monkeypatch.setattr(files, "REREAD_WAIT_S", 0)
    store = CheckpointStore(RUN, {"kernel": tf.Variable([1.0, 2.0])})
    for step in (1, 2):
        store.save(step, {})
    store.wait()
    for name in ("checkpoint.json", "variables.index", "variables.data"):
        damaged = f"step-00000002/{name}"
        storage.set_rules([Rule("read", damaged, times=1, action="flip")])
        assert store.restore().step == 2
        assert storage.num_faults() == 1


def test_lines_that_an_upload_refuses_do_not_end_the_run(storage):
    """The next upload of the file has them, but not if it is the first one."""
    log = RunLog(RUN, 0)
    log.write("train", 1, {"loss": 1.0})
    storage.set_rules([Rule("start", "jsonl", status=403)])
    log.write("train", 2, {"loss": 1.0})
    log.write_event("start", 2)
    storage.set_rules([])
    log.write("train", 3, {"loss": 1.0})
    log.write_event("stop", 3)
    assert [line["step"] for line in read_metrics(RUN)] == [1, 2, 3]
    assert [event["event"] for event in read_events(RUN)] == ["stop"]


@pytest.fixture
def commands(storage, settings, source, tiny_records, tmp_path):
    """By command: a call of it on gs://, and the object that it writes.

    They read other objects than those that they write.
    """
    storage.put_files(source, "made/run")
    storage.put_files(tiny_records, "made/records")
    storage.put_files(tiny_task.write_examples(tmp_path), "made/tasks")
    run, records = "gs://bucket/made/run", "gs://bucket/made/records"
    out = "gs://bucket/out"
    build, config = settings
    config = config.replace(
        input_file=(f"{records}/train/*.tfrecord",),
        eval_input_file=(),
        output_dir=f"{out}/run",
    )
    build = dataclasses.replace(build, output_dir=f"{out}/records")
    finetune = tiny_task.make_config(
        "classification",
        "gs://bucket/made/tasks",
        f"{out}/finetuned",
        init_checkpoint=run,
        max_seq_length=32,
        mode="train_and_predict",
        **tiny_task.SHORT,
    )
    converting = ConvertConfig(from_=run, to=f"{out}/converted")
    reporting = ReportConfig(run_dirs=(run,), output_file=f"{out}/curves.png")
    return {
        "build": (build_tfrecords.main, build, "records/train/metadata.json"),
        "train": (train, config, "run/config.json"),
        "finetune": (finetuning.run, finetune, "finetuned/predictions/dev.tsv"),
        "convert": (convert, converting, "converted/config.json"),
        "report": (report.main, reporting, "curves.png"),
    }


FAULTS = {
    "an expired token": (
        [Rule(status=401)],
        ["have expired", "gcloud auth"],
    ),
    "no permission to write": (
        [Rule("start|mkdir", status=403)],
        ["storage.objects.create", "gs://bucket/out"],
    ),
    "no permission to read": (
        [Rule("read", status=403)],
        ["storage.objects.get", "gs://bucket/"],
    ),
}
# Commands that check a bucket before they use it.
CHECKED = {
    "no permission for the bucket": (
        [Rule("bucket", status=403)],
        ["storage.buckets.get", "legacyBucketReader", "gs://bucket/ "],
    ),
    "no permission to list": (
        [Rule("list", status=403)],
        ["storage.objects.list", "gs://bucket/"],
    ),
}


@pytest.mark.parametrize(
    "name", ["build", "train", "finetune", "convert", "report"]
)
def test_commands_end_with_a_result_or_one_line(
    name, storage, commands, monkeypatch
):
    """A refusal gives one line; transient faults do not change the result."""
    monkeypatch.setattr(files, "REREAD_WAIT_S", 0)
    main, config, written = commands[name]
    unexplained = {}
    given = {
        **FAULTS,
        **(CHECKED if name in ("build", "train", "finetune") else {}),
    }
    for fault, (rules, words) in given.items():
        storage.set_rules(rules)
        files.stat_bucket.cache_clear()
        try:
            main(config)
        except Exception as error:
            message = str(faults.explain(error))
            if "\n" in message or any(word not in message for word in words):
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
    main(config)
    assert storage.num_faults() >= 2
    assert storage.read(f"out/{written}")


def test_a_missing_bucket_is_named(settings, config):
    build, _ = settings
    build = dataclasses.replace(build, output_dir="gs://none/records")
    run = config.replace(output_dir="gs://none/run")
    for main, config in ((build_tfrecords.main, build), (train, run)):
        with pytest.raises((UserError, tf.errors.OpError)) as error:
            main(config)
        explained = str(faults.explain(error.value))
        assert "gs://none" in explained and "must exist" in explained
        assert "gcloud storage buckets create gs://none" in explained
        assert "\n" not in explained


def test_a_missing_file_is_named_without_a_permission_for_the_bucket(storage):
    """Roles that only read objects do not have it."""
    storage.set_rules([Rule("bucket", status=403)])
    files.stat_bucket.cache_clear()
    with pytest.raises(FileNotFoundError, match="no such file"):
        files.open_existing("gs://bucket/none.txt")


# Approximate number of requests of a resumed run, by kind.
NUM_REQUESTS = {
    "put": 16,
    "stat": 60,
    "list": 40,
    "read": 40,
    "start": 16,
    "delete": 6,
    "rewrite": 3,
    "mkdir": 1,
}


@pytest.mark.long
def test_a_run_killed_at_its_requests_ends_like_an_undisturbed_one(
    storage, source, tiny_records, tmp_path
):
    """At least CLOUD_KILLS kills; the request of a kill takes effect or not.

    A run is killed up to four times, then it finishes and is compared.
    """
    kills = int(os.environ.get("CLOUD_KILLS", "1"))
    rng = random.Random(18)
    storage.put_files(tiny_records, "records")
    config = tiny_run.make_config("gs://bucket/records", RUN)
    killed: Counter[tuple[str, str]] = Counter()
    points = []
    while killed.total() < kills:
        storage.remove("run/")
        for _ in range(min(kills, 4)):
            kind = list(NUM_REQUESTS)[len(points) % len(NUM_REQUESTS)]
            action = rng.choice(["reset", "reset_after"])
            skip = int(NUM_REQUESTS[kind] * rng.random())
            points.append((kind, skip, action))
            trainer = RunProcesses(config, tmp_path)
            pid = trainer.processes[0].pid
            rule = Rule(kind, skip=skip, times=1, action=action, killed=pid)
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
