r"""Compares fine-tuning of pretrained models with training from scratch.

    python -m benchmarks.finetune_banking77 \
      --init_checkpoint=runs/questions,models/albert_mini_en \
      --work_dir=build/banking77 --examples_per_class=10

Runs `python -m albert_tf.run_finetuning` on Banking77, questions of a bank's
customers in 77 classes ([Casanueva et al.,
2020](https://arxiv.org/abs/2003.04807)), which are in
`data_prep/sample_questions`. One kind of run starts from each pretrained model,
and one from random weights, with the same architecture, vocabulary, settings
and seeds. `--examples_per_class=10` trains on the first ten questions of each
class. Prints two Markdown tables: the accuracy on the test set after the last
step; and how much higher it is with each pretrained model than from scratch, as
a mean over the seeds. The same command continues an interrupted benchmark.
"""

import collections
import dataclasses
import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from albert_tf.config import Config, flags, setting
from albert_tf.errors import UserError
from albert_tf.sweeps.results import spread, table

_SCRATCH = "from scratch"


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
    max_seq_length: int = setting(
        32, "Number of tokens after which a question is cut.", at_least=3
    )
    num_train_steps: int = setting(
        1000, "Number of training steps of a run.", at_least=1
    )
    global_batch_size: int = setting(
        16, "Number of examples in a step.", at_least=1
    )
    learning_rate: float = setting(
        3e-4, "Peak learning rate of the pretrained models.", at_least=0
    )
    scratch_learning_rate: float = setting(
        0.0,
        "Peak learning rate from scratch, which usually needs a higher one. 0: "
        "the same as learning_rate.",
        at_least=0,
    )


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
    questions = first_questions(
        pathlib.Path(config.data_dir), config.examples_per_class
    )
    train_file.write_text("\n".join(questions) + "\n")
    starts = {
        _SCRATCH: (
            "--from_scratch",
            f"--albert_config_file={architecture}",
            f"--init_vocabulary={weights.vocabulary}",
            "--learning_rate="
            f"{config.scratch_learning_rate or config.learning_rate}",
        ),
    } | {
        model: (
            f"--init_checkpoint={model}",
            f"--learning_rate={config.learning_rate}",
        )
        for model in config.init_checkpoint
    }
    accuracies = {
        name: _run(config, train_file, work_dir / f"start-{number}", start)
        for number, (name, start) in enumerate(starts.items(), start=1)
    }
    print(tables(accuracies), end="")


def first_questions(
    data_dir: pathlib.Path, examples_per_class: int
) -> list[str]:
    """The first lines of train.jsonl of each class; 0 is all lines."""
    counts: collections.Counter[str] = collections.Counter()
    kept = []
    for line in (data_dir / "train.jsonl").read_text().splitlines():
        category = json.loads(line)["category"]
        counts[category] += 1
        if counts[category] <= (examples_per_class or math.inf):
            kept.append(line)
    return kept


def _run(
    config: BenchmarkConfig,
    train_file: pathlib.Path,
    output_dir: pathlib.Path,
    start: tuple[str, ...],
) -> list[float]:
    """Runs the command with each seed; returns their accuracies."""
    accuracies = []
    for seed in range(1, config.num_runs + 1):
        command = (
            *(sys.executable, "-m", "albert_tf.run_finetuning"),
            "--task=classification",
            "--label_column=category",
            f"--train_file={train_file}",
            f"--dev_file={pathlib.Path(config.data_dir) / 'test.jsonl'}",
            f"--output_dir={output_dir}/run-{seed}",
            f"--seed={seed}",
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
        accuracies.append(json.loads(finished.stdout)["accuracy"])
    return accuracies


def tables(accuracies: Mapping[str, Sequence[float]]) -> str:
    """Two Markdown tables: accuracies by seed, and differences from scratch.

    With one seed, there is only the first, without mean and deviation.
    """
    scratch = accuracies[_SCRATCH]
    spreads = {name: spread(values) for name, values in accuracies.items()}
    several = len(scratch) > 1
    header = [f"seed {number}" for number in range(1, len(scratch) + 1)]
    shown = ["mean", "standard_deviation"] * several
    text = table(
        ["start", *header, *["mean", "deviation"] * several],
        [
            [
                name,
                *(f"{value:.1%}" for value in values),
                *(f"{spreads[name][key]:.1%}" for key in shown),
            ]
            for name, values in accuracies.items()
        ],
    )
    if not several:
        return text
    rows = []
    for name in [name for name in accuracies if name != _SCRATCH]:
        pairs = zip(accuracies[name], scratch, strict=True)
        found = spread([ours - theirs for ours, theirs in pairs])
        error = f"{found['standard_error']:.1%}"
        rows.append([f"{name} - {_SCRATCH}", f"{found['mean']:+.1%}", error])
    return f"{text}\n{table(['difference', 'mean', 'standard error'], rows)}"


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
