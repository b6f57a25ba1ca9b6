"""The benchmark of the input, on real records."""

import json

import pytest
from absl import flags as absl_flags

from albert_tf.config import flags
from albert_tf.errors import UserError
from benchmarks import input_rate
from benchmarks.input_rate import RecipeConfig, RunConfig
from tests.helpers import tiny_run
from tpu import compile_recipes
from tpu.compile_check import CompileCheckConfig

COLUMNS = [cell.strip() for cell in input_rate.HEADER.split("|")[1:12]]


def read_rows(text):
    """The rows of the table by column; numbers as numbers."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) == len(COLUMNS) and cells[5].isdigit():
            names = cells[:3]
            numbers = [float(cell.replace(",", "")) for cell in cells[3:]]
            rows.append(dict(zip(COLUMNS, [*names, *numbers], strict=True)))
    return rows


def test_the_table_has_the_rate_of_a_host_and_the_need_of_a_step(
    tiny_records, tmp_path, capsys
):
    run = tiny_run.make_config(
        tiny_records, tmp_path, global_batch_size=12, input_lanes=3
    )
    input_rate.main(
        RunConfig(
            run=run,
            num_hosts=3,
            num_replicas=6,
            step_seconds=0.05,
            seconds=0.05,
        )
    )
    (row,) = read_rows(capsys.readouterr().out)
    assert (row["hosts"], row["lanes"], row["records/s needed"]) == (3, 3, 240)
    assert (row["masking"], row["packing"]) == ("static", "none")
    assert row["records/s"] > 0 and row["per CPU second"] > 0
    ratio = row["records/s"] / row["records/s needed"]
    assert abs(row["ratio"] - ratio) <= 0.06 + 0.01 * ratio


def test_a_recipe_gives_the_need_and_each_input_has_a_row(
    tiny_records, tiny_dynamic_records, tmp_path, capsys, monkeypatch
):
    """On a slice of four hosts; its step time is in tpu/compiled.json."""
    run = tiny_run.make_config(
        tmp_path / "none", tmp_path, global_batch_size=48, input_lanes=3
    )
    monkeypatch.setattr(
        compile_recipes,
        "read_recipe",
        lambda name: CompileCheckConfig(run=run, topology="v5e:4x4"),
    )
    inputs = (
        f"{tiny_records}/train",
        f"{tiny_dynamic_records}/train/*.tfrecord",
    )
    input_rate.main(
        RecipeConfig(recipe="base_v2_125k", records=inputs, seconds=0.05)
    )
    static, dynamic = read_rows(capsys.readouterr().out)
    assert static["records"] == f"{tiny_records}/train/*.tfrecord"
    assert static["masking"] == "static"
    assert dynamic["records"] == inputs[1]
    assert dynamic["masking"] == "dynamic"
    found = json.loads(compile_recipes.FOUND.read_text())
    need = 48 / found["base_v2_125k"]["step_s"]
    for row in static, dynamic:
        assert (row["hosts"], row["lanes"]) == (4, 3)
        assert row["records/s needed"] == round(need)


def test_a_recipe_needs_no_flags_of_a_run():
    arguments = ["--recipe=large_v2_3m", "--records=a,gs://b"]
    values = absl_flags.FlagValues()
    config_class = input_rate.config_class_of(arguments)
    flags.define(config_class, values)
    values(["input_rate", *arguments])
    config = flags.parse(config_class, values)
    assert config.recipe == "large_v2_3m"
    assert config.records == ("a", "gs://b")
    assert input_rate.config_class_of(["--num_hosts=3"]) is RunConfig


def test_a_recipe_without_a_step_time_is_an_error():
    with pytest.raises(UserError, match="step_seconds"):
        input_rate.main(RecipeConfig(recipe="mini_en_128"))
