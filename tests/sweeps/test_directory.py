"""What a sweep accepts in its directory, and which metrics it keeps."""

import pathlib

import pytest

from albert_tf.errors import UserError
from albert_tf.sweeps import plan as plans
from albert_tf.sweeps.results import (
    check_directory,
    make_jobs,
    read_evaluation,
)
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


def start_runs(plan):
    for run in plan.runs:
        run_dir = pathlib.Path(run.run_dir)
        write_run(run_dir, [5.0], settings=run.config.to_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_flags": "--learning_rate=0.5"}, "learning_rate was .* is 0.5"),
        ({"variant": "--model=embedding_size=3"}, "run narrow: model.embeddi"),
        (
            {"base_flags": "--eval_input_file=other/*"},
            r"run narrow: data.eval_input_file was \['eval/\*.tfrecord'\] "
            r"and is \['other/\*'\]",
        ),
        ({"base_flags": "--eval_input_file="}, "eval_input_file .* is \\[\\]"),
        ({"base_flags": "--max_eval_steps=0"}, "max_eval_steps was 5 and is 0"),
        ({"base_flags": "--eval_batch_size=8"}, "eval_batch_size was 64 and"),
    ],
)
def test_the_settings_of_a_run_cannot_change_once_it_has_started(
    plan_of, changes, message
):
    """It may have been evaluated: its log has metrics of the held-out set."""
    plan, changed = plan_of(), plan_of(**changes)
    check_directory(plan)
    check_directory(changed)
    start_runs(plan)
    check_directory(plan)
    with pytest.raises(UserError, match=message):
        check_directory(changed)
    check_directory(plan_of(evaluation="--max_eval_steps=7"))


def test_the_batch_size_of_an_evaluation_of_all_examples_can_change(plan_of):
    start_runs(plan_of(base_flags="--max_eval_steps=0"))
    larger = "--max_eval_steps=0 --eval_batch_size=8 --steps_per_loop=7"
    check_directory(plan_of(base_flags=larger))


def test_a_directory_belongs_to_one_sweep(base, tmp_path):
    """Variants can be added, and renamed."""
    first = base()
    plan = plans.make_plan(first)
    start_runs(plan)
    wide = "wide: --model=embedding_size=5"
    check_directory(plans.make_plan(base(variant=(*first.variant, wide))))
    check_directory(plans.make_plan(base(variant=(first.variant[0], wide))))
    with pytest.raises(UserError, match="with long; narrow"):
        check_directory(plans.make_plan(base(variant=(wide,))))
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "notes.txt").touch()
    with pytest.raises(UserError, match=r"must be new .*notes.txt"):
        check_directory(plans.make_plan(base(output_dir=f"{tmp_path}/else")))
    with pytest.raises(UserError, match=r"local directory.*gs://bucket"):
        check_directory(plans.make_plan(base(output_dir="gs://bucket/sweep")))


def test_a_run_that_starts_from_another_one_keeps_its_settings(base):
    """Its settings have the path of the other run."""
    plan = plans.make_plan(
        base(variant=("a:", "b: --init_checkpoint={run:a}"), seeds=("1", "2"))
    )
    start_runs(plan)
    check_directory(plan)


@pytest.mark.parametrize(
    ("changes", "repeated"),
    [
        ({"base_flags": "--max_eval_steps=7"}, True),
        ({"base_flags": "--eval_batch_size=8"}, True),
        ({"base_flags": "--max_predictions_per_seq=2"}, True),
        ({"variant": "--max_eval_steps=7"}, True),
        ({"evaluation": "--max_eval_steps=7"}, True),
        ({"evaluation": "--eval_input_file=other/*.tfrecord"}, True),
        ({"evaluation": "--eval_sentence_objective=nsp"}, True),
        ({"evaluation": "--checkpoint_step=4"}, True),
        ({"base_flags": "--steps_per_loop=7"}, False),
    ],
)
def test_an_evaluation_with_other_settings_is_repeated(
    plan_of, changes, repeated
):
    """Wherever its settings come from: all runs, the variant or itself."""
    training, evaluation = make_jobs(plan_of())
    assert (training.name, evaluation.name) == ("narrow", "narrow/more")
    assert evaluation.needs is training
    pathlib.Path(evaluation.output).parent.mkdir(parents=True)
    pathlib.Path(evaluation.output).write_text('a line\n{"loss": 1.5}\n')
    evaluation.on_success()
    left = [job.name for job in make_jobs(plan_of(**changes))]
    assert left == ["narrow"] + ["narrow/more"] * repeated
    (run,) = plan_of().runs
    assert read_evaluation(run.evaluations["more"]) == {"loss": 1.5}
