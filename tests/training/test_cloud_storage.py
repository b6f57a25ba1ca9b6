"""Commands on gs://, with faults; see tests/helpers/fake_gcs.py."""

import dataclasses

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.io import faults, files
from albert_tf.io.ownership import own
from albert_tf.runs.checkpoint_files import COMMIT_FILE
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.log import RunLog, read_events, read_metrics
from albert_tf.training.train import train
from data_prep import build_tfrecords
from tests.helpers import tiny_run
from tests.helpers.fake_gcs import Rule
from tests.helpers.run_processes import check_same_run
from tests.helpers.small_builds import read_files

pytestmark = pytest.mark.slow

RUN = "gs://bucket/run"
RECORDS = "gs://bucket/records"
SHARD = r"train/.*tfrecord"


# Upper limits by kind, for a run that resumes at step 8 of 12. It writes two
# lines of metrics, one of an evaluation, a checkpoint and three events; best/
# stays as it is. Requests for the metadata of objects do not count. TensorFlow
# caches what it knows of objects for 5 s: 30 to 35 listings were measured.
REQUESTS_OF_A_RESUMED_RUN = {
    "list": 37,
    "read": 48,
    "start": 23,
    "put": 23,
    "rewrite": 2,
    "delete": 4,
    "mkdir": 1,
}
REQUESTS = {
    "line of metrics": {"put": 2, "start": 2},
    "event": {"put": 1, "start": 1},
    "checkpoint": {
        "delete": 7,
        "list": 9,
        "mkdir": 1,
        "put": 3,
        "read": 2,
        "rewrite": 2,
        "start": 3,
    },
    "restored checkpoint": {"list": 5, "read": 9},
    "shard": {"read": 1},
}


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


def test_transient_faults_change_nothing(
    storage, settings, source, tiny_records, tmp_path
):
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
            # The step fails, and so does the first search for damage.
            Rule("read", SHARD, at=0.02, times=1, action="flip"),
            Rule("read", SHARD, skip=1, times=1, action="short"),
            Rule("read", r"eval/.*tfrecord", times=1, action="flip"),
            Rule("put", "checkpoints", skip=3, times=1, status=503),
            Rule("put", "metrics", times=1, action="reset_after"),
        ]
    )
    assert train(config) == 0
    assert storage.num_faults() == 5
    events = [event["event"] for event in read_events(RUN)]
    assert "read_again" in events
    check_same_run(RUN, source)

    # Without faults, a run that has lost its last checkpoint. TensorFlow
    # believes for 5 s that the file exists which it has just looked at.
    storage.set_rules([])
    lost = "run/checkpoints/step-00000012"
    tf.io.gfile.stat(f"gs://bucket/{lost}/{COMMIT_FILE}")
    storage.remove(lost)
    storage.count()
    assert train(config) == 0
    counts = storage.count()
    check_same_run(RUN, source)

    for kind, limit in REQUESTS_OF_A_RESUMED_RUN.items():
        assert counts[kind] <= limit, (kind, counts)


def test_requests_of_each_operation(storage, tiny_records):
    """docs/runs.md has their sums."""
    run = "gs://bucket/counted"
    counts = {}

    def count(name, operation):
        storage.count()
        operation()
        counted = storage.count()
        counts[name] = {k: n for k, n in sorted(counted.items()) if k != "stat"}

    variables = {"kernel": tf.Variable([1.0, 2.0])}
    store = CheckpointStore(run, variables, keep_max=1)
    store.save(1, {})
    store.wait()
    shard = min((tiny_records / "train").glob("*.tfrecord"))
    storage.put("shard", shard.read_bytes())
    log = RunLog.open(run, 0)
    log.write("train", 1, {"loss": 1.0})
    log.write_event("start", 1)

    count("line of metrics", lambda: log.write("train", 2, {"loss": 1.0}))
    count("event", lambda: log.write_event("stop", 2))
    count("checkpoint", lambda: (store.save(2, {}), store.wait()))
    count("restored checkpoint", store.restore)
    count(
        "shard",
        lambda: list(tf.data.TFRecordDataset("gs://bucket/shard")),
    )
    assert counts == REQUESTS


