import collections
import dataclasses
import json
import pathlib
import re

import pytest
import tensorflow as tf

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.errors import UserError
from albert_tf.training import schedules
from tests.helpers.made_up_estimate import MADE_UP
from tpu import compile_recipes, fingerprint, topologies
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


def key(name):
    return compile_recipes.program_key(*compile_recipes.read_recipe(name))


def test_recipes_that_differ_only_in_length_share_a_program():
    """Unlike v2, base v1 has dropout; BERT shares no parameters."""
    assert key("base_v2_125k") == key("base_v2_10m")
    others = ("base_v1_125k", "bert_base_125k", "large_v2_3m")
    assert len({key("base_v2_125k"), *map(key, others)}) == 4


def test_dropout_by_architecture_or_by_schedule_is_the_same_program():
    config, where, flags = compile_recipes.read_recipe("xlarge_v2_3m")
    assert max(schedules.dropout_rates(0, config)) == 0
    training = dataclasses.replace(config.training, dropout_schedule="0:0.1")
    dropped = dataclasses.replace(config, training=training)
    found = compile_recipes.program_key(dropped, where, flags)
    assert found == key("xlarge_v1_125k")


def test_the_compiler_flags_of_a_recipe_are_a_part_of_its_program():
    recipe = compile_recipes.read_recipe("xxlarge_v2_3m")
    assert recipe.compiler_flags == "--xla_tpu_scoped_vmem_limit_kib=24576"
    without_flags = recipe._replace(compiler_flags="")
    keys = {compile_recipes.program_key(*r) for r in (recipe, without_flags)}
    assert len(keys) == 2
    assert compile_recipes.read_recipe("base_v2_125k_v4").compiler_flags == ""


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


@pytest.mark.parametrize("name", sorted(set(RECIPES) - ON_CPUS))
def test_no_setting_of_a_program_has_changed_since_it_was_compiled(name):
    found = json.loads(compile_recipes.FOUND.read_text())[name]
    assert found["settings_fingerprint"] == fingerprint.of_text(key(name)), (
        f"run python -m tpu.compile_recipes --recipe={name}"
    )


@pytest.mark.slow
def test_no_program_has_changed_since_it_was_compiled():
    """After an intended change, compile the recipes again. To see its cost
    first, compile one recipe and the golden step."""
    found = json.loads(compile_recipes.FOUND.read_text())
    # Recipes that share a small program, e.g. those of base and large.
    alike = collections.defaultdict(list)
    for name, estimate in found.items():
        if estimate["versions"]["tensorflow"] != tf.__version__:
            pytest.skip("another release of TensorFlow compiled the recipes")
        config = compile_recipes.read_recipe(name).run
        small = fingerprint.small(config)
        one_chip = topologies.parse("v5e:1x1")
        alike[compile_recipes.program_key(small, one_chip)].append(name)
    changed = []
    for names in alike.values():
        config = compile_recipes.read_recipe(names[0]).run
        program = fingerprint.of_program(config)
        changed += [
            name
            for name in names
            if found[name]["program_fingerprint"] != program
        ]
    assert not changed, (
        f"run python -m tpu.compile_recipes --recipe={','.join(changed)}"
    )


def test_fingerprints_of_structures_differ():
    """Sizes are those of a small model, but not the lengths of rows."""

    def small(name):
        return fingerprint.small(compile_recipes.read_recipe(name).run)

    shared, unshared = small("large_v2_3m"), small("bert_large_125k")
    assert shared.model == small("xxlarge_v2_3m").model
    assert shared.data.max_seq_length == 512
    assert shared.model.parameter_sharing == "all"
    assert unshared.model.parameter_sharing == "none"
    assert unshared.model.embedding_size == unshared.model.hidden_size
    assert shared.model.embedding_size < shared.model.hidden_size
    assert small("large_v2_3m_packed").data.packing == "best_fit"


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


WHOLE = dataclasses.replace(
    ONE,
    cycles=10_000_000,
    copied_bytes=2_000_000_000,
    hbm_bytes=3_000_000_000,
    all_reduce_bytes=1_000_000,
    num_all_reduces=2,
)


@pytest.fixture
def compile_again(tmp_path, monkeypatch):
    """Compiles two recipes, with a given estimate as the result of both.

    `compiled.json` already has an estimate of the first one.
    """
    monkeypatch.setattr(compile_recipes, "FOUND", tmp_path / "compiled.json")
    monkeypatch.setattr(compile_recipes, "TABLE", tmp_path / "COMPILED.md")
    compile_recipes.TABLE.write_text(
        compile_recipes.BEGIN + compile_recipes.END
    )
    compile_recipes.FOUND.write_text(
        json.dumps({"base_v1_125k": dataclasses.asdict(WHOLE)})
    )
    monkeypatch.setattr(fingerprint, "of_program", lambda run: "")

    def run(new, **settings):
        monkeypatch.setattr(
            compile_recipes, "estimate_apart", lambda *args, **options: new
        )
        compile_recipes.main(
            CompileRecipesConfig(
                recipe=("base_v1_125k", "large_v1_125k"), **settings
            )
        )

    return run


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"cycles": 10_400_000},
            "10,400,000 cycles, before 10,000,000 (+4.0%)",
        ),
        (
            {"peak_bytes": 5 * 2**30},
            "5,368,709,120 bytes of HBM at the peak, before 4,294,967,296 "
            "(+25.0%)",
        ),
        (
            {"all_reduce_bytes": 2_000_000},
            "2,000,000 bytes in the all-reduce, before 1,000,000 (+100.0%)",
        ),
        (
            {"copied_bytes": 2_100_000_000},
            "2,100,000,000 bytes of asynchronous copies, before 2,000,000,000 "
            "(+5.0%)",
        ),
        (
            {"hbm_bytes": 3_300_000_000},
            "3,300,000,000 bytes read and written in HBM, before 3,000,000,000 "
            "(+10.0%)",
        ),
        (
            {"error": "RESOURCE_EXHAUSTED: HBM", "peak_bytes": None},
            "the program no longer compiles: RESOURCE_EXHAUSTED: HBM",
        ),
    ],
)
def test_a_worse_estimate_is_refused_and_the_others_are_written(
    compile_again, changes, reason
):
    new = dataclasses.replace(WHOLE, **changes)
    with pytest.raises(UserError) as error:
        compile_again(new)
    assert f"base_v1_125k: {reason}" in str(error.value)
    assert error.value.exit_status == 1
    written = json.loads(compile_recipes.FOUND.read_text())
    assert written["base_v1_125k"] == dataclasses.asdict(WHOLE)
    # The second recipe had no estimate.
    for name in changes:
        assert written["large_v1_125k"][name] == getattr(new, name)

    compile_again(new, accept_worse=True)
    written = json.loads(compile_recipes.FOUND.read_text())
    for name in changes:
        assert written["base_v1_125k"][name] == getattr(new, name)


def test_an_estimate_that_is_hardly_worse_is_written(compile_again):
    compile_again(dataclasses.replace(WHOLE, cycles=10_250_000))
    written = json.loads(compile_recipes.FOUND.read_text())
    assert written["base_v1_125k"]["cycles"] == 10_250_000
