"""Training by JAX's client equals training by TensorFlow."""

import collections
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cluster import jax_private, pjrt
from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import DistributionConfig
from albert_tf.errors import UserError
from albert_tf.io import faults
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.target import ProgramTarget
from albert_tf.training import evaluate, train_step
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.run_processes import (
    RunProcesses,
    check_same_run,
    lines_without_timing,
    read_variables,
)


def settings(records, run_dir, **changes):
    return tiny_run.make_config(
        records,
        run_dir,
        strategy="auto",
        learning_rate=1e-3,
        num_train_steps=6,
        save_checkpoints_steps=4,
        jit_compile=True,
        dropout_schedule="0:0.0",
        **changes,
    )


def results(run_dir):
    """The lines of the log without times, and the newest checkpoint."""
    return lines_without_timing(run_dir), read_variables(run_dir)


def assert_equal(found, wanted, tolerance):
    for line, expected in zip(found[0], wanted[0], strict=True):
        assert line.keys() == expected.keys()
        for name, value in expected.items():
            if not isinstance(value, str):
                assert line[name] == pytest.approx(
                    value, rel=tolerance, abs=tolerance
                ), (line["step"], name)
    assert found[1].keys() == wanted[1].keys()
    for name, value in wanted[1].items():
        np.testing.assert_allclose(
            found[1][name], value, rtol=0, atol=tolerance, err_msg=name
        )


def train_by(runtime, config, run_dir):
    """Trains, or continues a run; returns its results."""
    changes = {"runtime": runtime, "output_dir": str(run_dir)}
    with tiny_run.eagerly(runtime == "tensorflow"):
        assert train(config.replace(**changes)) == 0
    return results(run_dir)


@pytest.mark.jax
@pytest.mark.slow
def test_run_trains_and_continues_with_either_runtime(
    tiny_records, tmp_path, capsys
):
    """They write the same variables. The cache of JAX has the programs of a
    restart."""
    import jax

    config = settings(tiny_records, tmp_path)
    runs = {name: tmp_path / name for name in ("tensorflow", "pjrt")}
    wanted, whole = (train_by(name, config, runs[name]) for name in runs)
    assert_equal(whole, wanted, 1e-6)

    def continued_by(runtime, run_dir):
        shutil.rmtree(run_dir / "checkpoints/step-00000006")
        shutil.rmtree(run_dir / "best")
        return train_by(runtime, config, run_dir)

    counts = collections.Counter()
    jax.monitoring.register_event_listener(
        lambda event, **_: counts.update([event.rpartition("/")[2]])
    )
    again = continued_by("pjrt", runs["pjrt"])
    assert counts["cache_misses"] == 0 < counts["cache_hits"]
    assert again[0] == whole[0]
    for name, value in whole[1].items():
        np.testing.assert_array_equal(again[1][name], value)
    assert_equal(continued_by("tensorflow", runs["pjrt"]), wanted, 1e-6)

    evaluate.evaluate_run(
        config.replace(
            mode="eval", runtime="pjrt", output_dir=str(runs["pjrt"])
        )
    )
    loss = next(line for line in whole[0] if line["split"] == "eval")["loss"]
    assert f'"loss": {loss}' in capsys.readouterr().out


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.long
def test_devices_and_processes_train_as_replicas_of_tensorflow(
    tiny_dynamic_packed_records, tmp_path
):
    config = settings(
        tiny_dynamic_packed_records,
        tmp_path,
        **tiny_run.PACKING,
        gradient_accumulation_steps=2,
        optimizer="adamw",
    )
    several = config.replace(
        strategy="multi_worker",
        runtime="pjrt",
        output_dir=str(tmp_path / "processes"),
    )
    run = RunProcesses(several, tmp_path, workers=2)
    config = config.replace(num_logical_cpus=2)
    wanted, found = (
        train_by(name, config, tmp_path / name)
        for name in ("tensorflow", "pjrt")
    )
    assert_equal(found, wanted, 1e-6)
    assert run.wait() == [0, 0], run.log()
    check_same_run(tmp_path / "processes", tmp_path / "pjrt")


@pytest.mark.jax
def test_host_reads_results_two_steps_late(monkeypatch):
    """The devices have the next step when they finish one."""
    order = []

    class Program:
        sums_flags = False

        def __call__(self, batch, flag):
            order.append(f"run {batch}")
            return {"all": batch}, {}

    def read(result):
        order.append(f"read {result}")
        return np.ones(1, np.float32)

    monkeypatch.setattr(pjrt, "value_of", read)
    monkeypatch.setattr(pjrt, "step_program", lambda *_: Program())
    runtime = make_strategy(DistributionConfig(runtime="pjrt")).runtime
    found = runtime.loop(None)(iter(range(10)), tf.constant([5.0]), 4)
    assert order == [
        *("run 0", "run 1", "run 2", "read 0", "run 3", "read 1"),
        *("read 2", "read 3"),
    ]
    assert found == ([9.0], 4, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "mirrored"}, "strategy must be auto or multi_worker"),
        ({"jit_compile": False}, "jit_compile must be on"),
    ],
)
def test_settings_of_tensorflow_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        DistributionConfig(runtime="pjrt", **changes)


