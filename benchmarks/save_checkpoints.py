"""Measure how long training waits for a checkpoint.

    python -m benchmarks.save_checkpoints --work_dir=build/benchmark

Saves the variables of a training run of each architecture, including moments,
several times, one save after the other. Prints a Markdown table: the size; the
time that training waits, until the variables are copied to the host's memory;
and the time of writing the files, which a run does in the background. Removes
the directory at the end, so it must not exist before.
"""

import dataclasses
import pathlib
import shutil
import statistics
import time

import tensorflow as tf

from albert_tf.config import (
    Config,
    ModelConfig,
    PretrainingConfig,
    flags,
    setting,
)
from albert_tf.errors import UserError
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train_state import make_state

MODELS = pathlib.Path(__file__).parent.parent / "configs" / "models"


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """Models, number of checkpoints and directory."""

    work_dir: str = setting(
        "",
        "New directory for checkpoints, removed at the end, e.g. "
        "build/benchmark.",
    )
    models: tuple[str, ...] = setting(
        ("albert_base_v2", "albert_xlarge_v2"),
        "Architectures in configs/models, comma-separated, without .json.",
    )
    saves: int = setting(5, "Number of checkpoints of each model.", at_least=1)


def main(config: BenchmarkConfig) -> None:
    """Measures and prints."""
    config.require("work_dir")
    if pathlib.Path(config.work_dir).exists():
        raise UserError(
            "work_dir must not exist, because it is removed at the end",
            received=config.work_dir,
        )
    print("| model | MB | training waits, s | writing, s | wait / total |")
    print("|---|---|---|---|---|")
    for name in config.models:
        model = ModelConfig.from_json_file(str(MODELS / f"{name}.json"))
        run = PretrainingConfig(model=model)
        variables = make_state(run, Pretraining(run)).variables()
        store = CheckpointStore(config.work_dir, variables, keep_max=1)
        waits, totals = [], []
        for step in range(1, config.saves + 1):
            began = time.monotonic()
            store.save(step, {})
            store.wait()
            totals.append(time.monotonic() - began)
            waits.append(store.seconds_stalled)
        shutil.rmtree(config.work_dir)
        size = sum(
            tf.size(v).numpy() * v.dtype.size for v in variables.values()
        )
        wait, total = statistics.median(waits), statistics.median(totals)
        print(
            f"| {name} | {size / 1e6:,.0f} | {wait:.3f} | {total - wait:.2f} "
            f"| {wait / total:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
