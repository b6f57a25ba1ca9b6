r"""Measure how fast a host delivers batches, and how fast steps need them.

    python -m benchmarks.input_rate \
        --flagfile=configs/pretrain/base_v2_125k.flags --input_lanes=64 \
        --input_file='gs://BUCKET/records/train/*.tfrecord' \
        --num_hosts=64 --num_replicas=256 --step_seconds=0.044

Reads the batches of host 0 as a run would, without training, and prints one row
of a Markdown table for each input. Rates are in records of the global batch:
the rate that the host can supply, per second of wall-clock time and per second
of CPU time of this process; and the rate that the steps need. The ratios are
the first two rates divided by the last. A host needs a ratio above 1; a ratio
above 3 leaves room for slow reads. Run the command on a host of the slice, or
on a similar machine. On a busy machine, use the rate per CPU second.
"""

import dataclasses
import posixpath
import time

import tensorflow as tf

from albert_tf.config import Config, PretrainingConfig, flags, setting
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_sets import find_training_data

HEADER = """\
| records | masking | packing | kB | hosts | lanes | records/s | \
per CPU second | records/s needed | ratio | ratio per CPU second |
|---|---|---|---|---|---|---|---|---|---|---|"""


@dataclasses.dataclass(frozen=True)
class InputRateConfig(Config):
    """A run, its slice, the inputs, and the time to measure."""

    run: PretrainingConfig = dataclasses.field(
        default_factory=PretrainingConfig
    )
    num_hosts: int = setting(1, "Number of hosts of the slice.", at_least=1)
    num_replicas: int = setting(
        1, "Number of replicas of the slice, e.g. 256.", at_least=1
    )
    step_seconds: float = setting(
        1.0,
        "Time of a step in seconds, e.g. the estimate of docs/tpu.md.",
        at_least=1e-6,
    )
    records: tuple[str, ...] = setting(
        (),
        "Training records to measure one after another: comma-separated "
        "directories or globs, local or gs://, e.g. "
        "build/records/train,gs://BUCKET/records/train. Default: the records "
        "of the run.",
    )
    seconds: float = setting(
        20.0, "Time to measure each input, in seconds.", at_least=0.001
    )


def measure(config: InputRateConfig) -> str:
    """Reads batches of host 0 for some seconds; returns a row of the table."""
    run, num_hosts = config.run, config.num_hosts
    data = find_training_data(run)
    stream = BatchStream(data, run.data, run.training.seed)
    context = tf.distribute.InputContext(num_hosts, 0, config.num_replicas)
    batches = iter(stream.open(0)(context))
    per_step = config.num_replicas // num_hosts
    for _ in range(2 * per_step):  # fills the buffers
        next(batches)
    steps = 0
    began, cpu_began = time.monotonic(), time.process_time()
    while time.monotonic() - began < config.seconds or not steps:
        for _ in range(per_step):
            next(batches)
        steps += 1
    records = steps * run.data.global_batch_size
    rate = records / (time.monotonic() - began)
    cpu_rate = records / (time.process_time() - cpu_began)
    needed = run.data.global_batch_size / config.step_seconds
    found = data.at(0).records
    size = sum(tf.io.gfile.stat(file).length for file in found.files)
    cells = (
        ", ".join(run.data.input_file),
        found.masking,
        found.packing,
        f"{size / found.num_records / 1e3:.2f}",
        num_hosts,
        run.data.input_lanes,
        f"{rate:,.0f}",
        f"{cpu_rate:,.0f}",
        f"{needed:,.0f}",
        f"{rate / needed:.1f}",
        f"{cpu_rate / needed:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main(config: InputRateConfig) -> None:
    """Measures and prints."""
    print(HEADER)
    if not config.records:
        print(measure(config))
    for records in config.records:
        if "*" not in records and not records.endswith(".tfrecord"):
            records = posixpath.join(records, "*.tfrecord")
        run = config.run.replace(input_file=(records,))
        print(measure(dataclasses.replace(config, run=run)))


if __name__ == "__main__":
    flags.run(main, InputRateConfig)
