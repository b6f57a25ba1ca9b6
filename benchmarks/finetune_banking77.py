r"""Compares fine-tuning of pretrained models with training from scratch.

    python -m benchmarks.finetune_banking77 \
      --init_checkpoint=runs/questions,models/albert_mini_en \
      --work_dir=build/banking77 --examples_per_class=10

Runs `python -m albert_tf.run_finetuning` on Banking77, questions of a bank's
customers in 77 classes ([Casanueva et al.,
2020](https://arxiv.org/abs/2003.04807)), which are in
`data_prep/sample_questions`. One kind of run starts from each pretrained model,
and one from random weights, with the same architecture, vocabulary, settings
and seeds. Prints a Markdown table: the accuracy on the test set by seed, its
mean and deviation, and how much higher it is than from scratch, with the
standard error. The same command continues an interrupted benchmark.
"""

import collections
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from albert_tf.config import Config, flags, setting
from albert_tf.errors import UserError
from albert_tf.sweep import table

_SCRATCH = "from scratch"
DATA_DIR = pathlib.Path("data_prep/sample_questions")


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """Data, model and settings of the runs."""

    examples_per_class: int = setting(
        0,
        "Number of training questions of each class, the first ones of the "
        "file; 0 is all.",
        at_least=0,
    )
    init_checkpoint: tuple[str, ...] = setting(
        (),
        "Pretrained models, comma-separated, e.g. runs/base. The first one "
        "must contain its vocabulary; training from scratch uses its "
        "architecture and its vocabulary.",
    )
    work_dir: str = setting(
        "", "Directory of the runs, which are kept, e.g. build/banking77."
    )
    num_runs: int = setting(
        5, "Number of seeds of each kind of run.", at_least=1
    )
    num_train_steps: int = setting(
        1000, "Number of training steps of a run.", at_least=1
    )
    learning_rate: float = setting(3e-4, "Peak learning rate.", at_least=0)


def main(config: BenchmarkConfig) -> None:
    """Trains from each start, and prints the tables."""
    config.require("init_checkpoint", "work_dir")
    # Imported here so that --help answers at once.
    from albert_tf.interop.formats import read_weights

    weights = read_weights(config.init_checkpoint[0])
    if not weights.vocabulary:
        raise UserError(
            f"{config.init_checkpoint[0]} must contain its vocabulary",
            received="none",
        )
    work_dir = pathlib.Path(config.work_dir)
    work_dir.mkdir(parents=True, exist_ok=True)
    architecture = work_dir / "albert_config.json"
    architecture.write_text(json.dumps(dataclasses.asdict(weights.config)))
    train_file = work_dir / "train.jsonl"
    lines = (DATA_DIR / "train.jsonl").read_text().splitlines()
    questions = first_questions(lines, config.examples_per_class)
    train_file.write_text("\n".join(questions) + "\n")
    starts: dict[str, list[str]] = {
        _SCRATCH: [
            "--from_scratch",
            f"--albert_config_file={architecture}",
            f"--init_vocabulary={weights.vocabulary}",
        ]
    } | {m: [f"--init_checkpoint={m}"] for m in config.init_checkpoint}
    accuracies = {
        name: _run(config, train_file, work_dir / f"start-{number}", start)
        for number, (name, start) in enumerate(starts.items(), start=1)
    }
    print(results_table(accuracies), end="")


def first_questions(lines: Sequence[str], per_class: int) -> list[str]:
    """The first JSON lines of each category; 0 is all lines."""
    counts: collections.Counter[str] = collections.Counter()
    kept = []
    for line in lines:
        category = json.loads(line)["category"]
        counts[category] += 1
        if counts[category] <= (per_class or math.inf):
            kept.append(line)
    return kept


def _run(
    config: BenchmarkConfig,
    train_file: pathlib.Path,
    output_dir: pathlib.Path,
    start: Sequence[str],
) -> list[float]:
    """Runs the command with each seed; returns their accuracies."""
    accuracies = []
    for seed in range(1, config.num_runs + 1):
        command = (
            *(sys.executable, "-m", "albert_tf.run_finetuning"),
            "--task=classification",
            "--label_column=category",
            f"--train_file={train_file}",
            f"--dev_file={DATA_DIR / 'test.jsonl'}",
            f"--output_dir={output_dir}/run-{seed}",
            f"--seed={seed}",
            f"--num_train_steps={config.num_train_steps}",
            f"--num_warmup_steps={config.num_train_steps // 10}",
            f"--save_checkpoints_steps={config.num_train_steps}",
            f"--learning_rate={config.learning_rate}",
            "--global_batch_size=16",
            "--max_seq_length=32",
            *start,
        )
        finished = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if finished.returncode:
            sys.exit(finished.returncode)  # the command has said why
        accuracies.append(json.loads(finished.stdout)["accuracy"])
    return accuracies


def results_table(accuracies: Mapping[str, Sequence[float]]) -> str:
    """A Markdown table of the accuracies, with their spread over the seeds.

    Of accuracies the standard deviation, of gains the standard error.
    """
    scratch = accuracies[_SCRATCH]

    def show(values: Sequence[float], num_values: int, sign: str = "") -> str:
        text = f"{statistics.fmean(values):{sign}.1%}"
        if len(values) == 1:
            return text
        error = statistics.stdev(values) / math.sqrt(num_values)
        return f"{text} ± {error:.1%}"

    rows = []
    for name, values in accuracies.items():
        gains = [a - b for a, b in zip(values, scratch, strict=True)]
        rows.append(
            [
                name,
                *(f"{value:.1%}" for value in values),
                show(values, 1),
                show(gains, len(gains), "+") if name != _SCRATCH else "",
            ]
        )
    seeds = [f"seed {number}" for number in range(1, len(scratch) + 1)]
    return table(["start", *seeds, "mean", f"- {_SCRATCH}"], rows)


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
