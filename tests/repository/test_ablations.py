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
    # BERT-large, ALBERT-large, ALBERT-xlarge.
    "table2_mini": [85.2, 82.4, 85.5],
    "table3_mini": [81.3, 81.7, 81.8, 82.3, 79.0, 80.1, 79.6, 79.8],
    "table4_mini": [80.1, 81.7, 80.2, 81.6],
    "table7_mini": [80.1, 80.8],
    # With dropout, removed halfway, never any.
    "table8_mini": [90.4, 90.7, None],
    # 1, 3 and 6 layers; the paper has no network of 2 layers.
    "table11_mini": [52.9, None, 71.2, 77.2],
    # Widths of 1,024, 2,048 and 4,096.
    "table12_mini": [71.2, 74.6, 76.3],
    "table13_mini": [88.7, 88.7],
}

# Table 5: accuracies of masked LM, next sentences and sentence order, percent.
INTRINSIC = {
    "none": (54.9, 52.4, 53.3),
    "nsp": (54.5, 90.5, 52.0),
    "sop": (54.0, 78.9, 86.5),
}

# Differences that the paper's text on Table 4 gives: sharing all parameters, or
# those of attention, against sharing none.
DIFFERENCES = {
    ("all_768", "none_768"): -2.5,
    ("attention_768", "none_768"): -0.7,
    ("all_128", "none_128"): -1.5,
    ("attention_128", "none_128"): 0.1,
}


