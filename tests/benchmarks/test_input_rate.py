"""The benchmark of the input, on real records."""

import json
import pathlib
import re

from benchmarks import input_rate
from tests.helpers import tiny_run
from tpu import compile_recipes

ROOT = pathlib.Path(__file__).parents[2]


def test_the_table_has_the_rate_of_a_host_and_the_need_of_a_step(
    tiny_records, tmp_path, capsys
):
    run = tiny_run.make_config(
        tiny_records, tmp_path, global_batch_size=12, input_lanes=3
    )
    input_rate.main(
        input_rate.InputRateConfig(
            run=run,
            num_hosts=3,
            num_replicas=6,
            step_seconds=0.05,
            seconds=0.05,
        )
    )
    *_, row = capsys.readouterr().out.splitlines()
    hosts, lanes, rate, cpu_rate, needed, ratio, _ = [
        float(cell.replace(",", "")) for cell in row.strip("| ").split("|")
    ]
    assert (hosts, lanes, needed) == (3, 3, 240)
    assert rate > 0 and cpu_rate > 0
    assert abs(ratio - rate / needed) <= 0.06 + 0.01 * ratio


# Chips of a host of a slice, and bytes per second of a read from gs://.
CHIPS_PER_HOST = 4
STREAM_BYTES = 100e6
BYTES_PER_RECORD = 3600


def measured_rate():
    """Records of the global batch per CPU second of one host of 64, each of
    which has a lane."""
    (rate,) = re.findall(
        r"^\| 64 \| 64 \| [\d,]+ \| ([\d,]+) \|",
        (ROOT / "benchmarks" / "README.md").read_text(),
        re.M,
    )
    return float(rate.replace(",", ""))


def num_hosts(where):
    """Slices of several hosts have four chips on each; a v6e-8 is one host."""
    one_host = where.version in ("v5e", "v6e") and where.num_chips <= 8
    return 1 if one_host else where.num_chips // CHIPS_PER_HOST


def test_each_recipe_has_three_times_the_input_that_it_needs(monkeypatch):
    """By the CPU of one core of a host, and by one stream of 100 MB/s.

    A host reads its own part of the batch, by the lanes of the recipe.
    """
    monkeypatch.chdir(ROOT)
    found = json.loads(compile_recipes.FOUND.read_text())
    ratios = {}
    for name, one in found.items():
        config, where = compile_recipes.read_recipe(name)
        hosts, lanes = num_hosts(where), config.data.input_lanes
        batch = config.data.global_batch_size
        # A batch per replica has a whole number of records of each lane.
        assert lanes % hosts == 0 and batch % lanes == 0, name
        read = batch / one["step_s"] / hosts  # records/s that a host reads
        assert STREAM_BYTES / (read * BYTES_PER_RECORD) >= 3, name
        # A host of 64 reads a 64th of the records, and parses it.
        ratios[name] = measured_rate() / 64 / read
        assert ratios[name] >= 3, name
    assert len(ratios) > 20
    # Base is the fastest: the README has this ratio for it.
    assert 17 < ratios["base_v2_125k"] < 17.5
