"""Metrics of one table are measured on the same examples."""

import json
import pathlib
import sys

import pytest

from albert_tf.errors import UserError
from albert_tf.sweeps import plan as plans
from albert_tf.sweeps.directory import claim_directory
from albert_tf.sweeps.results import read_results
from albert_tf.sweeps.runner import Sweep
from tests.helpers.logged_run import write_run


@pytest.fixture
def plan_of(base):
    """A function: the plan of one variant, evaluated on records of `more`."""

    def make(base_flags="", variant="", evaluation=""):
        config = base()
        return plans.make_plan(
            base(
                base_flags=(
                    *config.base_flags,
                    "--eval_input_file=eval/*.tfrecord --max_eval_steps=5",
                    base_flags,
                ),
                variant=(f"narrow: --model=embedding_size=2 {variant}",),
                evaluation=(
                    f"more: --eval_input_file=more/*.tfrecord {evaluation}",
                ),
                metrics=("more/loss",),
            )
        )

    return make


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """A function: the value in the table of a plan, and whether it is new.

    The run is trained. A process prints a number instead of evaluating it: 1,
    and then 2, 3, ...
    """
    events = [{"time": 0.0, "event": "finish", "step": 50}]
    write_run(tmp_path / "runs" / "narrow", [5.0], events)
    started = []

    def command(_, run, step):
        started.append((run.name, step))
        metrics = json.dumps({"loss": len(started)})
        return [sys.executable, "-c", f"print({metrics!r})"]

    monkeypatch.setattr(Sweep, "command", command)

    def run(plan):
        before = len(started)
        sweep = Sweep(str(tmp_path), plan)
        sweep.run()
        assert not sweep.failed
        values = read_results(str(tmp_path), plan).of("narrow", "more/loss")
        return values[None], len(started) > before

    return run


@pytest.mark.parametrize(
    "changes",
    [
        {"base_flags": "--max_eval_steps=7"},
        {"base_flags": "--eval_batch_size=8"},
        {"base_flags": "--max_predictions_per_seq=2"},
        {"variant": "--max_eval_steps=7"},
        {"evaluation": "--max_eval_steps=7"},
        {"evaluation": "--eval_input_file=other/*.tfrecord"},
        {"evaluation": "--eval_sentence_objective=nsp"},
        {"evaluation": "--checkpoint_step=4"},
    ],
)
def test_an_evaluation_with_other_settings_is_repeated(
    plan_of, evaluate, changes
):
    """Wherever its settings come from: all runs, the variant or itself."""
    assert evaluate(plan_of()) == (1, True)
    assert evaluate(plan_of()) == (1, False)
    assert evaluate(plan_of(**changes)) == (2, True)
    assert evaluate(plan_of(**changes)) == (2, False)


def test_an_evaluation_is_kept_if_no_changed_setting_affects_it(
    plan_of, evaluate
):
    """An evaluation of all examples is the same in batches of any size."""
    every = {"evaluation": "--max_eval_steps=0"}
    assert evaluate(plan_of(**every)) == (1, True)
    others = "--eval_batch_size=8 --steps_per_loop=7"
    assert evaluate(plan_of(base_flags=others, **every)) == (1, False)


def test_an_evaluation_that_stored_no_step_was_of_the_newest_checkpoint(
    plan_of, evaluate, tmp_path
):
    """Earlier versions did not store the step."""
    assert evaluate(plan_of()) == (1, True)
    file = tmp_path / "evaluations" / "narrow" / "more.json"
    stored = json.loads(file.read_text())
    stored["settings"].pop("training.checkpoint_step", None)
    file.write_text(json.dumps(stored))
    assert evaluate(plan_of()) == (1, False)
    assert evaluate(plan_of(evaluation="--checkpoint_step=4")) == (2, True)


def test_an_evaluation_that_stored_no_settings_is_repeated(
    plan_of, evaluate, tmp_path
):
    """Earlier versions stored only the flags of the evaluation itself."""
    plan = plan_of()
    directory = tmp_path / "evaluations" / "narrow"
    directory.mkdir(parents=True)
    (directory / "more.json").write_text(
        json.dumps({"flags": plan.evaluations["more"], "metrics": {"loss": 9}})
    )
    assert read_results(str(tmp_path), plan).of("narrow", "more/loss") == {}
    assert evaluate(plan) == (1, True)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--eval_input_file=other/*",
            r"run narrow: data.eval_input_file was \['eval/\*.tfrecord'\] "
            r"and is \['other/\*'\]",
        ),
        ("--eval_input_file=", r"eval_input_file was .* and is \[\]"),
        ("--max_eval_steps=0", "data.max_eval_steps was 5 and is 0"),
        ("--eval_batch_size=8", "data.eval_batch_size was 64 and is 8"),
    ],
)
def test_the_held_out_set_of_a_started_run_cannot_change(
    plan_of, tmp_path, flag, message
):
    """The run may have been evaluated: its log has these metrics."""
    directory = str(tmp_path / "sweep")
    plan, changed = plan_of(), plan_of(base_flags=flag)
    claim_directory(directory, plan)
    claim_directory(directory, changed)
    (run,) = plan.runs
    run_dir = pathlib.Path(run.run_dir(directory))
    write_run(run_dir, [5.0], settings=run.config.to_dict())
    with pytest.raises(UserError, match=message):
        claim_directory(directory, changed)
    claim_directory(directory, plan)
    more = plan_of(evaluation="--max_eval_steps=7")
    claim_directory(directory, more)


def test_the_batch_size_of_an_evaluation_of_all_examples_can_change(
    plan_of, tmp_path
):
    directory = str(tmp_path / "sweep")
    plan = plan_of(base_flags="--max_eval_steps=0")
    claim_directory(directory, plan)
    (run,) = plan.runs
    run_dir = pathlib.Path(run.run_dir(directory))
    write_run(run_dir, [5.0], settings=run.config.to_dict())
    larger = "--max_eval_steps=0 --eval_batch_size=8"
    claim_directory(directory, plan_of(base_flags=larger))
