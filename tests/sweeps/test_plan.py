import json
import pathlib

import pytest

from albert_tf.errors import UserError
from albert_tf.sweeps import plan as plans
from albert_tf.sweeps.directory import claim_directory
from albert_tf.sweeps.records import check_records
from albert_tf.training.pretraining import metric_names
from tests.helpers import tiny_run


def test_flags_of_a_variant_override_those_of_all_runs(base, tmp_path):
    narrow, long = plans.make_plan(base()).runs
    assert narrow.config.model.embedding_size == 2
    assert narrow.config.training.num_train_steps == 50
    assert long.config.model.embedding_size == 4
    assert long.config.training.num_train_steps == 70
    assert narrow.config.data.input_file == (
        f"{tmp_path}/records/train/*.tfrecord",
    )
    assert narrow.run_dir("sweep/") == "sweep/runs/narrow"


def test_all_variants_of_a_seed_come_before_the_next_seed(base):
    runs = plans.make_plan(base(seeds=("7", "3"))).runs
    assert [(run.name, run.config.training.seed) for run in runs] == [
        ("narrow-seed7", 7),
        ("long-seed7", 7),
        ("narrow-seed3", 3),
        ("long-seed3", 3),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": ()}, "--variant is required"),
        (
            {"variant": ("a: --no_such_flag=1",)},
            "a: Unknown .* .no_such",
        ),
        ({"variant": ("a: --seed=x",)}, "variant a: .*seed"),
        ({"variant": ("a: --beta_2=2",)}, "variant a: beta_2 must be below 1"),
        ({"variant": ("a: --model=width=3",)}, "variant a: .*width"),
        ({"variant": ("a: word",)}, "variant a: .*Received: word"),
        ({"variant": ("a --beta_2=0.9",)}, "NAME: FLAGS"),
        ({"variant": ("a/b: --beta_2=0.9",)}, "NAME: FLAGS"),
        ({"variant": ("a: 'b",)}, "No closing quotation"),
        ({"variant": ("a:", "a: --beta_2=0.9")}, "each name once"),
        ({"variant": ("a:", "b:")}, "equal settings in a and b"),
        ({"variant": ("a: --output_dir=x",)}, "a must not set --output_dir"),
        ({"variant": ("a: --mode=eval",)}, "a must not set --mode"),
        (
            {"variant": ("a: --seed=4",), "seeds": ("1",)},
            "a must not set --seed",
        ),
        (
            {"variant": ("a: --seed 4",), "seeds": ("1",)},
            "a must not set --seed: .*Received: --seed 4.*leave out --seeds",
        ),
        ({"base_flagfile": "none.flags"}, "none.flags"),
        ({"records_dir": ""}, "--records_dir is required.*base_flags"),
        ({"seeds": ("1", "01")}, "seeds must be different"),
        ({"seeds": ("one",)}, "seeds must be different whole numbers"),
        ({"metrics": ("mlm",)}, "metrics must be .*Received: mlm"),
        ({"metrics": ("nsp/loss",)}, "metrics must be .*Received: nsp/loss"),
        ({"compare": ("narrow:wide",)}, "compare must be pairs"),
        ({"compare": ("long:long",)}, "compare must be pairs"),
        ({"paper": ("wide: loss=1",)}, "paper must be .*narrow, long"),
        ({"paper": ("long: loss",)}, "with numbers"),
        (
            {"evaluation": ("e: --eval_sentence_objective=none",)},
            "evaluation e of variant narrow",
        ),
        (
            {"evaluation": ("e: --output_dir=x",)},
            "evaluation e of variant narrow must not set --output_dir",
        ),
        ({"evaluation": ("e: --dry_run",)}, "e of .* must not set --dry_run"),
        ({"evaluation": ("e: --mode=train",)}, "e of .* must not set --mode"),
    ],
)
def test_mistakes_are_found_before_a_run_starts(base, changes, message):
    with pytest.raises(UserError, match=message):
        plans.make_plan(base(**changes))


def test_a_flag_file_of_a_variant_cannot_set_the_seed(base, tmp_path):
    """With --seeds, that of all runs may: --seeds overrides it."""
    flag_file = tmp_path / "seed.flags"
    flag_file.write_text("--seed=4\n")
    flag = f"--flagfile={flag_file}"
    config = base()
    every = base(base_flags=(*config.base_flags, flag), seeds=("1",))
    assert plans.make_plan(every).runs[0].config.training.seed == 1
    with pytest.raises(UserError, match="variant a must not set --seed"):
        plans.make_plan(base(variant=(f"a: {flag}",), seeds=("1",)))


def test_an_evaluation_has_flags_and_metrics_of_its_own(base):
    plan = plans.make_plan(
        base(
            evaluation=(
                "nsp: --eval_sentence_objective=nsp "
                "--eval_input_file={records_dir}/nsp/*.tfrecord",
            ),
            metrics=("nsp/sentence_order_accuracy", "training_seconds"),
        )
    )
    (flags,) = plan.evaluations.values()
    assert flags[0] == "--eval_sentence_objective=nsp"
    assert "{" not in flags[1]
    assert set(plans.EVALUATION_METRICS) == set(metric_names("sop"))


