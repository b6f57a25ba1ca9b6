r"""Compares fine-tuning of a pretrained model with training from scratch.

    python -m benchmarks.finetune_banking77 \
      --init_checkpoint=models/albert_mini_en --work_dir=build/banking77 \
      --learning_rate=5e-4 --scratch_learning_rate=3e-4 \
      --num_train_steps=600 --max_seq_length=32

Runs `python -m albert_tf.run_finetuning` on Banking77, which has 77 classes of
questions of a bank's customers ([Casanueva et al.,
2020](https://arxiv.org/abs/2003.04807)) and is in `data_prep/sample_questions`:
from the pretrained model, and from random weights with the same architecture,
vocabulary, settings and seeds. `--examples_per_class=10` trains on the first
ten questions of each class. Prints a Markdown table with the accuracy on the
test set after the last step. The same command continues an interrupted
benchmark.
"""

import collections
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys

from albert_tf.config import Config, flags, setting
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """Data, model and settings of the runs."""

    data_dir: str = setting(
        "data_prep/sample_questions",
        "Directory with train.jsonl and test.jsonl, whose objects have text "
        "and category.",
    )
    examples_per_class: int = setting(
        0,
        "Number of training questions of each class, the first ones of the "
        "file; 0 is all.",
        at_least=0,
    )
    init_checkpoint: str = setting(
        "", "Pretrained model with its vocabulary, e.g. runs/base."
    )
    work_dir: str = setting(
        "", "Directory of the runs, which are kept, e.g. build/banking77."
    )
    num_runs: int = setting(
        5, "Number of seeds of each kind of run.", at_least=1
    )
    max_seq_length: int = setting(
        64, "Number of tokens after which a question is cut.", at_least=3
    )
    num_train_steps: int = setting(
        1500, "Number of training steps of a run.", at_least=1
    )
    global_batch_size: int = setting(
        32, "Number of examples in a step.", at_least=1
    )
    learning_rate: float = setting(
        5e-5, "Peak learning rate of the pretrained model.", at_least=0
    )
    scratch_learning_rate: float = setting(
        0.0,
        "Peak learning rate from scratch, which usually needs a higher one. 0: "
        "the same as learning_rate.",
        at_least=0,
    )


def main(config: BenchmarkConfig) -> None:
    """Trains from both starts, and prints the table."""
    config.require("init_checkpoint", "work_dir")
    # Imported here so that --help answers at once.
    from albert_tf.interop.formats import read_weights

    weights = read_weights(config.init_checkpoint)
    if not weights.vocabulary:
        raise UserError(
            f"{config.init_checkpoint} must contain its vocabulary",
            received="none",
        )
    work_dir = pathlib.Path(config.work_dir)
    work_dir.mkdir(parents=True, exist_ok=True)
    architecture = work_dir / "albert_config.json"
    architecture.write_text(json.dumps(dataclasses.asdict(weights.config)))
    train_file = work_dir / "train.jsonl"
    questions = first_questions(
        pathlib.Path(config.data_dir), config.examples_per_class
    )
    train_file.write_text("\n".join(questions) + "\n")
    starts = {
        "pretrained": (
            f"--init_checkpoint={config.init_checkpoint}",
            f"--learning_rate={config.learning_rate}",
        ),
        "from scratch": (
            "--from_scratch",
            f"--albert_config_file={architecture}",
            f"--init_vocabulary={weights.vocabulary}",
            "--learning_rate="
            f"{config.scratch_learning_rate or config.learning_rate}",
        ),
    }
    accuracies = {
        name: _run(config, train_file, work_dir / name.replace(" ", "-"), start)
        for name, start in starts.items()
    }
    _print_table(config, accuracies)


def first_questions(
    data_dir: pathlib.Path, examples_per_class: int
) -> list[str]:
    """The first training questions of each class, as lines of JSON.

    Args:
        data_dir: Directory with train.jsonl.
        examples_per_class: Number of questions; 0 is all.
    """
    lines = (data_dir / "train.jsonl").read_text().splitlines()
    if not examples_per_class:
        return lines
    counts: collections.Counter[str] = collections.Counter()
    kept = []
    for line in lines:
        category = json.loads(line)["category"]
        counts[category] += 1
        if counts[category] <= examples_per_class:
            kept.append(line)
    return kept


def _run(
    config: BenchmarkConfig,
    train_file: pathlib.Path,
    output_dir: pathlib.Path,
    start: tuple[str, ...],
) -> list[float]:
    """Runs the command; returns the accuracy of each seed."""
    command = (
        *(sys.executable, "-m", "albert_tf.run_finetuning"),
        "--task=classification",
        "--label_column=category",
        f"--train_file={train_file}",
        f"--dev_file={pathlib.Path(config.data_dir) / 'test.jsonl'}",
        f"--output_dir={output_dir}",
        f"--num_runs={config.num_runs}",
        f"--num_train_steps={config.num_train_steps}",
        f"--num_warmup_steps={config.num_train_steps // 10}",
        f"--save_checkpoints_steps={config.num_train_steps}",
        f"--global_batch_size={config.global_batch_size}",
        f"--max_seq_length={config.max_seq_length}",
        *start,
    )
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if finished.returncode:
        sys.exit(finished.returncode)  # the command has said why
    scores = json.loads(finished.stdout)
    return [run["accuracy"] for run in scores.get("runs", [scores])]


def _print_table(
    config: BenchmarkConfig, accuracies: dict[str, list[float]]
) -> None:
    names = [f"seed {number}" for number in range(1, config.num_runs + 1)]
    print(f"| start | {' | '.join(names)} | median | best |")
    print("|---" * (len(names) + 3) + "|")
    for name, values in accuracies.items():
        columns = [*values, statistics.median(values), max(values)]
        print(f"| {name} | {' | '.join(f'{v:.1%}' for v in columns)} |")


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
