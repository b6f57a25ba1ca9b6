"""The files that describe a run."""

import json
import shutil

import pytest
import tensorflow as tf

from albert_tf.config import FinetuningConfig, TaskConfig
from albert_tf.config.task import FinetuningTrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import find_training_data
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.rollback import Rollback, Rollbacks
from tests.helpers import tiny_run
from tests.helpers.changed_runs import (
    FIRST,
    SECOND,
    THIRD,
    check,
    copy_records,
    copy_without_metadata,
)


def test_the_directory_describes_the_run_completely(
    run, tiny_records, tmp_path
):
    assert run_directory.load_config(str(tmp_path / "run")) == run()
    for name, written in (
        ("metadata.json", "records_metadata.json"),
        ("spiece.model", "spiece.model"),
    ):
        source = (tiny_records / "train" / name).read_bytes()
        assert (tmp_path / "run" / written).read_bytes() == source
    metadata = json.loads((tiny_records / "train/metadata.json").read_text())
    stored = json.loads((tmp_path / "run/training_records.json").read_text())
    shards = [
        [name, metadata["shards"][name], metadata["checksums"][name]]
        for name in (FIRST, SECOND, THIRD)
    ]
    assert stored == [{"first_step": 0, "shards": shards}]


def test_a_run_may_have_settings_that_were_removed(run, tmp_path):
    path = tmp_path / "run" / "config.json"
    values = json.loads(path.read_text())
    values["training"]["loop_seconds"] = 30.0
    path.write_text(json.dumps(values))
    assert run_directory.load_config(str(tmp_path / "run")) == run()


def test_each_phase_is_written(run_in_phases, tmp_path):
    stored = json.loads((tmp_path / "run/training_records.json").read_text())
    assert [
        (phase["first_step"], [name for name, *_ in phase["shards"]])
        for phase in stored
    ] == [(0, [FIRST]), (6, [FIRST, SECOND])]


def test_the_metadata_of_the_first_phase_is_written(
    run, tiny_records, tmp_path
):
    pattern = copy_records(
        tiny_records, tmp_path / "copy", inputs_sha256="0" * 64
    )
    config = run(
        input_file=(),
        dataset=(f"one={tiny_records}/train/*.tfrecord", f"two={pattern}"),
        data_schedule="0:one,6:two",
    )
    run_directory.write(config, find_training_data(config))
    written = (tmp_path / "run/records_metadata.json").read_bytes()
    assert written == (tiny_records / "train/metadata.json").read_bytes()


@pytest.mark.parametrize("continued", [False, True])
def test_the_vocabulary_of_a_failed_attempt_is_removed(
    run, tiny_records, tmp_path, continued
):
    """The new records have none. That of a run with a checkpoint is kept."""
    unknown = copy_without_metadata(tiny_records, tmp_path / "copy")
    if not continued:
        shutil.rmtree(tmp_path / "run" / "checkpoints")
    config = run(input_file=(unknown,))
    run_directory.write(config, find_training_data(config))
    for name in ("records_metadata.json", "spiece.model"):
        assert (tmp_path / "run" / name).exists() == continued


def test_parts_of_a_run_without_its_checkpoints_are_refused(run, tmp_path):
    """A new run would compare its losses with those of other weights."""
    run_dir = tmp_path / "run"
    store = CheckpointStore(str(run_dir), {"kernel": tf.Variable([1.0])})
    store.save_best(2, {}, 1.5)
    store.wait()
    rollback = Rollback(14, 5, 9, 1.0, "nan")
    Rollbacks.read(str(run_dir)).add(rollback)
    check(run())
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(UserError, match=r"remove rollbacks\.json and best/"):
        check(run())
    (run_dir / "rollbacks.json").unlink()
    with pytest.raises(UserError, match=r"have checkpoints, since .* best/\."):
        check(run())
    (committed,) = run_dir.glob("best/*/checkpoint.json")
    committed.unlink()  # without it, the next save removes the rest
    check(run())


def test_a_vocabulary_added_by_hand_stays(tiny_records, tmp_path):
    unknown = copy_without_metadata(tiny_records, tmp_path / "copy")
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", input_file=(unknown,)
    )
    vocabulary = tmp_path / "run" / "spiece.model"
    vocabulary.parent.mkdir()
    vocabulary.write_bytes(b"by hand")
    run_directory.write(config, find_training_data(config))
    assert vocabulary.read_bytes() == b"by hand"


def test_the_null_threshold_of_the_run_comes_first(tmp_path):
    """The settings' is second. In SQuAD 1.1, every question has an answer."""

    def threshold(task):
        training = FinetuningTrainingConfig(null_threshold=-2.0)
        config = FinetuningConfig(task=TaskConfig(task=task), training=training)
        return run_directory.null_threshold(str(tmp_path), config)

    assert threshold("squad_v2") == -2
    (tmp_path / "null_threshold.json").write_text('{"null_threshold": 1.5}')
    assert threshold("squad_v2") == 1.5
    assert threshold("squad_v1") == float("inf")
