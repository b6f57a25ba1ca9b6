"""The sweeps of configs/ablations."""

import pathlib
import re

import pytest
from absl import flags as absl_flags

from albert_tf.config import SweepConfig, flags, flatten
from albert_tf.sweeps.plan import make_plan

ROOT = pathlib.Path(__file__).parents[2]
ABLATIONS = sorted(path.stem for path in ROOT.glob("configs/ablations/*.flags"))
TABLES = (2, 3, 4, 5, 7, 8, 11, 12, 13)

# Sweeps that repeat no table of the paper.
OTHERS = {
    "mini_learning",
    "mini_lengths",
    "mini_stages",
    "mini_vocabulary",
}

# Averages after fine-tuning, from the paper.
AVERAGES = {
    "table2": [82.3, 85.2, 80.1, 82.4, 85.5, 88.7],
    "table3": [81.3, 81.7, 81.8, 82.3, 79.0, 80.1, 79.6, 79.8],
    "table4": [79.8, 81.6, 79.5, 82.3, 80.1, 81.7, 80.2, 81.6],
    "table5": [79.0, 79.2, 80.1],
    "table7": [80.1, 80.8],
    "table8": [90.4, 90.7],
    "table11": [52.9, 71.2, 77.2, 81.5, 82.1, 81.8],
    "table12": [71.2, 74.6, 76.3, 74.0],
    "table13": [88.7, 88.7],
}

# Settings in which the variants of a table differ.
CHANGED = {
    2: {
        "embedding_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "parameter_sharing",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "dropout_schedule",
    },
    3: {"embedding_size", "parameter_sharing"},
    4: {"embedding_size", "parameter_sharing"},
    5: {"sentence_objective", "input_file"},
    7: {"input_file"},
    8: {"dropout_schedule"},
    11: {"num_hidden_layers"},
    12: {"hidden_size", "num_attention_heads", "intermediate_size"},
    13: {"num_hidden_layers"},
}


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    """Flag files name files from the root of the repository."""
    monkeypatch.chdir(ROOT)


def load(*arguments):
    values = absl_flags.FlagValues()
    flags.define(SweepConfig, values)
    values(["sweep", *arguments])
    return flags.parse(SweepConfig, values)


def plan_of(name):
    return make_plan(
        load(f"--flagfile=configs/ablations/{name}.flags", "--records_dir=all")
    )


def test_each_table_has_a_sweep_for_tpus_and_one_for_cpus():
    names = {f"table{n}{size}" for n in TABLES for size in ("", "_mini")}
    assert set(ABLATIONS) == names | OTHERS


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_command_of_a_sweep_makes_a_plan(name):
    """The opening comment has the command, with both directories."""
    text = (ROOT / "configs" / "ablations" / f"{name}.flags").read_text()
    opening = text[: re.search("^--", text, re.M).start()]
    assert "# Hardware: " in opening
    command = re.search(r"albert_tf.sweep((?: .*\\\n#)*.*)", opening).group(1)
    assert f"--flagfile=configs/ablations/{name}.flags" in command
    arguments = re.findall(r"--\S+='[^']*'|--\S+", command)
    config = load(*(part.replace("'", "") for part in arguments))
    config.require("output_dir", "records_dir")
    plan = make_plan(config)
    assert len(plan.variants) > 1
    assert all(run.config.data.input_file for run in plan.runs)


@pytest.mark.parametrize("name", AVERAGES)
def test_each_variant_has_the_average_of_the_paper(name):
    plan = plan_of(name)
    assert AVERAGES[name] == [
        plan.paper[variant]["downstream_average"] for variant in plan.variants
    ]


@pytest.mark.parametrize("name", [n for n in ABLATIONS if n not in OTHERS])
def test_variants_differ_only_in_what_the_table_compares(name):
    """All other settings are equal in all runs of the sweep."""
    number = int(re.match(r"table(\d+)", name)[1])
    changed = set()
    configs = [flatten(r.config.to_dict()) for r in plan_of(name).runs]
    for key in configs[0]:
        if len({str(config[key]) for config in configs}) > 1:
            changed.add(key.split(".")[-1])
    assert changed - {"seed"} <= CHANGED[number]
    assert changed - {"seed"}


def test_the_small_sweep_of_settings_compares_all_of_them_with_mini():
    """The table of README.md has the difference of each variant to mini."""
    plan = plan_of("mini_learning")
    others = set(plan.variants) - {"mini"}
    assert {first for first, second in plan.pairs if second == "mini"} == others


def test_a_variant_changes_the_optimizer_but_not_beta_2():
    """beta_2 0.999 costs AdamW a lot, so LAMB also runs with that of mini."""
    runs = plan_of("mini_learning").runs
    mini, lamb = (
        flatten(run.config.to_dict())
        for name in ("mini", "lamb_0.98")
        for run in runs
        if run.name == f"{name}-seed1"
    )
    assert {key: lamb[key] for key in mini if lamb[key] != mini[key]} == {
        "optimizer.optimizer": "lamb",
        "optimizer.learning_rate": 0.01,
    }


@pytest.mark.parametrize("name", [n for n in ABLATIONS if "mini" in n])
def test_sweeps_for_cpus_are_small_and_have_two_seeds(name):
    runs = plan_of(name).runs
    assert {run.seed for run in runs} == {1, 2}
    for run in runs:
        data, training = run.config.data, run.config.training
        tokens = data.global_batch_size * data.max_seq_length
        assert tokens * training.num_train_steps <= 2**21


def test_published_sweeps_have_the_batch_and_steps_of_the_paper():
    for number in TABLES:
        for run in plan_of(f"table{number}").runs:
            steps = 1_500_000 if number == 8 else 125_000
            assert run.config.training.num_train_steps == steps
            assert run.config.data.global_batch_size == 4096
            assert run.config.optimizer.learning_rate == 0.00176