def test_published_values_are_read_by_variant(base):
    plan = plans.make_plan(base(paper=("long: loss=1.5 average=80.1",)))
    assert plan.paper == {"long": {"loss": 1.5, "average": 80.1}}


def test_wrong_records_are_refused_before_the_first_run(base, tiny_records):
    with pytest.raises(UserError, match=r"records/train/\*.tfrecord"):
        check_records(plans.make_plan(base()))

    train, held_out = base().base_flags
    sizes = (
        f"--model=vocab_size={tiny_run.MODEL.vocab_size}",
        *(f"--{name}={value}" for name, value in tiny_run.LENGTHS.items()),
    )

    def check(*base_flags, **changes):
        settings = {"records_dir": str(tiny_records), "variant": ("a:",)}
        check_records(
            plans.make_plan(base(base_flags=base_flags, **(settings | changes)))
        )

    check(train, held_out, *sizes)
    with pytest.raises(
        UserError, match=r"run a must have training records.*--base_flags"
    ):
        check(held_out, *sizes)
    with pytest.raises(UserError, match="accuracy need held-out records"):
        check(train, *sizes)
    nowhere = "e: --eval_input_file=none.tfrecord"
    with pytest.raises(UserError, match=r"no file matches .*none.tfrecord"):
        check(train, held_out, *sizes, evaluation=(nowhere,))
    with pytest.raises(
        UserError, match=r"evaluation e of run a must have held-out records"
    ):
        check(train, *sizes, evaluation=("e:",), metrics=("e/loss",))
    with pytest.raises(UserError, match=r"run b: .*max_seq_length 32 and 30"):
        variants = ("a:", "b: --max_seq_length=30")
        check(train, held_out, *sizes, variant=variants)
    with pytest.raises(UserError, match=r"evaluation e of run a: .*objective"):
        evaluation = ("e: --eval_sentence_objective=nsp",)
        check(train, held_out, *sizes, evaluation=evaluation)
    with pytest.raises(UserError, match=r"by gradient_accumulation_steps"):
        check(train, held_out, *sizes, "--gradient_accumulation_steps=3")


def test_made_up_batches_need_no_training_records(base):
    """Held-out records must exist, as for other runs."""
    _, held_out = base().base_flags
    variants = "a: --synthetic_input", "b: --synthetic_input --beta_2=0.9"
    settings = {"variant": variants, "metrics": ("training_seconds",)}
    check_records(plans.make_plan(base(base_flags=(), **settings)))
    with pytest.raises(UserError, match=r"no file matches .*eval/\*.tfrecord"):
        check_records(plans.make_plan(base(base_flags=(held_out,), **settings)))


def test_a_directory_belongs_to_one_sweep(base):
    first = base()
    directory = first.output_dir
    claim_directory(directory, plans.make_plan(first))
    # The same sweep, then one with a further variant and batch size.
    claim_directory(directory, plans.make_plan(first))
    more = base(
        variant=(*first.variant, "wide: --model=embedding_size=5"),
        base_flags=(*first.base_flags, "--eval_batch_size=16"),
    )
    claim_directory(directory, plans.make_plan(more))

    changed = base(base_flags=(*first.base_flags, "--learning_rate=0.5"))
    with pytest.raises(
        UserError,
        match=r"learning_rate was .* is 0\.5.*rename the changed variants",
    ):
        claim_directory(directory, plans.make_plan(changed))
    wide, new = (f"{n}: --model=embedding_size=6" for n in ("wide", "wider"))
    with pytest.raises(UserError, match=r"run wide: model\.embedding_size"):
        changed = base(variant=(*first.variant, wide))
        claim_directory(directory, plans.make_plan(changed))
    renamed = base(variant=(*first.variant, new))
    claim_directory(directory, plans.make_plan(renamed))
    other = base(variant=("deep: --model=num_hidden_layers=3",))
    with pytest.raises(UserError, match="runs narrow; long; wide; wider"):
        claim_directory(directory, plans.make_plan(other))
    stored = json.loads((pathlib.Path(directory) / "sweep.json").read_text())
    assert set(stored) == {"narrow", "long", "wide", "wider"}


def test_a_setting_that_is_newer_than_the_sweep_had_its_default(base):
    config = base()
    claim_directory(config.output_dir, plans.make_plan(config))
    path = pathlib.Path(config.output_dir) / "sweep.json"
    stored = json.loads(path.read_text())
    for settings in stored.values():
        del settings["optimizer.num_decay_steps"]
    path.write_text(json.dumps(stored))
    changed = base(base_flags=(*config.base_flags, "--num_decay_steps=9"))
    with pytest.raises(UserError, match="num_decay_steps was 0 and is 9"):
        claim_directory(config.output_dir, plans.make_plan(changed))
    claim_directory(config.output_dir, plans.make_plan(config))


def test_a_directory_with_other_files_is_refused(base, tmp_path):
    config = base()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "notes.txt").touch()
    with pytest.raises(UserError, match=r"must be new .*notes.txt"):
        claim_directory(config.output_dir, plans.make_plan(config))


def test_runs_are_described_by_what_differs(base):
    assert plans.describe(plans.make_plan(base())) == [
        "narrow: embedding_size=2, num_warmup_steps=5, num_train_steps=50",
        "long: embedding_size=4, num_warmup_steps=7, num_train_steps=70",
    ]
