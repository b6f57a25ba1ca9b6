import pathlib

import pytest

from albert_tf.config import FinetuningConfig, flags
from albert_tf.finetuning.tasks import TASKS

ROOT = pathlib.Path(__file__).parents[2]
RECIPES = sorted(path.stem for path in ROOT.glob("configs/finetune/*.flags"))

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


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    """Recipes name files from the root of the repository."""
    monkeypatch.chdir(ROOT)


def load(recipe):
    file = f"--flagfile=configs/finetune/{recipe}.flags"
    arguments = [file, "--init_checkpoint=runs/mnli"]
    return flags.parse_line(FinetuningConfig, arguments)


def test_the_recipes_are_those_of_the_paper():
    assert set(RECIPES) == TABLE_14.keys()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_the_numbers_of_table_14(recipe):
    config = load(recipe)
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


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_whether_the_paper_starts_from_a_model_of_mnli(recipe):
    text = (ROOT / "configs" / "finetune" / f"{recipe}.flags").read_text()
    after = TASKS[load(recipe).task.task].starts_from
    assert bool(after) == ("--init_checkpoint=runs/mnli" in text)
