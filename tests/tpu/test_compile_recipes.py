import json
import pathlib
import subprocess
import sys

import pytest

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.config import PretrainingConfig, flags
from tpu import compile_recipes, topologies
from tpu.compile_check import CompileCheckConfig

FOUND = json.loads(compile_recipes.FOUND.read_text())


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    """Recipes name files from the root of the repository."""
    monkeypatch.chdir(pathlib.Path(__file__).parents[2])


@pytest.mark.parametrize("name", compile_recipes.RECIPES)
def test_the_estimate_is_for_the_slice_and_the_rows_of_the_recipe(name):
    """If not, run python -m tpu.compile_recipes NAME.

    The trainer ignores the slice and the flags of the compiler.
    """
    arguments = compile_recipes.flags_of(name)
    config = flags.parse_line(CompileCheckConfig, arguments)
    found = FOUND[name]
    data, distribution = config.run.data, config.run.distribution
    micro_batches = data.gradient_accumulation_steps
    assert found["flags"] == compile_recipes.RECIPES[name]
    where = topologies.parse(config.accelerator_type)
    assert found["topology"] == str(where)
    assert found["gradient_accumulation_steps"] == micro_batches
    assert found["packing"] == data.packing
    assert found["precision"] == distribution.precision == "mixed_bfloat16"
    rows = found["batch_size"] * micro_batches * where.num_cores
    assert rows == data.global_batch_size
    per_replica_batch_size(data, where.num_cores, "eval_batch_size")
    assert flags.parse_line(PretrainingConfig, arguments) == config.run


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
    monkeypatch.setattr(sys, "argv", ["compile_recipes", *names])
    with pytest.raises(SystemExit, match="base_v2_125k_v5p: signal SIGKILL"):
        compile_recipes.main()
    assert calls[0] == [
        *("tpu.compile_check", "--json"),
        "--flagfile=configs/pretrain/base_v2_125k.flags",
        "--flagfile=configs/hardware/v4_128.flags",
    ]
    failed = {"error": "out of HBM", "flags": "base_v2_125k v4_128"}
    assert json.loads(stored.read_text()) == {
        "large_v1_125k": {},
        "base_v2_125k_v4": failed,
    }
