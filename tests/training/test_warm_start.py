"""Runs that start from the weights of another model."""

import math
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cluster.replicas import Replicas
from albert_tf.config import (
    InitializationConfig,
)
from albert_tf.errors import UserError
from albert_tf.interop import formats, hugging_face
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training import preflight, warm_start
from albert_tf.training.saver import Saver
from albert_tf.training.train import train
from tests.helpers import tiny_run, tpu_bridge
from tests.helpers.conversion import write_published
from tests.helpers.run_processes import RunProcesses, lines_without_timing
from tests.helpers.warm_starts import (
    WITHOUT_EFFECT,
    assert_same_values,
    is_moment,
    report_of,
    values_of,
    weights_in,
    weights_of,
)

# --- a run that continues ---------------------------------------------------


def evaluation_of(run_dir):
    """Metrics of the run's last evaluation, without step and time."""
    *_, last = read_metrics(str(run_dir))
    assert last.pop("split") == "eval"
    del last["step"], last["evaluation_seconds"]
    return last


def test_a_run_starts_with_the_losses_of_the_model(
    source, tiny_records, tmp_path
):
    """Its evaluation equals that of the model, and its moments are zero."""
    for name, more in (
        ("fresh", {}),
        ("continued", {"init_checkpoint": str(source)}),
    ):
        train(
            tiny_run.make_config(
                tiny_records, tmp_path / name, **WITHOUT_EFFECT, **more
            )
        )
    expected = evaluation_of(source)
    assert evaluation_of(tmp_path / "continued") == expected
    assert evaluation_of(tmp_path / "fresh")["loss"] > expected["loss"] + 0.1

    before = values_of(source, 12)
    now = values_of(tmp_path / "continued", 0)
    assert_same_values(now, before, weights_in(before))
    assert now["step"] == 0
    assert not any(value.any() for n, value in now.items() if is_moment(n))
    assert any(value.any() for n, value in before.items() if is_moment(n))

    report = report_of(tmp_path / "continued")
    start = read_events(str(tmp_path / "continued"))[0]
    assert (start["event"], start["warm_start"]) == ("start", report)
    assert report["step"] == 12
    assert report["vocabularies_known"]
    assert report["pieces"]["kept"] == tiny_run.MODEL.vocab_size
    assert not report["initialized"]
    assert not report["unused"]
    assert "warm_start" not in read_events(str(tmp_path / "fresh"))[0]
    assert not (tmp_path / "fresh/warm_start.json").exists()


def test_a_run_with_a_checkpoint_resumes_from_it(
    source, tiny_records, tmp_path
):
    """Even if the model no longer exists."""
    model, run_dir = tmp_path / "model", tmp_path / "run"
    shutil.copytree(source, model)
    config = tiny_run.make_config(
        tiny_records,
        run_dir,
        init_checkpoint=str(model),
        num_train_steps=4,
        save_checkpoints_steps=2,
        eval_input_file=(),
    )
    train(config)
    expected, report = values_of(run_dir, 4), report_of(run_dir)
    shutil.rmtree(run_dir / "checkpoints/step-00000004")
    shutil.rmtree(model)
    train(config)
    assert_same_values(values_of(run_dir, 4), expected, set(expected))
    starts = [
        (event["event"], event["step"], "warm_start" in event)
        for event in read_events(str(run_dir))
        if event["event"] in ("start", "resume")
    ]
    assert starts == [("start", 0, True), ("resume", 2, False)]
    assert report_of(run_dir) == report


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_starts_over(
    source, other_records, tmp_path, monkeypatch
):
    """From another vocabulary, so that some values are newly initialised."""

    def config(name):
        return tiny_run.make_config(
            other_records,
            tmp_path / name,
            init_checkpoint=str(source),
            vocab_size=300,
            eval_input_file=(),
            num_train_steps=2,
        )

    class Killed(BaseException):
        pass

    def kill(saver):
        raise Killed

    train(config("alone"))
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "save", kill)
        with pytest.raises(Killed):
            train(config("killed"))
    assert (tmp_path / "killed/warm_start.json").exists()
    assert not (tmp_path / "killed/checkpoints").exists()
    train(config("killed"))
    alone, killed = (
        values_of(tmp_path / name, 2) for name in ("alone", "killed")
    )
    assert_same_values(killed, alone, set(alone))
    assert lines_without_timing(tmp_path / "killed") == lines_without_timing(
        tmp_path / "alone"
    )


def test_a_new_attempt_removes_the_report_of_the_last(plan_for, tmp_path):
    planned = plan_for(tiny_run.MODEL, weights_of(tiny_run.MODEL))
    warm_start.write_report(str(tmp_path), planned)
    assert report_of(tmp_path) == planned.report
    warm_start.write_report(str(tmp_path), None)
    assert not list(tmp_path.iterdir())


