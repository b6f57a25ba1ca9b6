"""Runs on packed records, each of which is a row of several examples."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import RetryError, UserError
from albert_tf.runs.checkpoint_files import list_checkpoints
from albert_tf.runs.log import read_metrics
from albert_tf.training.train import train
from albert_tf.training.trainer import Trainer
from tests.helpers import tiny_run
from tests.helpers.run_processes import lines_without_timing

NUM_ROWS = 8


def losses_of(run_dir):
    return [line["loss"] for line in read_metrics(str(run_dir))]


@pytest.mark.slow
def test_a_run_on_packed_records_resumes_exactly(
    tiny_dynamic_packed_records, tmp_path, caplog
):
    """Two replicas give the same losses. Held-out records are not packed."""
    records = tiny_dynamic_packed_records

    def run(name, **changes):
        config = tiny_run.make_config(
            records,
            tmp_path / name,
            global_batch_size=NUM_ROWS,
            dropout_schedule="0:0.0",  # its masks differ by replica
            **{**tiny_run.PACKING, **changes},
        )
        assert train(config) == 0

    caplog.set_level("INFO", "absl")
    run("alone")
    metadata = json.loads((records / "train" / "metadata.json").read_text())
    examples = metadata["num_examples"] / metadata["num_rows"]
    assert (
        f"{NUM_ROWS} rows hold {NUM_ROWS * examples:.0f} examples on average"
        in caplog.text
    )
    *lines, evaluation = read_metrics(str(tmp_path / "alone"))
    assert evaluation["split"] == "eval"
    for line in lines:
        rate = line["examples_per_second"] / line["steps_per_second"]
        assert rate == pytest.approx(NUM_ROWS * examples)
        assert line["useful_share"] == pytest.approx(metadata["fill"], abs=1e-5)

    # As if the checkpoints after step 4 were lost.
    shutil.copytree(tmp_path / "alone", tmp_path / "resumed")
    for checkpoint in list_checkpoints(str(tmp_path / "resumed/checkpoints")):
        if checkpoint.step > 4:
            shutil.rmtree(checkpoint.path)
    run("resumed")
    assert lines_without_timing(tmp_path / "resumed") == lines_without_timing(
        tmp_path / "alone"
    )

    run("replicas", strategy="mirrored", num_logical_cpus=2)
    np.testing.assert_allclose(
        losses_of(tmp_path / "replicas"), losses_of(tmp_path / "alone"), 1e-4
    )


@pytest.mark.slow
def test_a_diverged_run_on_packed_records_rolls_back_and_resumes_exactly(
    tiny_dynamic_packed_records, tmp_path
):
    """The learning rate is far too high; each rollback lowers it."""

    def run(name):
        config = tiny_run.make_config(
            tiny_dynamic_packed_records,
            tmp_path / name,
            **tiny_run.PACKING,
            global_batch_size=NUM_ROWS,
            learning_rate=0.8,
            num_warmup_steps=60,
            num_train_steps=240,
            steps_per_loop=10,
            save_checkpoints_steps=20,
            keep_checkpoint_max=20,
            on_divergence="rollback",
            divergence_loss_increase=0.4,
            rollback_learning_rate_scale=0.02,
        )
        assert train(config) == 0

    run("alone")
    rollbacks = json.loads((tmp_path / "alone/rollbacks.json").read_text())
    assert rollbacks
    lines = read_metrics(str(tmp_path / "alone"))
    steps = [line["step"] for line in lines if line["split"] == "train"]
    assert steps == list(range(10, 241, 10)), "each line must be logged once"

    # As if the checkpoints after the last rollback were lost.
    shutil.copytree(tmp_path / "alone", tmp_path / "resumed")
    for checkpoint in list_checkpoints(str(tmp_path / "resumed/checkpoints")):
        if checkpoint.step > rollbacks[-1]["resumed_from"]:
            shutil.rmtree(checkpoint.path)
    run("resumed")
    assert lines_without_timing(tmp_path / "resumed") == lines_without_timing(
        tmp_path / "alone"
    )


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_cancelled_sum_of_replicas_asks_for_another_start(
    tiny_records, tmp_path, monkeypatch, is_damaged
):
    """A replica that cannot read may cancel the sum of the other one.

    Then TensorFlow refuses all sums of that process.
    """
    records = shutil.copytree(tiny_records, tmp_path / "records")
    for shard in (records / "train").glob("*.tfrecord"):
        content = bytearray(shard.read_bytes())
        content[52] ^= is_damaged
        shard.write_bytes(content)

    def cancel(*_arguments):
        raise tf.errors.CancelledError(None, None, "Collective ops is aborted")

    config = tiny_run.make_config(
        records, tmp_path / "run", strategy="mirrored", num_logical_cpus=2
    )
    monkeypatch.setattr(Trainer, "advance", cancel)
    with pytest.raises(UserError) as raised:
        train(config)
    assert isinstance(raised.value, RetryError) != is_damaged
    remedy = "Copy the shard" if is_damaged else "Start the same command again"
    assert remedy in str(raised.value)


def test_a_cancelled_operation_of_one_replica_is_no_such_sum(
    tiny_records, tmp_path, monkeypatch
):
    """Nor is that of several hosts, which `name_lost_workers` explains."""

    def cancel(*_arguments):
        raise tf.errors.CancelledError(None, None, "a host is lost")

    monkeypatch.setattr(Trainer, "advance", cancel)
    with pytest.raises(tf.errors.CancelledError, match="a host is lost"):
        train(tiny_run.make_config(tiny_records, tmp_path))
