import pytest

from albert_tf.errors import UserError
from albert_tf.sweeps import plan as plans
from albert_tf.sweeps.results import make_jobs

STAGES = (
    "first:",
    "second: --init_checkpoint={run:first} --ngram=2",
    "third: --init_checkpoint={run:second} --ngram=3",
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": ()}, "--variant is required"),
        ({"variant": ("a: --no_such_flag=1",)}, "a: Unknown .* .no_such"),
        ({"variant": ("a: --beta_2=2",)}, "variant a: beta_2 must be below 1"),
        ({"variant": ("a: --model=width=3",)}, "variant a: .*width"),
        ({"variant": ("a: word",)}, "variant a: .*Received: word"),
        ({"variant": ("a/b: --beta_2=0.9",)}, "NAME: FLAGS"),
        ({"base_flags": ("--flagfile=none.flags",)}, "none.flags"),
        ({"seeds": ("1", "one")}, "seeds must be whole .* Received: 1,one"),
        ({"evaluation": ("e: --beta_2=2",)}, "evaluation e of variant narrow"),
        *(
            (
                {"variant": (f"first: --init_checkpoint={{run:{name}}}", "b:")},
                "init_checkpoint of variant first must be a path or",
            )
            for name in ("b", "first", "x}/{run:y")
        ),
    ],
)
def test_mistakes_are_found_before_a_run_starts(base, changes, message):
    with pytest.raises(UserError, match=message):
        plans.make_plan(base(**changes))


def test_a_variant_starts_from_the_run_of_an_earlier_one(base, tmp_path):
    """Of the same seed, also if a flag file says so; each has other batches."""
    flag_file = tmp_path / "second.flags"
    flag_file.write_text("--init_checkpoint={run:first}\n--ngram=2")
    variants = STAGES[0], f"second: --flagfile={flag_file}", STAGES[2]
    plan = plans.make_plan(
        base(
            variant=variants,
            seeds=("7", "3"),
            evaluation=("more: --max_eval_steps=2",),
        )
    )
    third = plan.runs[2]
    assert [run.name for run in third.stages] == [
        "third-seed7",
        "second-seed7",
        "first-seed7",
    ]
    seeds = [run.config.training.seed for run in plan.runs]
    assert seeds == [7, 1007, 2007, 3, 1003, 2003]
    directory = f"{tmp_path}/sweep/runs"
    todo = {job.name: job for job in make_jobs(plan)}
    assert todo["third-seed7"].needs is todo["second-seed7"]
    for name in "third-seed7", "third-seed7/more":
        command = todo[name].command
        starts = [f for f in command if f.startswith("--init_checkpoint")]
        assert starts[-1] == f"--init_checkpoint={directory}/second-seed7"
        assert f"--output_dir={directory}/third-seed7" in command
    _, second, _ = plans.make_plan(base(variant=STAGES)).runs
    assert second.config.training.seed == 12345


def test_flags_of_a_variant_override_those_of_all_runs(base, tmp_path):
    """The runs are described by what differs."""
    plan = plans.make_plan(base())
    assert plans.describe(plan) == [
        "narrow: embedding_size=2, num_warmup_steps=5, num_train_steps=50",
        "long: embedding_size=4, num_warmup_steps=7, num_train_steps=70",
    ]
    narrow = plan.runs[0]
    records = f"{tmp_path}/records/train/*.tfrecord"
    assert narrow.config.data.input_file == (records,)
    assert narrow.run_dir == f"{tmp_path}/sweep/runs/narrow"
