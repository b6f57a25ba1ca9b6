"""Runs of a sweep that start from the weights of another one."""

import json
import pathlib

import pytest

from albert_tf.errors import UserError
from albert_tf.sweeps import plan as plans
from albert_tf.sweeps.runner import Sweep

STAGES = (
    "first:",
    "second: --init_checkpoint={run:first} --ngram=2",
    "third: --init_checkpoint={run:second} --ngram=3",
)


def test_a_variant_starts_from_the_run_of_an_earlier_one(base):
    plan = plans.make_plan(base(variant=STAGES, seeds=("7", "3")))
    assert [run.name for run in plan.runs[2].stages] == [
        "third-seed7",
        "second-seed7",
        "first-seed7",
    ]
    assert [run.config.training.seed for run in plan.runs] == [
        7,
        1007,
        2007,
        3,
        1003,
        2003,
    ]
    first, second, _ = plans.make_plan(base(variant=STAGES)).runs
    assert second.starts_from == first
    assert second.config.training.seed == 12345


@pytest.mark.parametrize("step", ["train", "more"])
def test_each_seed_has_its_own_stages(base, tmp_path, step):
    """The commands name the run of the same seed, also if a flag file does."""
    flag_file = tmp_path / "second.flags"
    flag_file.write_text("--init_checkpoint={run:first}\n--ngram=2")
    plan = plans.make_plan(
        base(
            variant=(STAGES[0], f"second: --flagfile={flag_file}"),
            seeds=("7", "3"),
            evaluation=("more: --max_eval_steps=2",),
        )
    )
    sweep = Sweep(str(tmp_path), plan)
    starts = [
        [f for f in sweep.command(run, step) if "--init_checkpoint" in f]
        for run in plan.runs
    ]
    directory = f"--init_checkpoint={tmp_path}/runs/first-seed"
    assert starts == [[], [f"{directory}7"], [], [f"{directory}3"]]


@pytest.mark.parametrize("name", ["second", "first", "no_such", "x}/{run:y"])
def test_a_variant_cannot_start_from_a_later_one(base, name):
    first = f"first: --init_checkpoint={{run:{name}}}"
    with pytest.raises(UserError, match="init_checkpoint of variant first"):
        plans.make_plan(base(variant=(first, *STAGES[1:])))


@pytest.mark.parametrize(
    "changes",
    [
        {
            "variant": (
                *STAGES,
                "fourth: --eval_input_file={run:first}/a.tfrecord",
            )
        },
        {"evaluation": ("more: --eval_input_file={run:first}/a.tfrecord",)},
    ],
)
def test_other_settings_cannot_name_a_run(base, changes):
    said = "must be the value of init_checkpoint. Received: eval_input_file="
    with pytest.raises(UserError, match=said):
        plans.make_plan(base(**changes))


@pytest.mark.slow
def test_a_trained_stage_replaces_those_before_it(base, tmp_path):
    """The first stage, whose directory was deleted, fails; the third starts."""
    plan = plans.make_plan(base(variant=STAGES))
    second = pathlib.Path(plan.runs[1].run_dir(str(tmp_path)))
    second.mkdir(parents=True)
    event = {"time": 0.0, "event": "finish", "step": 50}
    (second / "events.jsonl").write_text(json.dumps(event) + "\n")
    sweep = Sweep(str(tmp_path), plan)
    sweep.run()
    assert set(sweep.failed) == {"first", "third"}
    log = pathlib.Path(sweep.log_file(plan.runs[2])).read_text()
    assert "input_file must match files" in log
