r"""Measure how fast a host delivers batches, and how fast steps need them.

    python -m benchmarks.input_rate \
        --flagfile=configs/pretrain/base_v2_125k.flags \
        --input_file='gs://BUCKET/records/train/*.tfrecord' --input_lanes=64 \
        --num_hosts=64 --num_replicas=256 --step_seconds=0.044

Reads the batches of host 0 as a run would, without training, and prints one row
of a Markdown table. Rates are in records of the global batch: the rate that the
host can supply, per second of wall-clock time and per second of CPU time; and
the rate that steps of `step_seconds` need. The ratios are the first two rates
divided by the last. A host needs a ratio above 1; a ratio above 3 leaves room
for slow reads. Run the command on a host of the slice, or on a similar machine.
"""

import dataclasses
import time

import tensorflow as tf

from albert_tf.config import Config, PretrainingConfig, flags, setting
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_sets import find_training_data

HEADER = """\
| hosts | lanes | records/s | per CPU second | records/s needed | ratio | \
ratio per CPU second |
|---|---|---|---|---|---|---|"""


@dataclasses.dataclass(frozen=True)
class InputRateConfig(Config):
    """The run, its slice, and the time to measure."""

    run: PretrainingConfig = dataclasses.field(
        default_factory=PretrainingConfig
    )
    num_hosts: int = setting(1, "Number of hosts of the slice.", at_least=1)
    num_replicas: int = setting(
        1, "Number of replicas of the slice, e.g. 256.", at_least=1
    )
    step_seconds: float = setting(
        1.0,
        "Time of a step in seconds, e.g. the estimate of tpu/COMPILED.md.",
        at_least=1e-6,
    )
    seconds: float = setting(
        20.0, "Time to measure in seconds.", at_least=0.001
    )


def main(config: InputRateConfig) -> None:
    """Measures and prints."""
    data = find_training_data(config.run)
    stream = BatchStream(data, config.run.data, config.run.training.seed)
    context = tf.distribute.InputContext(
        config.num_hosts, 0, config.num_replicas
    )
    batches = iter(stream.open(0)(context))
    per_step = config.num_replicas // config.num_hosts
    for _ in range(2 * per_step):  # fills the buffers
        next(batches)
    steps = 0
    began, cpu_began = time.monotonic(), time.process_time()
    while time.monotonic() - began < config.seconds or not steps:
        for _ in range(per_step):
            next(batches)
        steps += 1
    records = steps * config.run.data.global_batch_size
    rate = records / (time.monotonic() - began)
    cpu_rate = records / (time.process_time() - cpu_began)
    needed = config.run.data.global_batch_size / config.step_seconds
    print(HEADER)
    print(
        f"| {config.num_hosts} | {config.run.data.input_lanes} | {rate:,.0f} "
        f"| {cpu_rate:,.0f} | {needed:,.0f} | {rate / needed:.1f} "
        f"| {cpu_rate / needed:.1f} |"
    )


if __name__ == "__main__":
    flags.run(main, InputRateConfig)