def test_a_slice_gets_the_weights_on_its_first_replica_only(
    plan_for, monkeypatch
):
    """`Replicas.copy_from_first` copies them to the others."""
    weights = weights_of(tiny_run.MODEL)
    planned = plan_for(tiny_run.MODEL, weights)
    strategy = tpu_bridge.make_tpu_strategy(monkeypatch)
    # A TPUStrategy on CPUs cannot run programs.
    copied = []
    monkeypatch.setattr(
        Replicas, "copy_from_first", lambda self: copied.append(self)
    )
    with strategy.scope():
        variables = {
            path: tf.Variable(tf.fill(values.shape, 7.0))
            for path, values in weights.values.items()
        }
    planned.apply(variables)
    for path, source in planned.sources.items():
        first, other = strategy.experimental_local_results(variables[path])
        np.testing.assert_array_equal(first, weights.values[source])
        assert (other.numpy() == 7).all()
    assert len(copied) == 1


@pytest.mark.slow
def test_all_workers_start_with_equal_weights(source, tiny_records, tmp_path):
    """The first step of two workers equals that of one device."""

    def config(name, strategy):
        return tiny_run.make_config(
            tiny_records,
            tmp_path / name,
            init_checkpoint=str(source),
            num_train_steps=1,
            num_warmup_steps=0,
            dropout_schedule="0:0.0",
            strategy=strategy,
            eval_input_file=(),
        )

    train(config("alone", "one_device"))
    processes = RunProcesses(
        config("workers", "multi_worker"), tmp_path, workers=2
    )
    assert processes.wait() == [0, 0], processes.log()
    initial, alone = (values_of(tmp_path / "alone", step) for step in (0, 1))
    assert_same_values(values_of(tmp_path / "workers", 0), initial, initial)
    both = values_of(tmp_path / "workers", 1)
    assert any((alone[n] != initial[n]).any() for n in weights_in(alone))
    for name in weights_in(alone):
        np.testing.assert_allclose(both[name], alone[name], atol=1e-5)


def test_a_dry_run_tries_the_weights(source, tiny_records, tmp_path, capsys):
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", init_checkpoint=str(source)
    )
    assert preflight.run(config) == 0
    table = capsys.readouterr().out
    assert re.search(
        rf"ok +initial weights +starting .*{source}, step 12", table
    )
    (loss,) = re.findall(r"ok +loss +(\S+) at step 0\n", table)
    # Below the loss of uniform predictions, after 12 updates.
    guess = math.log(tiny_run.MODEL.vocab_size) + math.log(2)
    assert float(loss) < guess - 0.2
    assert not (tmp_path / "run").exists()

    wrong = tiny_run.make_config(
        tiny_records, tmp_path / "run", init_checkpoint=str(tmp_path / "none")
    )
    assert preflight.run(wrong) == 1
    table = capsys.readouterr().out
    assert re.search(r"FAIL +initial weights .*/none", table)
    assert "needs: initial weights" in table


@pytest.mark.parametrize("write", [hugging_face.write, write_published])
def test_a_run_starts_from_models_in_formats_of_other_projects(
    source, tiny_records, tmp_path, write
):
    there = tmp_path / "theirs"
    write(formats.read_weights(str(source)), there)
    train(
        tiny_run.make_config(
            tiny_records,
            tmp_path / "run",
            init_checkpoint=str(there),
            eval_input_file=(),
            **WITHOUT_EFFECT,
        )
    )
    before, now = values_of(source, 12), values_of(tmp_path / "run", 0)
    assert_same_values(now, before, weights_in(before))


# --- what does not fit ------------------------------------------------------

OTHER = {
    "embedding_size": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_act": "relu",
    "type_vocab_size": 3,
}


@pytest.mark.parametrize(("name", "value"), OTHER.items())
def test_another_architecture_is_refused_with_both_values(
    source, tiny_records, tmp_path, name, value
):
    run_dir = tmp_path / "run"
    config = tiny_run.make_config(
        tiny_records, run_dir, init_checkpoint=str(source), **{name: value}
    )
    here = getattr(tiny_run.MODEL, name)
    with pytest.raises(UserError, match=f"{name} {here!r} and {value!r}"):
        train(config)
    assert not run_dir.exists()


@pytest.mark.parametrize(
    "name", ["init_vocabulary", "init_from_group0", "init_optimizer_state"]
)
def test_settings_of_a_warm_start_need_a_checkpoint(name):
    value = "spiece.model" if name == "init_vocabulary" else True
    with pytest.raises(UserError, match=f"{name} needs --init_checkpoint"):
        InitializationConfig(**{name: value})
    InitializationConfig(init_checkpoint="a", **{name: value})
