r"""Train variants of a recipe, and compare them in one table.

A variant is a set of flags of `run_pretraining` that override those of all
runs. This command trains each variant with each seed, one after another, and
prints means and standard deviations:

    python -m albert_tf.sweep \
      --base_flags=--flagfile=configs/pretrain/mini_en_128.flags \
      --base_flags='--input_file=build/records/train/*.tfrecord' \
      --base_flags='--eval_input_file=build/records/eval/*.tfrecord' \
      --variant='shared:' \
      --variant='not_shared: --model=parameter_sharing=none' \
      --seeds=1,2 --output_dir=build/sharing

Those of the paper's tables are in configs/ablations.

Each run is a process of `run_pretraining` in OUTPUT_DIR/runs/VARIANT-seedN; its
log is in OUTPUT_DIR/logs. The table is also in OUTPUT_DIR/table.md. `python -m
albert_tf.report --run_dirs=...` draws the curves of the runs.

The same command continues an interrupted sweep. Exit status: 0 when all runs
have finished; that of the first run that failed; 130 (Ctrl-C) or 143 (SIGTERM)
when the sweep was interrupted: the run saves a checkpoint and stops.
"""

import os
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from absl import flags as absl_flags

from albert_tf.config import PretrainingConfig, SweepConfig, flags
from albert_tf.errors import UserError
from albert_tf.io import jobs
from albert_tf.io.files import write_text

# Sums over the lines of a run's log: the metric of a line.
TRAINING_TOTALS = {
    "training_seconds": "loop_seconds",
    "training_cpu_seconds": "cpu_seconds",
}


class PlannedRun(NamedTuple):
    """A run of the sweep, checked before any run starts."""

    variant: str
    name: str  # VARIANT-seedN, or VARIANT without seeds
    flags: tuple[str, ...]  # of run_pretraining, without --output_dir
    config: PretrainingConfig


def make_runs(config: SweepConfig) -> list[PlannedRun]:
    """Makes the runs, by seed and then by variant.

    Raises:
        UserError: For a variant without a name, or invalid flags.
    """
    config.require("variant")

    def split(text: str) -> list[str]:
        words = shlex.split(text)
        return [w.replace("{records_dir}", config.records_dir) for w in words]

    base = [word for text in config.base_flags for word in split(text)]
    runs = []
    for seed in config.seeds or ("",):
        for text in config.variant:
            variant, _, own = text.partition(":")
            if ":" not in text or not re.fullmatch(r"\w[\w.]*", variant):
                raise UserError(
                    "variant must be NAME: FLAGS, with a name of letters, "
                    "digits, _ and .",
                    received=repr(text),
                    remedy="Example: --variant='narrow: "
                    "--model=embedding_size=64'",
                )
            words = [*base, *split(own)]
            name = variant
            if seed:
                words.append(f"--seed={seed}")
                name += f"-seed{seed}"
            try:
                parsed = flags.parse_line(PretrainingConfig, words)
            except (absl_flags.Error, UserError) as error:
                raise UserError(f"variant {variant}: {error}") from None
            runs.append(PlannedRun(variant, name, tuple(words), parsed))
    return runs


def compare(
    results: dict[str, list[dict[str, float]]], metrics: Sequence[str]
) -> str:
    """Returns a table: means and standard deviations of each variant."""

    def cell(metric: str, runs: list[dict[str, float]]) -> str:
        is_percent = metric.endswith("accuracy")
        scale = 100 if is_percent else 1
        values = [scale * run[metric] for run in runs if metric in run]
        form = ".1f" if is_percent else ".3f"
        text = f"{statistics.fmean(values):{form}}" if values else "-"
        if len(values) > 1:
            text += f" ± {statistics.stdev(values):{form}}"
        return f"{text} %" if is_percent and values else text

    rows = [
        [variant, str(len(runs)), *(cell(m, runs) for m in metrics)]
        for variant, runs in results.items()
    ]
    return table(["variant", "runs", *metrics], rows)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def read_run(run_dir: str) -> dict[str, float]:
    """The last metrics of the evaluation, and `TRAINING_TOTALS`."""
    from albert_tf.runs.log import read_metrics

    lines = list(read_metrics(run_dir))
    found: dict[str, float] = {
        total: sum(line.get(metric, 0.0) for line in lines)
        for total, metric in TRAINING_TOTALS.items()
    }
    for line in lines:
        if line.pop("split") == "eval":
            found |= line
    return found


def main(config: SweepConfig) -> int:
    """Trains the variants that the flags name; returns the exit status."""
    runs = make_runs(config)
    config.require("output_dir")
    logs, run_dirs = f"{config.output_dir}/logs", f"{config.output_dir}/runs"
    os.makedirs(logs, exist_ok=True)
    command = [sys.executable, "-m", "albert_tf.run_pretraining"]
    results: dict[str, list[dict[str, float]]] = {r.variant: [] for r in runs}
    failed = []
    for run in runs:
        run_dir = f"{run_dirs}/{run.name}"
        status = jobs.run(
            run.name,
            [*command, *run.flags, f"--output_dir={run_dir}"],
            log=f"{logs}/{run.name}.log",
            output=f"{logs}/{run.name}.out",
        )
        if status:
            failed.append(status)
        else:
            results[run.variant].append(read_run(run_dir))
    text = compare(results, config.metrics)
    write_text(f"{config.output_dir}/table.md", text)
    print(text)
    return failed[0] if failed else 0


if __name__ == "__main__":
    flags.run(main, SweepConfig)
