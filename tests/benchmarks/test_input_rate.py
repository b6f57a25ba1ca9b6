"""The benchmark of the input, on real records."""

from benchmarks import input_rate
from tests.helpers import tiny_run

COLUMNS = [cell.strip() for cell in input_rate.HEADER.split("|")[1:12]]


def test_the_table_has_the_rate_of_a_host_and_the_need_of_a_step(
    tiny_records, tiny_dynamic_records, tmp_path, capsys
):
    run = tiny_run.make_config(
        tmp_path / "none", tmp_path, global_batch_size=12, input_lanes=3
    )
    inputs = (
        f"{tiny_records}/train",
        f"{tiny_dynamic_records}/train/*.tfrecord",
    )
    input_rate.main(
        input_rate.InputRateConfig(
            run=run,
            num_hosts=3,
            num_replicas=6,
            step_seconds=0.05,
            records=inputs,
            seconds=0.05,
        )
    )
    lines = capsys.readouterr().out.splitlines()[2:]
    static, dynamic = (
        dict(zip(COLUMNS, line.strip("| ").split(" | "), strict=True))
        for line in lines
    )
    assert static["records"] == f"{tiny_records}/train/*.tfrecord"
    assert (static["masking"], static["packing"]) == ("static", "none")
    assert (dynamic["records"], dynamic["masking"]) == (inputs[1], "dynamic")
    for row in static, dynamic:
        assert (row["hosts"], row["lanes"]) == ("3", "3")
        assert row["records/s needed"] == "240"
        rate = float(row["records/s"].replace(",", ""))
        ratio = float(row["ratio"].replace(",", ""))
        assert rate > 0 and abs(ratio - rate / 240) <= 0.06 + 0.01 * ratio
