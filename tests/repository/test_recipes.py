import dataclasses
import json
import pathlib
import re
import shlex
import subprocess

import pytest
from absl import flags as absl_flags

from albert_tf.config import ModelConfig, PretrainingConfig, flags
from albert_tf.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
MODELS = ROOT / "configs" / "models"
RECIPES = sorted(path.stem for path in ROOT.glob("configs/pretrain/*.flags"))

# Published: layers, H, heads, intermediate size, dropout.
PUBLISHED = {
    "albert_base_v1": (12, 768, 12, 3072, 0.1),
    "albert_base_v2": (12, 768, 12, 3072, 0.0),
    "albert_large_v1": (24, 1024, 16, 4096, 0.1),
    "albert_large_v2": (24, 1024, 16, 4096, 0.0),
    "albert_xlarge_v1": (24, 2048, 16, 8192, 0.1),
    "albert_xlarge_v2": (24, 2048, 16, 8192, 0.0),
    "albert_xxlarge_v1": (12, 4096, 64, 16384, 0.0),
    "albert_xxlarge_v2": (12, 4096, 64, 16384, 0.0),
}


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    """Recipes name files from the root of the repository."""
    monkeypatch.chdir(ROOT)


def parse(*arguments):
    flag_values = absl_flags.FlagValues()
    flags.define(PretrainingConfig, flag_values)
    flag_values(["run_pretraining", *arguments])
    return flags.parse(PretrainingConfig, flag_values)


def load(recipe):
    return parse(f"--flagfile=configs/pretrain/{recipe}.flags")


def dropout(model):
    return {model.hidden_dropout_prob, model.attention_probs_dropout_prob}


def paper_setting(config):
    return (
        config.optimizer.optimizer,
        config.optimizer.learning_rate,
        config.optimizer.num_warmup_steps,
        config.data.global_batch_size,
        config.data.max_seq_length,
        config.training.sentence_objective,
    )


PAPER_SETTING = ("lamb", 0.00176, 3125, 4096, 512, "sop")


