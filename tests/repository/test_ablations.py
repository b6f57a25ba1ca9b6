"""The sweeps of configs/ablations."""

import pathlib
import re

import pytest

from albert_tf.config import SweepConfig, flags, flatten
from albert_tf.sweeps.plan import make_plan

ROOT = pathlib.Path(__file__).parents[2]
ABLATIONS = sorted(path.stem for path in ROOT.glob("configs/ablations/*.flags"))
TABLES = [name for name in ABLATIONS if name.startswith("table")]

# Settings in which the variants of a table of the paper differ.
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
        "gradient_accumulation_steps",  # what fits into memory
    },
    3: {"embedding_size", "parameter_sharing"},
    4: {"embedding_size", "parameter_sharing"},
    5: {"sentence_objective", "input_file"},
    7: {"input_file"},
    8: {"dropout_schedule"},
    11: {"num_hidden_layers", "init_checkpoint"},
    12: {"hidden_size", "num_attention_heads", "intermediate_size"},
    13: {"num_hidden_layers"},
}


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    """Flag files name files from the root of the repository."""
    monkeypatch.chdir(ROOT)


def plan_of(name):
    return make_plan(
        flags.parse_line(
            SweepConfig,
            [f"--flagfile=configs/ablations/{name}.flags", "--records_dir=all"],
        )
    )


def settings_of(run):
    return {
        key.split(".")[-1]: value
        for key, value in flatten(run.config.to_dict()).items()
    }


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_command_of_a_sweep_makes_a_plan(name):
    """The opening comment has the command, with both directories."""
    text = (ROOT / "configs" / "ablations" / f"{name}.flags").read_text()
    opening = text[: re.search("^--", text, re.M).start()]
    command = re.search(r"albert_tf.sweep((?: .*\\\n#)*.*)", opening).group(1)
    assert f"--flagfile=configs/ablations/{name}.flags" in command
    arguments = re.findall(r"--\S+='[^']*'|--\S+", command)
    config = flags.parse_line(
        SweepConfig, [part.replace("'", "") for part in arguments]
    )
    config.require("output_dir", "records_dir")
    plan = make_plan(config)
    assert len(plan.variants) > 1
    assert all(run.config.data.input_file for run in plan.runs)


@pytest.mark.parametrize("name", TABLES)
def test_variants_differ_only_in_what_the_table_compares(name):
    """All other settings are equal in all runs of the sweep, except for runs
    that only supply the weights that others start from."""
    number = int(re.match(r"table(\d+)", name)[1])
    plan = plan_of(name)
    first = {run.starts_from.variant for run in plan.runs if run.starts_from}
    not_compared = first.difference(*plan.pairs)
    configs = [
        settings_of(run) for run in plan.runs if run.variant not in not_compared
    ]
    changed = {
        key
        for key in configs[0]
        if len({str(config[key]) for config in configs}) > 1
    }
    if not_compared:  # each seed has its own first runs
        changed.discard("init_checkpoint")
    assert changed - {"seed"} <= CHANGED[number]
    assert changed - {"seed"} and plan.pairs