def albert(layers, width, **changes):
    """ALBERT with E=128, sharing all parameters."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "embedding_size": 128,
        "parameter_sharing": "all",
        **changes,
    }


def bert(layers, width, **changes):
    """BERT: embeddings as wide as the layers, which share nothing."""
    changes = {"embedding_size": width, **changes}
    return albert(layers, width, parameter_sharing="none", **changes)


def heads(number):
    return {"num_attention_heads": number}


def starts(name):
    return {"init_checkpoint": f"{{run:{name}}}" if name else ""}


def records(*names):
    return {"input_file": [f"all/{name}/train/*.tfrecord" for name in names]}


# Settings of each variant. Those of the full size are from the paper: Table 1
# and section 3.1 for the sizes of the models, then the table itself.
SETTINGS = {
    "table2": {
        "bert_base": bert(12, 768),
        "bert_large": bert(24, 1024),
        "albert_base": albert(12, 768),
        "albert_large": albert(24, 1024),
        "albert_xlarge": albert(24, 2048),
        "albert_xxlarge": albert(12, 4096),
    },
    "table2_mini": {
        "bert": bert(2, 256),
        "albert": albert(2, 256),
        "albert_wide": albert(2, 512),
    },
    "table3": {
        "not_shared_64": bert(12, 768, embedding_size=64),
        "not_shared_128": bert(12, 768, embedding_size=128),
        "not_shared_256": bert(12, 768, embedding_size=256),
        "not_shared_768": bert(12, 768),
        "shared_64": albert(12, 768, embedding_size=64),
        "shared_128": albert(12, 768),
        "shared_256": albert(12, 768, embedding_size=256),
        "shared_768": albert(12, 768, embedding_size=768),
    },
    "table3_mini": {
        "not_shared_32": bert(2, 256, embedding_size=32),
        "not_shared_64": bert(2, 256, embedding_size=64),
        "not_shared_128": bert(2, 256, embedding_size=128),
        "not_shared_256": bert(2, 256),
        "shared_32": albert(2, 256, embedding_size=32),
        "shared_64": albert(2, 256, embedding_size=64),
        "shared_128": albert(2, 256),
        "shared_256": albert(2, 256, embedding_size=256),
    },
    "table4": {
        "all_768": albert(12, 768, embedding_size=768),
        "attention_768": albert(
            12, 768, embedding_size=768, parameter_sharing="attention"
        ),
        "ffn_768": albert(12, 768, embedding_size=768, parameter_sharing="ffn"),
        "none_768": bert(12, 768),
        "all_128": albert(12, 768),
        "attention_128": albert(12, 768, parameter_sharing="attention"),
        "ffn_128": albert(12, 768, parameter_sharing="ffn"),
        "none_128": albert(12, 768, parameter_sharing="none"),
    },
    "table4_mini": {
        sharing: albert(2, 256, parameter_sharing=sharing)
        for sharing in ("all", "attention", "ffn", "none")
    },
    "table5": {
        "none": albert(12, 768)
        | {"sentence_objective": "none"}
        | records("sop"),
        "nsp": albert(12, 768) | {"sentence_objective": "nsp"} | records("nsp"),
        "sop": albert(12, 768) | {"sentence_objective": "sop"} | records("sop"),
    },
    "table5_mini": {
        "first_1_layer": albert(1, 256)
        | {"sentence_objective": "none", "max_seq_length": 16}
        | records("16/*")
        | starts(""),
        "start": albert(2, 256)
        | {"sentence_objective": "none", "max_seq_length": 16}
        | records("16/*")
        | starts("first_1_layer"),
        **{
            objective: albert(2, 256)
            | {"sentence_objective": objective, "max_seq_length": 64}
            | records(directory)
            | starts("start")
            for objective, directory in (
                ("none", "64/*"),
                ("nsp", "64_nsp/*"),
                ("sop", "64/*"),
            )
        },
    },
    "table7": {
        "without": albert(12, 768) | records("sop"),
        "with": albert(12, 768) | records("sop", "more"),
    },
    "table7_mini": {
        "without": albert(2, 256) | records("16/books"),
        "with": albert(2, 256) | records("16/books", "16/wiki"),
    },
    "table8": {
        "with_dropout": albert(12, 4096, dropout_schedule="0:0.1"),
        "without_dropout": albert(
            12, 4096, dropout_schedule="0:0.1,1000000:0.0"
        ),
    },
    "table8_mini": {
        "with_dropout": albert(2, 256, dropout_schedule="0:0.1"),
        "removed_halfway": albert(2, 256, dropout_schedule="0:0.1,600:0"),
        "without_dropout": albert(2, 256, dropout_schedule="0:0.0"),
    },
    # Networks of 3 or more layers start from the next smaller one.
    "table11": {
        "layers_1": albert(1, 1024) | starts(""),
        "layers_3": albert(3, 1024) | starts("layers_1"),
        "layers_6": albert(6, 1024) | starts("layers_3"),
        "layers_12": albert(12, 1024) | starts("layers_6"),
        "layers_24": albert(24, 1024) | starts("layers_12"),
        "layers_48": albert(48, 1024) | starts("layers_24"),
    },
    "table11_mini": {
        "layers_1": albert(1, 256) | starts(""),
        "layers_2": albert(2, 256) | starts("layers_1"),
        "layers_3": albert(3, 256) | starts("layers_2"),
        "layers_6": albert(6, 256) | starts("layers_3"),
    },
    "table12": {
        "width_1024": albert(3, 1024) | heads(16),
        "width_2048": albert(3, 2048) | heads(32),
        "width_4096": albert(3, 4096) | heads(64),
        "width_6144": albert(3, 6144) | heads(96),
    },
    "table12_mini": {
        "width_128": albert(2, 128) | heads(2),
        "width_256": albert(2, 256) | heads(4),
        "width_512": albert(2, 512) | heads(8),
    },
    "table13": {
        "layers_12": albert(12, 4096) | heads(64),
        "layers_24": albert(24, 4096) | heads(64),
    },
    "table13_mini": {
        "layers_2": albert(2, 512) | heads(8),
        "layers_4": albert(4, 512) | heads(8),
    },
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
        plan.paper.get(variant, {}).get("downstream_average")
        for variant in plan.variants
    ]


@pytest.mark.parametrize("name", ["table5", "table5_mini"])
def test_table_5_has_the_accuracies_of_the_paper(name):
    assert {
        variant: pytest.approx(
            [
                100 * values[metric]
                for metric in (
                    "sop/masked_lm_accuracy",
                    "nsp/sentence_order_accuracy",
                    "sop/sentence_order_accuracy",
                )
            ]
        )
        for variant, values in plan_of(name).paper.items()
    } == {variant: list(values) for variant, values in INTRINSIC.items()}


@pytest.mark.parametrize(
    ("name", "sop", "nsp"),
    [("table5", "sop", "nsp"), ("table5_mini", "64/*", "64_nsp/*")],
)
def test_table_5_is_evaluated_on_both_tasks(name, sop, nsp):
    for run in plan_of(name).runs:
        for task, directory in (("sop", sop), ("nsp", nsp)):
            config = run.evaluations[task]
            files = f"all/{directory}/eval/*.tfrecord"
            assert config.data.eval_input_file == (files,)
            assert config.training.eval_sentence_objective == task


def test_table_4_has_the_differences_that_the_paper_gives():
    plan = plan_of("table4")
    for pair, expected in DIFFERENCES.items():
        assert pair in plan.pairs
        first, second = (plan.paper[v]["downstream_average"] for v in pair)
        assert first - second == pytest.approx(expected)


@pytest.mark.parametrize("name", SETTINGS)
def test_each_variant_has_the_settings_that_it_is_named_after(name):
    found, expected = {}, SETTINGS[name]
    for run in plan_of(name).runs:
        settings = {
            key.split(".")[-1]: value
            for key, value in flatten(run.config.to_dict()).items()
        }
        found.setdefault(run.variant, []).append(
            {key: settings[key] for key in expected.get(run.variant, {})}
        )
    assert list(found) == list(expected)
    for variant, runs in found.items():
        for settings in runs:
            assert settings == expected[variant], variant


@pytest.mark.parametrize("name", SETTINGS)
def test_each_sweep_of_a_table_compares_variants(name):
    assert plan_of(name).pairs


@pytest.mark.parametrize("name", [n for n in ABLATIONS if n not in OTHERS])
def test_variants_differ_only_in_what_the_table_compares(name):
    """All other settings are equal in all runs of the sweep, except for runs
    that only supply the weights that others start from."""
    number = int(re.match(r"table(\d+)", name)[1])
    changed = set()
    plan = plan_of(name)
    first = {run.starts_from.variant for run in plan.runs if run.starts_from}
    not_compared = first.difference(*plan.pairs)
    configs = [
        flatten(run.config.to_dict())
        for run in plan.runs
        if run.variant not in not_compared
    ]
    for key in configs[0]:
        if len({str(config[key]) for config in configs}) > 1:
            changed.add(key.split(".")[-1])
    assert changed - {"seed"} <= CHANGED[number]
    assert changed - {"seed"}


def test_the_small_sweep_of_settings_compares_all_of_them_with_mini():
    """docs/log.md has the difference of each variant to mini."""
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
        # Sentence objectives need more steps.
        most = 2**22 if name == "table5_mini" else 2**21
        assert tokens * training.num_train_steps <= most


def test_published_sweeps_have_the_batch_and_steps_of_the_paper():
    for number in TABLES:
        for run in plan_of(f"table{number}").runs:
            assert run.seed is None  # one run of each variant
            steps = 1_500_000 if number == 8 else 125_000
            assert run.config.training.num_train_steps == steps
            assert run.config.data.global_batch_size == 4096
            assert run.config.optimizer.learning_rate == 0.00176
