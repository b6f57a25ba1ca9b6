"""The benchmark of the input, on real records."""

import json
import pathlib

import pytest
from absl import flags as absl_flags

from albert_tf.config import flags
from albert_tf.errors import UserError
from benchmarks import input_rate
from benchmarks.input_rate import RecipeConfig, RunConfig
from tests.helpers import tiny_run
from tpu import compile_recipes, topologies

ROOT = pathlib.Path(__file__).parents[2]
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
    where = topologies.Slice("v5e", (4, 4))
    monkeypatch.setattr(
        compile_recipes,
        "read_recipe",
        lambda name: compile_recipes.Recipe(run, where),
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


# Bytes per second of a read from gs://.
STREAM_BYTES = 100e6


def measured(num_hosts):
    """The rows of the README for as many hosts as a recipe has: one, or many.

    Each of many hosts reads a part of a batch by lanes. gs:// is an imitation
    there, and not counted.
    """
    text = (ROOT / "benchmarks" / "README.md").read_text()
    return [
        row
        for row in read_rows(text)
        if row["hosts"] <= row["lanes"]
        and (row["hosts"] == 1) == (num_hosts == 1)
        and not row["records"].startswith("gs://")
    ]


def test_each_recipe_has_three_times_the_input_that_it_needs(monkeypatch):
    """By the CPU of one core of a host, and by one stream of 100 MB/s.

    A host reads its own part of the batch, by the lanes of the recipe. Records
    are packed as the recipe says, with static or dynamic masks.
    """
    monkeypatch.chdir(ROOT)
    found = json.loads(compile_recipes.FOUND.read_text())
    ratios = {}
    for name in found:
        need = input_rate.need_of_recipe(name)
        data, hosts = need.run.data, need.num_hosts
        batch = data.global_batch_size
        # A batch per replica has a whole number of records of each lane.
        assert data.input_lanes % hosts == 0 and batch % data.input_lanes == 0
        read = need.records_per_s / hosts  # records/s that a host reads
        rows = measured(hosts)
        kinds = [row for row in rows if row["packing"] == data.packing]
        assert {row["masking"] for row in kinds} == {"static", "dynamic"}
        for row in kinds:
            streamed = STREAM_BYTES / (read * 1e3 * row["kB"])
            assert streamed >= 3, (name, row["masking"])
            # The measured host also reads and parses only its own part.
            ratio = row["per CPU second"] / row["hosts"] / read
            assert ratio >= 3, (name, row["masking"])
            ratios[name, row["masking"]] = ratio
    assert len(ratios) > 40
    # The README has this ratio for base.
    (row,) = (
        row
        for row in measured(num_hosts=64)
        if (row["masking"], row["packing"]) == ("static", "none")
    )
    difference = ratios["base_v2_125k", "static"] - row["ratio per CPU second"]
    assert abs(difference) <= 0.06
