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

ROOT = pathlib.Path(__file__).parents[2]
MODELS = ROOT / "configs" / "models"
RECIPES = sorted(path.stem for path in ROOT.glob("configs/pretrain/*.flags"))
HARDWARE = sorted(path.stem for path in ROOT.glob("configs/hardware/*.flags"))


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
    multiple = where.num_devices * data.gradient_accumulation_steps
    assert data.global_batch_size % multiple == 0
    if packing == "best_fit":
        rows = data.global_batch_size
        assert rows * EXAMPLES_PER_ROW >= 4096
        # Fewer rows would not fill the micro-batches of a v5e:16x16.
        assert (rows - 512) * EXAMPLES_PER_ROW < 4096


FINETUNING = sorted(p.stem for p in ROOT.glob("configs/finetune/*.flags"))


@pytest.mark.parametrize("recipe", FINETUNING)
def test_a_recipe_says_whether_the_paper_starts_from_a_model_of_mnli(recipe):
    path = f"configs/finetune/{recipe}.flags"
    config = parse(f"--flagfile={path}", config_class=FinetuningConfig)
    assert config.task.task == recipe.removesuffix("_v2_models")
    after = TASKS[config.task.task].starts_from
    text = (ROOT / path).read_text()
    assert bool(after) == ("--init_checkpoint=runs/mnli" in text)