@pytest.mark.parametrize("name", sorted(p.stem for p in MODELS.glob("*.json")))
def test_every_architecture_loads(name):
    model = ModelConfig.from_json_file(str(MODELS / f"{name}.json"))
    small = name in ("albert_demo", "albert_mini")
    assert model.vocab_size == (8000 if small else 30000)
    assert model.intermediate_size == 4 * model.hidden_size
    if name.startswith("bert_"):
        assert model.parameter_sharing == "none"
        assert model.embedding_size == model.hidden_size
    else:
        assert model.parameter_sharing == "all"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_architectures_are_unchanged(name):
    model = ModelConfig.from_json_file(str(MODELS / f"{name}.json"))
    layers, width, heads, intermediate, rate = PUBLISHED[name]
    assert (model.num_hidden_layers, model.hidden_size) == (layers, width)
    assert model.num_attention_heads == heads
    assert model.intermediate_size == intermediate
    assert dropout(model) == {rate}
    assert (model.embedding_size, model.hidden_act) == (128, "gelu")
    # A setting of this project alone, which published files lack.
    stored = json.loads((MODELS / f"{name}.json").read_text())
    assert "parameter_sharing" not in stored


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_opens_with_its_own_command(recipe):
    text = (ROOT / "configs" / "pretrain" / f"{recipe}.flags").read_text()
    opening = text[: re.search("^--", text, re.M).start()]
    assert f"--flagfile=configs/pretrain/{recipe}.flags" in command_of(text)
    assert "# Hardware: " in opening
    assert "# Expected" in opening and "TODO" not in opening
    assert load(recipe).training.num_train_steps > 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_command_of_a_recipe_parses(recipe):
    text = (ROOT / "configs" / "pretrain" / f"{recipe}.flags").read_text()
    command = command_of(text)
    if command[:3] == ["python", "-m", "albert_tf.run_pretraining"]:
        arguments = command[3:]
    else:
        end = command.index("--")
        launch = [*command[:end], "--project=p", "--zone=z", "--dry_run"]
        printed = subprocess.run(
            [*launch, *command[end:]],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert printed.returncode == 0, printed.stderr
        arguments = command[end + 1 :]
    config = parse(*arguments)
    config.require("input_file", "output_dir")


def command_of(text):
    """The words of the command in a recipe's comment that starts training."""
    found = re.search(
        r"^# +((?:python -m albert_tf.run_pretraining|tpu/launch.sh run)"
        r"(?: .*\\\n#)*.*)",
        text,
        re.M,
    )
    return shlex.split(found[1].replace("\\\n#", ""))


NAMED = re.compile("(bert_)?(base|large|xlarge|xxlarge)_(v[12]_)?(.*)")
STEPS = {"125k": 125_000, "3m": 3_000_000, "10m": 10_000_000}


PACKED = [r for r in RECIPES if r.endswith("_packed")]


@pytest.mark.parametrize(
    "recipe", [r for r in RECIPES if r.rsplit("_")[-1] in STEPS]
)
def test_a_recipe_matches_its_name(recipe):
    bert, size, version, steps = NAMED.fullmatch(recipe).groups()
    config = load(recipe)
    name = f"bert_{size}" if bert else f"albert_{size}_{version[:2]}"
    assert config.model == ModelConfig.from_json_file(
        str(MODELS / f"{name}.json")
    )
    assert config.training.num_train_steps == STEPS[steps]
    assert paper_setting(config) == PAPER_SETTING
    phases = config.training.dropout_phases()
    rates = {rate for _, rate in phases} or dropout(config.model)
    assert rates == ({0.0} if version == "v2_" else {0.1})


# Rows of Wikipedia and books hold 1.92 and 1.23 examples; BERT's Wikipedia has
# 2,500 million words, and its books have 800 million.
EXAMPLES_PER_ROW = (2500 * 1.92 + 800 * 1.23) / (2500 + 800)


@pytest.mark.parametrize("recipe", PACKED)
def test_a_packed_recipe_differs_only_in_packing_and_batch_size(
    recipe,
):
    text = (ROOT / "configs" / "pretrain" / f"{recipe}.flags").read_text()
    packed, unpacked = load(recipe), load(recipe.removesuffix("_packed"))
    assert unpacked.data.packing == "none"
    changed = {
        "packing": "best_fit",
        "max_examples_per_row": 8,
        "global_batch_size": packed.data.global_batch_size,
    }
    assert packed == dataclasses.replace(
        unpacked, data=dataclasses.replace(unpacked.data, **changed)
    )
    # 4,096 examples, rounded up to rows of all replicas and micro-batches.
    micro_batches = re.search(r"gradient_accumulation_steps=(\d+)", text)
    num_chips = re.search(r"accelerator_type=v5litepod-(\d+)", text)
    multiple = int(num_chips[1]) * int(micro_batches[1])
    rows = packed.data.global_batch_size
    assert rows % multiple == 0
    assert (rows - multiple) * EXAMPLES_PER_ROW < 4096
    assert rows * EXAMPLES_PER_ROW >= 4096


def test_the_recipes_of_the_paper_exist():
    sizes = ("base", "large", "xlarge", "xxlarge")
    assert {f"{size}_v1_125k" for size in sizes} <= set(RECIPES)
    assert {f"{size}_v2_3m" for size in sizes[1:]} <= set(RECIPES)
    assert {"base_v2_125k", "base_v2_10m", "tiny_cpu"} <= set(RECIPES)
    unpacked = {recipe.removesuffix("_packed") for recipe in PACKED}
    of_albert = {r for r in RECIPES if re.match("(x*large|base)_v", r)}
    assert unpacked == of_albert - set(PACKED) - OF_OTHER_CHIPS


OF_OTHER_CHIPS = {f"base_v2_125k_{chip}" for chip in ("v4", "v5p", "v6e")}


@pytest.mark.parametrize("recipe", sorted(OF_OTHER_CHIPS))
def test_recipes_of_other_chips_train_the_same_model(recipe):
    assert load(recipe) == load("base_v2_125k")
    text = (ROOT / "configs" / "pretrain" / f"{recipe}.flags").read_text()
    assert f"--accelerator_type={recipe.rsplit('_')[-1]}-" in text


def test_dropout_removal_follows_section_4_9():
    config = load("xxlarge_dropout_removal")
    assert config.model.hidden_size == 4096
    assert config.training.num_train_steps == 1_500_000
    assert config.training.dropout_phases() == ((0, 0.1), (1_000_000, 0.0))
    assert paper_setting(config) == PAPER_SETTING


def test_tiny_cpu_is_small():
    config = load("tiny_cpu")
    assert config.training.num_train_steps <= 500
    assert config.data.global_batch_size * config.data.max_seq_length <= 2**13
    assert config.model.num_hidden_layers * config.model.hidden_size < 2000


def test_flags_after_a_recipe_override_it():
    config = parse(
        "--flagfile=configs/pretrain/base_v2_125k.flags",
        "--num_train_steps=5000",
    )
    assert config.training.num_train_steps == 5000


def test_a_run_without_an_architecture_is_refused():
    with pytest.raises(UserError, match="albert_config_file"):
        parse("--num_train_steps=4000")