@pytest.mark.parametrize("version", ["none", "0.9.0", "0.13.0"])
def test_other_releases_of_jax_are_refused(version, monkeypatch):
    monkeypatch.setattr(
        jax_private.importlib.util, "find_spec", lambda _: version != "none"
    )
    monkeypatch.setattr(
        jax_private.importlib.metadata, "version", lambda _: version
    )
    with pytest.raises(
        UserError,
        match=f"jax and jaxlib must be .*{version} and {version}.*pip",
    ):
        make_strategy(DistributionConfig(runtime="pjrt"))
    setup = pathlib.Path(__file__).parents[2].joinpath("setup.py").read_text()
    (limits,) = re.findall('^JAX = "jax(.*)"$', setup, re.M)
    assert jax_private.SpecifierSet(limits) == jax_private.RELEASES


@pytest.mark.jax
def test_missing_devices_are_refused(monkeypatch):
    import jax

    def devices(kind):
        raise RuntimeError("no tpu")

    monkeypatch.setattr(jax, "devices", devices)
    message = "needs a device of JAX. Received: no tpu. Unset JAX_PLATFORMS"
    with pytest.raises(UserError, match=message):
        make_strategy(DistributionConfig(runtime="pjrt"))


@pytest.mark.jax
def test_workers_that_jax_does_not_find_are_named(monkeypatch):
    """As under Open MPI 5, which sets other variables than 4."""
    import jax

    def initialize(*_, **__):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = DistributionConfig(runtime="pjrt", strategy="multi_worker")
    message = "needs the addresses of the workers.*coordinator.*TF_CONFIG"
    with pytest.raises(UserError, match=message):
        make_strategy(config)


@pytest.mark.jax
def test_too_many_devices_are_refused():
    make_strategy(DistributionConfig(runtime="pjrt"))  # starts JAX
    with pytest.raises(UserError, match="must be set before TensorFlow or JAX"):
        make_strategy(DistributionConfig(runtime="pjrt", num_logical_cpus=64))


@pytest.mark.jax
@pytest.mark.parametrize(
    ("said", "explained"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory "
            "(10.00M) exceeds available HBM (7.00M).",
            r"10.00M.*HBM \(7.00M.*Raise --gradient_acc",
        ),
        # What XLA says if TMPDIR is full.
        (
            "RESOURCE_EXHAUSTED: /tmp/tempfile-vm-4125; No space left on "
            "device",
            r"the disk is full: .*/tmp/tempfile.*free some space",
        ),
    ],
)
def test_exhausted_memory_or_disk_is_explained(said, explained, monkeypatch):
    import jax

    strategy = make_strategy(DistributionConfig(runtime="pjrt"))

    def fail(*_):
        raise jax.errors.JaxRuntimeError(said)

    runtime = strategy.runtime
    program = pjrt.Program(runtime, lambda batch: ({}, dict(batch)))
    batch = runtime.join_rows([{"x": np.zeros([8, 2], np.float32)}])
    program(batch)
    monkeypatch.setattr(program, "_program", fail)
    with pytest.raises((UserError, OSError)) as raised:
        program(batch)
    assert re.search(explained, str(faults.explain(raised.value)))


@pytest.mark.jax
def test_dropout_is_a_function_of_seed_step_and_replica():
    strategy = make_strategy(
        DistributionConfig(runtime="pjrt", num_logical_cpus=2)
    )

    def masks_of(num_steps):
        """The masks of both replicas in each step, from step 0 on."""
        with strategy.scope():
            step = tf.Variable(0, dtype=tf.int32)

        def masks(batch):
            context = tf.distribute.get_replica_context()
            seed = train_step.fold_in(tf.constant([7, 1]), step)
            seed = train_step.fold_in(seed, context.replica_id_in_sync_group)
            step.assign_add(1)
            dropout = Dropout(0.5, 0.5, seed)
            kept = dropout.hidden_masks(3, ProgramTarget(fuse=True)).keep([64])
            return {}, {"kept": tf.cast(kept, tf.int32)[tf.newaxis]}

        program = pjrt.Program(strategy.runtime, masks)
        batch = strategy.runtime.join_rows(
            [{"x": np.zeros([1], np.float32)}] * 2
        )
        return [
            tuple(row)
            for _ in range(num_steps)
            for row in np.asarray(program(batch)[1]["kept"]).tolist()
        ]

    found = masks_of(3)
    assert len(set(found)) == len(found) == 3 * 2
    assert masks_of(3) == found
    assert 0.35 < np.mean(found) < 0.65
