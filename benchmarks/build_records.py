r"""Measure speed and memory of `data_prep.build_tfrecords`.

    python -m benchmarks.build_records \
        --input_file='corpus/*.txt' --spm_model_file=build/spm.model \
        --work_dir=build/benchmark

Prints a Markdown table: speed and peak memory of the largest process for
several values of `--dupe_factor` and numbers of processes. CPU time is the sum
over all processes from text to finished shards, including start-up. It is
meaningful on a busy machine, too. Of the settings of build_tfrecords, set only
`--input_file`, `--spm_model_file`, `--max_seq_length` and
`--max_predictions_per_seq`; the builds use the defaults of the others.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

from albert_tf.config import flags, setting
from albert_tf.records.features import read_metadata
from data_prep.config import RecordsConfig
from data_prep.segments import TRAIN
from data_prep.text import find_inputs


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(RecordsConfig):
    """Settings of the records, and a working directory."""

    work_dir: str = setting(
        "",
        "New directory for the records, removed at the end, e.g. "
        "build/benchmark.",
    )


class Measured(NamedTuple):
    """The measurements of a build, over all of its processes."""

    examples: int  # in train/
    wall_s: float
    cpu_s: float
    peak_bytes: int  # resident memory of the largest process


def main(config: BenchmarkConfig) -> None:
    """Measures, and prints the table."""
    config.require("input_file", "spm_model_file", "work_dir")
    work = pathlib.Path(config.work_dir)
    work.mkdir(parents=True)
    cores = os.cpu_count() or 1
    texts = [s.name for s in find_inputs(config)]
    megabytes = sum(map(os.path.getsize, texts)) / 1e6

    print(
        f"{megabytes:.0f} MB of text, L={config.max_seq_length}, "
        f"P={config.max_predictions_per_seq}, {cores} cores\n"
    )
    print(
        "| dupe_factor | processes | examples | wall s | CPU s "
        "| examples/s per core | speed-up | peak MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for dupe_factor in (1, 10):
        alone = None
        for num_workers in dict.fromkeys((1, cores)):
            made = _build(config, texts, work, dupe_factor, num_workers)
            alone = alone or made
            print(
                f"| {dupe_factor} | {num_workers} | {made.examples:,} "
                f"| {made.wall_s:.1f} | {made.cpu_s:.1f} "
                f"| {made.examples / made.cpu_s:,.0f} "
                f"| {alone.wall_s / made.wall_s:.2f} "
                f"| {made.peak_bytes / 1e6:.0f} |",
                flush=True,
            )
    shutil.rmtree(work)


def _build(
    config: BenchmarkConfig,
    texts: list[str],
    work: pathlib.Path,
    dupe_factor: int,
    num_workers: int,
) -> Measured:
    """Runs `build_tfrecords` and measures its processes."""
    output_dir = work / "records"
    shutil.rmtree(output_dir, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "data_prep.build_tfrecords",
        f"--input_file={','.join(texts)}",
        f"--output_dir={output_dir}",
        f"--spm_model_file={config.spm_model_file}",
        f"--max_seq_length={config.max_seq_length}",
        f"--max_predictions_per_seq={config.max_predictions_per_seq}",
        f"--dupe_factor={dupe_factor}",
        f"--num_workers={num_workers}",
    ]
    began = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    # Of the process and of its own children.
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - began
    if status:
        raise RuntimeError(f"{' '.join(command)} failed")
    return Measured(
        examples=read_metadata(str(output_dir / TRAIN)).num_examples,
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,
    )


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
