import json
import pathlib
import re

import pytest

from albert_tf.config import (
    FinetuningConfig,
    ModelConfig,
    PretrainingConfig,
    flags,
)
from albert_tf.finetuning.tasks import TASKS
from tpu import topologies
from tpu.compile_check import CompileCheckConfig
from tpu.compile_recipes import RECIPES as COMPILED

ROOT = pathlib.Path(__file__).parents[2]
MODELS = ROOT / "configs" / "models"
RECIPES = sorted(path.stem for path in ROOT.glob("configs/pretrain/*.flags"))
HARDWARE = sorted(path.stem for path in ROOT.glob("configs/hardware/*.flags"))

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


def parse(*arguments, config_class=PretrainingConfig):
    return flags.parse_line(config_class, arguments)


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


NAMED = re.compile("(bert_)?(base|large|xlarge|xxlarge)_(v[12]_)?(.*)")
STEPS = {"125k": 125_000, "3m": 3_000_000, "10m": 10_000_000}


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


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_recipes_compose_with_packing_and_hardware(packing, hardware):
    """A batch is 4,096 examples, rounded up to rows of all micro-batches."""
    recipe = "--flagfile=configs/pretrain/base_v1_125k.flags"
    flags = [f"--flagfile=configs/hardware/{hardware}.flags"]
    if packing == "best_fit":
        flags.insert(0, "--flagfile=configs/pretrain/include/packed.flags")
    if (packing, hardware) == ("best_fit", "v6e_8"):
        flags.append("--gradient_accumulation_steps=64")
    config = parse(recipe, *flags, config_class=CompileCheckConfig)
    alone, data = parse(recipe), config.run.data
    assert config.run.model == alone.model
    assert config.run.optimizer == alone.optimizer
    assert config.run.training == alone.training
    assert data.packing == packing
    assert config.run == parse(recipe, *flags)  # ignores slice and compiler
    where = topologies.parse(config.accelerator_type)
    multiple = where.num_cores * data.gradient_accumulation_steps
    assert data.global_batch_size % multiple == 0
    if packing == "best_fit":
        rows = data.global_batch_size
        assert rows * EXAMPLES_PER_ROW >= 4096
        # Fewer rows would not fill the micro-batches of a v5e:16x16.
        assert (rows - 512) * EXAMPLES_PER_ROW < 4096


def test_each_recipe_of_albert_is_compiled_alone_and_packed():
    of_albert = {
        r for r in RECIPES if re.fullmatch("(x*large|base)_v.*[0-9]+[km]", r)
    }
    assert of_albert | {f"{r}_packed" for r in of_albert} <= set(COMPILED)


def test_dropout_removal_follows_section_4_9():
    config = load("xxlarge_dropout_removal")
    assert config.model.hidden_size == 4096
    assert config.training.num_train_steps == 1_500_000
    assert config.training.dropout_phases() == ((0, 0.1), (1_000_000, 0.0))
    assert paper_setting(config) == PAPER_SETTING


FINETUNING = sorted(p.stem for p in ROOT.glob("configs/finetune/*.flags"))

# Table 14 of the paper: learning rate, batch size, dropout of ALBERT and of
# the classifier, steps, warm-up steps, length.
TABLE_14 = {
    "cola": (1e-5, 16, 0, 0.1, 5336, 320, 512),
    "stsb": (2e-5, 16, 0, 0.1, 3598, 214, 512),
    "sst2": (1e-5, 32, 0, 0.1, 20935, 1256, 512),
    "mnli": (3e-5, 128, 0, 0.1, 10000, 1000, 512),
    "qnli": (1e-5, 32, 0, 0.1, 33112, 1986, 512),
    "qqp": (5e-5, 128, 0.1, 0.1, 14000, 1000, 512),
    "rte": (3e-5, 32, 0.1, 0.1, 800, 200, 512),
    "mrpc": (2e-5, 32, 0, 0.1, 800, 200, 512),
    "wnli": (2e-5, 16, 0.1, 0.1, 2000, 250, 512),
    "squad_v1": (5e-5, 48, 0, 0.1, 3649, 365, 384),
    "squad_v2": (3e-5, 48, 0, 0.1, 8144, 814, 512),
    "race": (2e-5, 32, 0.1, 0.1, 12000, 1000, 512),
    # The README of google-research/albert, for models of version 2.
    "race_v2_models": (1e-5, 32, 0, 0.1, 12000, 1000, 512),
}


def load_finetuning(recipe):
    file = f"--flagfile=configs/finetune/{recipe}.flags"
    arguments = [file, "--init_checkpoint=runs/mnli"]
    return parse(*arguments, config_class=FinetuningConfig)


def test_the_recipes_are_those_of_the_paper():
    assert set(FINETUNING) == TABLE_14.keys()


@pytest.mark.parametrize("recipe", FINETUNING)
def test_a_recipe_has_the_numbers_of_table_14(recipe):
    config = load_finetuning(recipe)
    training, data = config.training, config.data
    assert TABLE_14[recipe] == (
        config.optimizer.learning_rate,
        data.global_batch_size,
        training.dropout,
        training.classifier_dropout,
        training.num_train_steps,
        config.optimizer.num_warmup_steps,
        data.max_seq_length,
    )
    assert config.optimizer.optimizer == "adamw"
    assert config.task.task == recipe.removesuffix("_v2_models")
    assert config.head.squad_head == (
        "beam" if recipe == "squad_v2" else "plain"
    )


@pytest.mark.parametrize("recipe", FINETUNING)
def test_a_recipe_says_whether_the_paper_starts_from_a_model_of_mnli(recipe):
    text = (ROOT / "configs" / "finetune" / f"{recipe}.flags").read_text()
    after = TASKS[load_finetuning(recipe).task.task].starts_from
    assert bool(after) == ("--init_checkpoint=runs/mnli" in text)
