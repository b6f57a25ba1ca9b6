import dataclasses
import json
import pathlib
import re

import pytest

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.errors import UserError
from tests.helpers.made_up_estimate import MADE_UP
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


ONE = dataclasses.replace(
    MADE_UP,
    topology="v5e:4x4",
    num_chips=16,
    num_cores=16,
    gradient_accumulation_steps=4,
    peak_bytes=4 * 2**30,
    copied_bytes=6_430_000_000,
    compiler_flags="--xla_tpu_limit=3 --other",
    compile_cpu_s=61.2,
    step_s=0.0125,
    mfu=0.405,
    tokens_per_s_chip=12_345.6,
    days=1.5,
    chip_hours=576.0,
)


def test_a_row_shows_the_estimate():
    """And ranges, to 1.5 times the estimate, of times and chip-hours."""
    row = compile_recipes.table({"large": vars(ONE)}).splitlines()[-1]
    assert row == (
        "| large | v5e:4x4 | 4 x 8 | 4.00 | 25% | 12.5 to 18.8 | 40.5% "
        "| 12,346 | 0.0398 | 1.50 to 2.25 | 576 to 864 | 6.4 "
        "| limit=3 --other | 61 |"
    )
    header = compile_recipes.HEADER.splitlines()[0]
    assert row.count("|") == header.count("|")


def test_packing_lowers_the_chip_hours_of_useful_tokens():
    """The fill is the mean over 2500 million words of Wikipedia, 800 of books.

    10^6 tokens / 12,345.6 tokens/s / 3,600 s = 0.0225 hours without padding.
    """
    rows = 2500 / 0.992 + 800 / 0.999
    assert compile_recipes.FILL["best_fit"] == pytest.approx(
        3300 / rows, abs=5e-4
    )
    packed = {**vars(ONE), "packing": "best_fit"}
    row = compile_recipes.table({"large": packed}).splitlines()[-1]
    assert "| 12,346 | 0.0226 | 1.50 to 2.25 |" in row


def test_rows_without_times_have_all_columns():
    header = compile_recipes.HEADER.splitlines()[0]
    quick = {**vars(ONE), "quick": True, "step_s": None, "mfu": None}
    refused = {**quick, "error": "RESOURCE_EXHAUSTED", "peak_bytes": None}
    for values in (quick, refused):
        row = compile_recipes.table({"large": values}).splitlines()[-1]
        assert row.count("|") == header.count("|")


def test_the_table_in_the_repository_matches_compiled_json():
    found = json.loads(compile_recipes.FOUND.read_text())
    assert set(found) == set(RECIPES) - ON_CPUS
    assert compile_recipes.table(found) in compile_recipes.TABLE.read_text()


@pytest.mark.parametrize("name", sorted(set(RECIPES) - ON_CPUS))
def test_the_table_has_the_slice_and_the_rows_of_each_recipe(name):
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


@pytest.mark.parametrize("model", ["base", "large", "xlarge", "xxlarge"])
def test_the_goals_are_shown_with_the_mfu_of_the_recipes(model):
    found = json.loads(compile_recipes.FOUND.read_text())
    reached = [
        one["mfu"]
        for name, one in found.items()
        if name.startswith(f"{model}_") and one["topology"].startswith("v5e:")
    ]
    text = compile_recipes.TABLE.read_text()
    (shown,) = re.findall(rf"^\| {model} \| \d+% \| (.*) \|$", text, re.M)
    assert shown == f"{min(reached):.1%} to {max(reached):.1%}"


def test_only_the_table_is_replaced(tmp_path, monkeypatch):
    text = f"before\n{compile_recipes.BEGIN}old\n{compile_recipes.END}after\n"
    monkeypatch.setattr(compile_recipes, "TABLE", tmp_path / "COMPILED.md")
    compile_recipes.TABLE.write_text(text)
    compile_recipes.write_table({"large": vars(ONE)})
    written = compile_recipes.TABLE.read_text()
    assert written.startswith("before\n") and written.endswith("after\n")
    assert "| large |" in written and "old" not in written


def test_the_table_is_written_without_compiling(tmp_path, monkeypatch):
    found = tmp_path / "compiled.json"
    found.write_text(json.dumps({"large": dataclasses.asdict(ONE)}))
    text = tmp_path / "COMPILED.md"
    text.write_text(compile_recipes.BEGIN + compile_recipes.END)
    monkeypatch.setattr(compile_recipes, "FOUND", found)
    monkeypatch.setattr(compile_recipes, "TABLE", text)
    monkeypatch.setattr(compile_recipes, "estimate_apart", None)
    before = found.read_text()
    compile_recipes.main(CompileRecipesConfig(table_only=True))
    assert "| large |" in text.read_text()
    assert found.read_text() == before
    with pytest.raises(UserError, match="does not take --recipe"):
        CompileRecipesConfig(table_only=True, recipe=("base_v2_125k",))


def test_unknown_recipes_are_named():
    with pytest.raises(UserError, match="base_v3") as error:
        compile_recipes.main(CompileRecipesConfig(recipe=("base_v3",)))
    assert "base_v2_125k" in str(error.value)
