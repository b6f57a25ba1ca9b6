"""The benchmark of the input, on real records."""

from benchmarks import input_rate
from tests.helpers import tiny_run


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
