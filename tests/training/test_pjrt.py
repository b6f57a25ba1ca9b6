"""Training by JAX's client equals training by TensorFlow."""

import dataclasses
import shutil

import numpy as np
import pytest

from albert_tf.cluster import jax_private, pjrt
from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import DistributionConfig
from albert_tf.errors import UserError
from albert_tf.runs.checkpoints import list_checkpoints, read_values
from albert_tf.runs.log import read_metrics
from albert_tf.training import evaluate, pjrt_steps
from albert_tf.training.progress import TIMING_METRICS
from albert_tf.training.train import train
from tests.helpers import tiny_run

MODEL = dataclasses.replace(tiny_run.MODEL, num_hidden_layers=1)
NUM_STEPS = 50


def settings(records, run_dir, **changes):
    return tiny_run.make_config(
        records,
        run_dir,
        model=MODEL,
        strategy="auto",
        learning_rate=1e-3,
        num_train_steps=NUM_STEPS,
        steps_per_loop=10,
        save_checkpoints_steps=20,
        eval_every_n_steps=50,
        fuse_on_cpu=True,
        **changes,
    )


def results(run_dir):
    """The lines of the log without times, and the newest checkpoint."""
    lines = [
        {n: v for n, v in line.items() if n not in TIMING_METRICS}
        for line in read_metrics(run_dir)
    ]
    newest = list_checkpoints(f"{run_dir}/checkpoints")[-1]
    values = read_values(newest)
    return lines, {name: value.numpy() for name, value in values.items()}


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
    assert train(config.replace(**changes)) == 0
    return results(run_dir)


@pytest.mark.jax
@pytest.mark.slow
def test_run_trains_and_continues_with_either_runtime(
    tiny_records, tmp_path, capsys
):
    config = settings(tiny_records, tmp_path)
    runs = {name: tmp_path / name for name in ("tensorflow", "pjrt")}
    wanted, whole = (train_by(name, config, runs[name]) for name in runs)
    assert_equal(whole, wanted, 1e-6)

    for run_dir in runs.values():
        shutil.rmtree(run_dir / "checkpoints/step-00000050")
        shutil.rmtree(run_dir / "best")
    assert_equal(train_by("pjrt", config, runs["tensorflow"]), wanted, 1e-6)
    again = train_by("pjrt", config, runs["pjrt"])
    assert again[0] == whole[0]
    for name, value in whole[1].items():
        np.testing.assert_array_equal(again[1][name], value)

    evaluate.evaluate_run(
        config.replace(
            mode="eval", runtime="pjrt", output_dir=str(runs["pjrt"])
        )
    )
    loss = next(line for line in whole[0] if line["split"] == "eval")["loss"]
    assert f'"loss": {loss}' in capsys.readouterr().out


@pytest.mark.jax
@pytest.mark.slow
def test_replicas_train_as_those_of_tensorflow(
    tiny_dynamic_packed_records, tmp_path
):
    config = settings(
        tiny_dynamic_packed_records,
        tmp_path,
        **tiny_run.PACKING,
        num_logical_cpus=2,
        gradient_accumulation_steps=2,
        optimizer="adamw",
        remat=True,
    )
    wanted, found = (
        train_by(name, config, tmp_path / name)
        for name in ("tensorflow", "pjrt")
    )
    assert_equal(found, wanted, 1e-6)


@pytest.mark.jax
def test_host_reads_results_two_steps_late(tiny_records, tmp_path, monkeypatch):
    """The devices have the next step when they finish one."""
    order = []

    class Results:
        def __init__(self, number):
            self.number = number

        def is_ready(self):
            return True

    def program(batch, *flags):
        order.append(f"run {batch}")
        return {"all": Results(batch)}, {}

    def read(result):
        order.append(f"read {result.number}")
        return np.ones(1, np.float32)

    monkeypatch.setattr(pjrt_steps, "value_of", read)
    monkeypatch.setattr(pjrt_steps, "make_function", lambda *_: None)
    monkeypatch.setattr(pjrt_steps, "Program", lambda *_: program)
    config = settings(
        tiny_records, tmp_path, runtime="pjrt", num_logical_cpus=1
    )
    strategy = make_strategy(config.distribution)
    state = pjrt_steps.TrainState(None, None, None, *scalars(strategy))
    steps = pjrt_steps.PjrtSteps(strategy, state, config)(
        iter(range(10)), {"loss": 5.0}, 4, None
    )
    assert order == [
        *("run 0", "run 1", "run 2", "read 0", "run 3", "read 1"),
        *("read 2", "read 3"),
    ]
    assert (steps.num_steps, steps.totals) == (4, {"loss": 9.0})


def scalars(strategy):
    import tensorflow as tf

    with strategy.scope():
        return tf.Variable(0, dtype=tf.int64), tf.Variable(1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "mirrored"}, "strategy must be auto or multi_worker"),
        ({"fuse_on_cpu": False}, "fuse_on_cpu and jit_compile must be on"),
        ({"tpu_name": "grpc://a:1"}, "tpu_name must be local"),
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
        UserError, match=f"needs jax and jaxlib .*{version} and {version}.*pip"
    ):
        make_strategy(DistributionConfig(runtime="pjrt"))


@pytest.mark.jax
def test_too_many_devices_are_refused():
    make_strategy(DistributionConfig(runtime="pjrt"))  # starts JAX
    with pytest.raises(UserError, match="must be set before JAX starts"):
        make_strategy(DistributionConfig(runtime="pjrt", num_logical_cpus=64))


@pytest.mark.jax
def test_program_that_does_not_fit_is_refused(monkeypatch):
    import jax

    strategy = make_strategy(DistributionConfig(runtime="pjrt"))
    program = pjrt.Program(strategy, lambda batch: (batch, {}))

    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 of 8 GiB")

    monkeypatch.setattr(program, "_make", lambda *_: fail)
    with pytest.raises(UserError, match=r"9 of 8 GiB.*gradient_accumulation"):
        program({})
