r"""Compares fine-tuning of a pretrained model with training from scratch.

    git clone --depth=1 https://github.com/PolyAI-LDN/task-specific-datasets
    python -m benchmarks.finetune_banking77 \
      --data_dir=task-specific-datasets/banking_data \
      --init_checkpoint=runs/base --work_dir=build/banking77

Runs `python -m albert_tf.run_finetuning` on Banking77, which has 77 classes of
questions of a bank's customers ([Casanueva et al.,
2020](https://arxiv.org/abs/2003.04807)): from the pretrained model, and from
random weights with the same architecture, vocabulary, settings and seeds.
Prints a Markdown table with the accuracy on the test set after the last step.
The same command continues an interrupted benchmark.
"""

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
        "",
        "Directory with train.csv and test.csv of Banking77.",
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
    config.require("data_dir", "init_checkpoint", "work_dir")
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
    # Most questions are shorter than 64 tokens, and the longest than 128.
    length = min(128, weights.config.max_position_embeddings)
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
        name: _run(config, work_dir / name.replace(" ", "-"), length, start)
        for name, start in starts.items()
    }
    _print_table(config, accuracies)


def _run(
    config: BenchmarkConfig,
    output_dir: pathlib.Path,
    max_seq_length: int,
    start: tuple[str, ...],
) -> list[float]:
    """Runs the command; returns the accuracy of each seed."""
    data_dir = pathlib.Path(config.data_dir)
    command = (
        *(sys.executable, "-m", "albert_tf.run_finetuning"),
        "--task=classification",
        "--label_column=category",
        f"--train_file={data_dir / 'train.csv'}",
        f"--dev_file={data_dir / 'test.csv'}",
        f"--output_dir={output_dir}",
        f"--num_runs={config.num_runs}",
        f"--num_train_steps={config.num_train_steps}",
        f"--num_warmup_steps={config.num_train_steps // 10}",
        f"--save_checkpoints_steps={config.num_train_steps}",
        f"--global_batch_size={config.global_batch_size}",
        f"--max_seq_length={max_seq_length}",
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
