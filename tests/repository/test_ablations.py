"""The sweeps of configs/ablations."""

import pathlib
import re

import pytest

from albert_tf.config import SweepConfig, flags, flatten
from albert_tf.sweep import make_runs

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
    5: {"sentence_objective", "input_file", "eval_input_file"},
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


def runs_of(name):
    return make_runs(
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
def test_the_command_of_a_sweep_makes_runs(name):
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
    runs = make_runs(config)
    assert len({run.variant for run in runs}) > 1
    assert all(run.config.data.input_file for run in runs)
    # A variant may start from the weights of an earlier one.
    directories = [f"{config.output_dir}/runs/{run.name}" for run in runs]
    for number, run in enumerate(runs):
        start = run.config.initialization.init_checkpoint
        assert not start or start in directories[:number]


@pytest.mark.parametrize("name", TABLES)
def test_variants_differ_only_in_what_the_table_compares(name):
    """All other settings are equal in all runs of the sweep."""
    number = int(re.match(r"table(\d+)", name)[1])
    configs = [settings_of(run) for run in runs_of(name)]
    changed = {
        key
        for key in configs[0]
        if len({str(config[key]) for config in configs}) > 1
    } - {"seed"}
    assert changed and changed <= CHANGED[number]
