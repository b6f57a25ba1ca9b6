"""Which settings of a sweep may change once it has started."""

import pathlib

import pytest

from albert_tf.errors import UserError
from albert_tf.sweeps import plan as plans
from albert_tf.sweeps.results import check_directory
from tests.helpers.logged_run import write_run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--learning_rate=0.5", "learning_rate was .* is 0.5"),
        (
            "--eval_input_file=other/*",
            r"run first-seed1: data.eval_input_file was \['.*/eval/\*.tfrecord'"
            r"\] and is \['other/\*'\]",
        ),
        ("--max_eval_steps=0", "max_eval_steps was 5 and is 0"),
    ],
)
def test_the_settings_of_a_run_cannot_change_once_it_has_started(
    base, change, message
):
    """It may have been evaluated: its log has metrics of the held-out set."""

    def plan_of(*flags, evaluation=""):
        return plans.make_plan(
            base(
                base_flags=(*base().base_flags, "--max_eval_steps=5", *flags),
                variant=("first:", "second: --init_checkpoint={run:first}"),
                evaluation=(f"more: {evaluation}",),
                seeds=("1", "2"),
            )
        )

    check_directory(plan_of())
    check_directory(plan_of(change))
    for run in plan_of().runs:
        run_dir = pathlib.Path(run.run_dir)
        write_run(run_dir, [5.0], settings=run.config.to_dict())
    check_directory(plan_of(evaluation="--max_eval_steps=7"))
    with pytest.raises(UserError, match=message):
        check_directory(plan_of(change))


def test_a_sweep_is_in_a_local_directory(base):
    with pytest.raises(UserError, match=r"local directory.*gs://bucket"):
        check_directory(plans.make_plan(base(output_dir="gs://bucket/sweep")))
