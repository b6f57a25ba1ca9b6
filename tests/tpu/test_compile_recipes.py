import json
import pathlib

import pytest

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.errors import UserError
from tpu import compile_recipes
from tpu.config import (
    CompileRecipesConfig,
)
from tpu.estimates import Estimate

ROOT = pathlib.Path(__file__).parents[2]
RECIPES = sorted(path.stem for path in ROOT.glob("configs/pretrain/*.flags"))
ON_CPUS = {
    "demo",
    "demo_1_layer",
    "demo_questions",
    "mini_en_16",
    "mini_en_64",
    "mini_en_128",
    "mini_en_256",
    "tiny_cpu",
}


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    """Recipes name files from the root of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", RECIPES)
def test_every_tpu_recipe_names_a_slice_that_divides_its_batches(name):
    recipe = compile_recipes.read_recipe(name)
    assert (recipe is None) == (name in ON_CPUS)
    if recipe is None:
        return
    config, where, _ = recipe
    assert config.distribution.precision == "mixed_bfloat16"
    per_replica_batch_size(
        "global_batch_size",
        config.data.global_batch_size,
        where.num_cores,
        config.data.gradient_accumulation_steps,
    )
    per_replica_batch_size(
        "eval_batch_size", config.data.eval_batch_size, where.num_cores
    )


def test_every_tpu_recipe_is_compiled():
    found = json.loads(compile_recipes.FOUND.read_text())
    assert set(found) == set(RECIPES) - ON_CPUS


@pytest.mark.parametrize("name", sorted(set(RECIPES) - ON_CPUS))
def test_the_estimate_is_for_the_slice_and_the_rows_of_the_recipe(name):
    found = Estimate(**json.loads(compile_recipes.FOUND.read_text())[name])
    config, where, flags = compile_recipes.read_recipe(name)
    micro_batches = config.data.gradient_accumulation_steps
    assert found.topology == str(where)
    assert found.gradient_accumulation_steps == micro_batches
    assert found.packing == config.data.packing
    assert found.compiler_flags == flags
    rows = found.batch_size * micro_batches * where.num_cores
    assert rows == config.data.global_batch_size


@pytest.mark.parametrize(
    "name", [recipe for recipe in RECIPES if recipe.endswith("_packed")]
)
def test_packed_rows_take_at_most_2_percent_more_cycles(name):
    """Than the rows of the unpacked recipe."""
    found = json.loads(compile_recipes.FOUND.read_text())

    def cycles_per_row(name):
        one = Estimate(**found[name])
        return one.cycles / (one.batch_size * one.gradient_accumulation_steps)

    unpacked = cycles_per_row(name.removesuffix("_packed"))
    assert cycles_per_row(name) <= 1.02 * unpacked


def test_unknown_recipes_are_named():
    with pytest.raises(UserError, match="base_v3") as error:
        compile_recipes.main(CompileRecipesConfig(recipe=("base_v3",)))
    assert "base_v2_125k" in str(error.value)
