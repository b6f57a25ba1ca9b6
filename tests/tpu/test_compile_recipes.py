import json
import pathlib
import subprocess

import pytest

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.config import PretrainingConfig, flags
from albert_tf.errors import UserError
from tpu import compile_recipes
from tpu.compile_recipes import CompileRecipesConfig

ROOT = pathlib.Path(__file__).parents[2]
FOUND = json.loads(compile_recipes.FOUND.read_text())


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    """Recipes name files from the root of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", compile_recipes.RECIPES)
def test_the_estimate_is_for_the_slice_and_the_rows_of_the_recipe(name):
    """If not, run python -m tpu.compile_recipes --recipe=NAME."""
    found, config = FOUND[name], compile_recipes.read_recipe(name)
    data, distribution = config.run.data, config.run.distribution
    micro_batches = data.gradient_accumulation_steps
    assert found["flags"] == compile_recipes.RECIPES[name]
    assert found["topology"] == str(config.where)
    assert found["gradient_accumulation_steps"] == micro_batches
    assert found["packing"] == data.packing
    assert found["precision"] == distribution.precision == "mixed_bfloat16"
    rows = found["batch_size"] * micro_batches * config.where.num_cores
    assert rows == data.global_batch_size
    per_replica_batch_size(
        "eval_batch_size", data.eval_batch_size, config.where.num_cores
    )


def test_the_trainer_reads_the_flags_of_a_recipe():
    """It ignores the slice and the flags of the compiler."""
    for name in compile_recipes.RECIPES:
        arguments = compile_recipes.flags_of(name)
        assert (
            flags.parse_line(PretrainingConfig, arguments)
            == compile_recipes.read_recipe(name).run
        )


def test_each_recipe_is_compiled_by_compile_check(tmp_path, monkeypatch):
    """The first does not compile; the process of the second is killed."""
    calls, stored = [], tmp_path / "compiled.json"
    stored.write_text(json.dumps({"large_v1_125k": {}}))
    monkeypatch.setattr(compile_recipes, "FOUND", stored)

    def compile_check(command, **_):
        calls.append(command[2:])
        refused = (2, '{"error": "out of HBM"}')
        code, out = refused if len(calls) == 1 else (-9, "")
        return subprocess.CompletedProcess(command, code, out)

    monkeypatch.setattr(subprocess, "run", compile_check)
    names = ("base_v2_125k_v4", "base_v2_125k_v5p")
    with pytest.raises(UserError, match="status -9 for base_v2_125k_v5p"):
        compile_recipes.main(CompileRecipesConfig(recipe=names, quick=True))
    assert calls[0] == [
        *("tpu.compile_check", "--json", "--quick"),
        "--flagfile=configs/pretrain/base_v2_125k.flags",
        "--flagfile=configs/hardware/v4_128.flags",
    ]
    assert json.loads(stored.read_text()) == {
        "large_v1_125k": {},
        "base_v2_125k_v4": {
            "error": "out of HBM",
            "flags": "base_v2_125k v4_128",
        },
    }


def test_unknown_recipes_are_named():
    with pytest.raises(UserError, match="base_v3") as error:
        compile_recipes.main(CompileRecipesConfig(recipe=("base_v3",)))
    assert "base_v2_125k" in str(error.value)
