r"""Measure how fast a host delivers batches, and how fast steps need them.

    python -m benchmarks.input_rate --recipe=base_v2_125k \
        --records=/tmp/records/train,gs://BUCKET/records/train

Reads the batches of host 0 as a run would, without training, and prints one row
of a Markdown table for each input. Rates are in records of the global batch:
the rate that the host can supply, per second of wall-clock time and per second
of CPU time of this process; and the rate that the steps need. The ratios are
the first two rates divided by the last. A host needs a ratio above 1; a ratio
above 3 leaves room for slow reads. Run the command on a host of the slice, or
on a similar machine. On a busy machine, use the rate per CPU second.

A recipe gives the settings of the run, its slice, and the estimated time of a
step, from tpu/compiled.json. For another run, give its flags instead:

    python -m benchmarks.input_rate \
        --flagfile=configs/pretrain/base_v2_125k.flags --input_lanes=64 \
        --input_file='gs://BUCKET/records/train/*.tfrecord' \
        --num_hosts=64 --num_replicas=256 --step_seconds=0.044
"""

import dataclasses
import json
import posixpath
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import Config, PretrainingConfig, flags, setting
from albert_tf.errors import UserError
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_sets import find_training_data
from tpu import compile_recipes

HEADER = """\
| records | masking | packing | kB | hosts | lanes | records/s | \
per CPU second | records/s needed | ratio | ratio per CPU second |
|---|---|---|---|---|---|---|---|---|---|---|"""


class Need(NamedTuple):
    """A run on a slice.

    Attributes:
        run: Its settings.
        num_hosts: Number of hosts of the slice.
        num_replicas: Number of replicas of the slice.
        step_s: Time of a step in seconds.
    """

    run: PretrainingConfig
    num_hosts: int
    num_replicas: int
    step_s: float

    @property
    def records_per_s(self) -> float:
        """Records of the global batch that steps need per second."""
        return self.run.data.global_batch_size / self.step_s


@dataclasses.dataclass(frozen=True)
class InputRateConfig(Config):
    """The inputs, and the time to measure."""

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

    def need(self) -> Need:
        """The run whose steps need the records."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class RecipeConfig(InputRateConfig):
    """Settings of `--recipe`."""

    recipe: str = setting(
        "",
        "A recipe of docs/tpu.md, e.g. base_v2_125k_packed. It "
        "replaces the flags of the run and of its slice.",
    )

    def need(self) -> Need:
        return need_of_recipe(self.recipe)


@dataclasses.dataclass(frozen=True)
class RunConfig(InputRateConfig):
    """Settings without `--recipe`: a run and its slice."""

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

    def need(self) -> Need:
        return Need(
            self.run, self.num_hosts, self.num_replicas, self.step_seconds
        )


def config_class_of(arguments: Sequence[str]) -> type[InputRateConfig]:
    """The settings of a command line. A recipe replaces the flags of a run."""
    has_recipe = any(a.lstrip("-").startswith("recipe=") for a in arguments)
    return RecipeConfig if has_recipe else RunConfig


def need_of_recipe(name: str) -> Need:
    """The run of a recipe, on its slice.

    Raises:
        UserError: If tpu/compiled.json has no time of a step for it.
    """
    found = json.loads(compile_recipes.FOUND.read_text(encoding="utf-8"))
    compiled = [n for n, one in found.items() if one["step_s"]]
    if name not in compiled:
        raise UserError(
            "recipe must have an estimated step time in tpu/compiled.json",
            received=name,
            remedy=f"Recipes: {', '.join(compiled)}. For another run, set its "
            "flags and --step_seconds.",
        )
    recipe = compile_recipes.read_recipe(name)
    where = recipe.where
    step_s = float(found[name]["step_s"])
    return Need(recipe.run, where.num_hosts, where.num_cores, step_s)


def measure(need: Need, seconds: float) -> str:
    """Reads batches of host 0 for some seconds; returns a row of the table."""
    data = find_training_data(need.run)
    stream = BatchStream(data, need.run.data, need.run.training.seed)
    context = tf.distribute.InputContext(need.num_hosts, 0, need.num_replicas)
    batches = iter(stream.open(0)(context))
    per_step = need.num_replicas // need.num_hosts
    for _ in range(2 * per_step):  # fills the buffers
        next(batches)
    steps = 0
    began, cpu_began = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds or not steps:
        for _ in range(per_step):
            next(batches)
        steps += 1
    records = steps * need.run.data.global_batch_size
    rate = records / (time.monotonic() - began)
    cpu_rate = records / (time.process_time() - cpu_began)
    found = data.at(0).records
    size = sum(tf.io.gfile.stat(file).length for file in found.files)
    cells = (
        ", ".join(need.run.data.input_file),
        found.masking,
        found.packing,
        f"{size / found.num_records / 1e3:.2f}",
        need.num_hosts,
        need.run.data.input_lanes,
        f"{rate:,.0f}",
        f"{cpu_rate:,.0f}",
        f"{need.records_per_s:,.0f}",
        f"{rate / need.records_per_s:.1f}",
        f"{cpu_rate / need.records_per_s:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main(config: InputRateConfig) -> None:
    """Measures and prints."""
    need = config.need()
    print(HEADER)
    if not config.records:
        print(measure(need, config.seconds))
    for records in config.records:
        print(measure(_with_records(need, records), config.seconds))


def _with_records(need: Need, records: str) -> Need:
    """Replaces the records of the run by those of a directory or a glob."""
    if "*" not in records and not records.endswith(".tfrecord"):
        records = posixpath.join(records, "*.tfrecord")
    data = dataclasses.replace(need.run.data, input_file=(records,))
    return need._replace(run=dataclasses.replace(need.run, data=data))


if __name__ == "__main__":
    flags.run(main, config_class_of(sys.argv[1:]))