@pytest.mark.parametrize(
    "name", ["checkpoint.json", "variables.index", "variables.data"]
)
def test_a_checkpoint_that_looks_damaged_is_read_again(
    name, storage, monkeypatch
):
    monkeypatch.setattr(files, "REREAD_WAIT_S", 0)
    store = CheckpointStore(RUN, {"kernel": tf.Variable([1.0, 2.0])})
    for step in (1, 2):
        store.save(step, {})
    store.wait()
    damaged = f"step-00000002/{name}"
    storage.set_rules([Rule("read", damaged, times=1, action="flip")])
    assert store.restore().step == 2
    assert storage.num_faults() == 1


def test_lines_that_an_upload_refuses_are_written_later(storage):
    """Once each, in order."""
    log = RunLog.open(RUN, 0)
    log.write("train", 1, {"loss": 1.0})
    storage.set_rules([Rule("start", "jsonl", status=403)])
    log.write("train", 2, {"loss": 1.0})
    log.write_event("start", 2)
    storage.set_rules([])
    log.write("train", 3, {"loss": 1.0})
    log.write_event("stop", 3)
    log.finish()
    assert [line["step"] for line in read_metrics(RUN)] == [1, 2, 3]
    assert [event["event"] for event in read_events(RUN)] == ["start", "stop"]


FAULTS = {
    "the bucket is missing": ([], "gs://none", ["gs://none", "must exist"]),
    "no permission for the bucket": (
        [Rule("bucket", status=403)],
        "gs://bucket",
        ["storage.buckets.get", "legacyBucketReader", "gs://bucket/ "],
    ),
    "no permission to write": (
        [Rule("start|mkdir", status=403)],
        "gs://bucket",
        ["storage.objects.create", "gs://bucket/new"],
    ),
    "no permission to read": (
        [Rule("stat|read", status=403)],
        "gs://bucket",
        ["storage.objects.get", "gs://bucket/"],
    ),
    "no permission to list": (
        [Rule("list", status=403)],
        "gs://bucket",
        ["storage.objects.list", "gs://bucket/"],
    ),
    "the token has expired": (
        [Rule(status=401)],
        "gs://bucket",
        ["have expired", "gcloud auth"],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_errors_that_a_person_can_fix_are_one_line(
    name, storage, settings, tiny_records
):
    rules, bucket, words = FAULTS[name]
    build, config = settings
    storage.put_files(tiny_records, "records")
    build = dataclasses.replace(build, output_dir=f"{bucket}/new/records")
    config = tiny_run.make_config(RECORDS, f"{bucket}/new/run")
    for main, changed in ((build_tfrecords.main, build), (train, config)):
        storage.set_rules(rules)
        files.check_bucket.cache_clear()
        with pytest.raises((UserError, tf.errors.OpError)) as error:
            main(changed)
        explained = str(faults.explain(error.value))
        assert all(word in explained for word in words), explained
        assert "\n" not in explained


def test_a_missing_file_is_named_without_a_permission_for_the_bucket(storage):
    """Roles that only read objects do not have it."""
    storage.set_rules([Rule("bucket", status=403)])
    files.check_bucket.cache_clear()
    with pytest.raises(FileNotFoundError, match="no such file"):
        files.open_existing("gs://bucket/none.txt")


def test_a_successor_takes_over(storage):
    """The next check of the first owner fails, and it leaves the owner file."""
    with own(RUN) as second:
        pass
    assert not storage.read("run/")
    with pytest.raises(UserError, match="which has taken it over"):
        second.check()
    with own(RUN) as first, own(RUN) as second:
        second.check()
        with pytest.raises(UserError, match="which has taken it over"):
            first.check()
        first.release()
        second.check()


def test_damaged_json_is_read_again(storage, monkeypatch):
    monkeypatch.setattr(files, "REREAD_WAIT_S", 0)
    storage.put("a.json", b'{"a": 1}')
    for action in ("short", "flip"):
        storage.set_rules([Rule("read", action=action, times=2)])
        assert files.load_json("gs://bucket/a.json") == {"a": 1}
    storage.put("damaged.json", b'{"a": ')
    with pytest.raises(UserError, match="must be JSON"):
        files.load_json("gs://bucket/damaged.json")


def test_json_that_another_program_has_just_removed_is_missing(storage):
    """TensorFlow believes for 5 s that it exists."""
    storage.put("a.json", b"{}")
    assert files.load_json_if_any("gs://bucket/a.json") == {}
    storage.remove("a.json")
    assert files.load_json_if_any("gs://bucket/a.json") is None
