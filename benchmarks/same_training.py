"""Compares training with the same training in PyTorch, step by step.

    python -m benchmarks.same_training

docs/benchmarks.md has the commands that build the records. Trains a small
model on 128 tokens in float32 without dropout: with the trainer, and with a
reference in PyTorch, which is Hugging Face's ALBERT with LAMB and AdamW from
the papers (`tests/helpers/pytorch_training.py`). Both begin with the same
weights and read the same batches. Prints a Markdown table.
"""

import dataclasses
import importlib
import pathlib
import sys

from albert_tf import config as settings
from albert_tf.config import flags, setting
from albert_tf.sweeps.results import table

# To import tests/helpers, which the tests of the same comparison use, too.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

RATES = {"lamb": 0.01, "adamw": 0.001}
HEADER = (
    "optimizer",
    "masked-LM loss",
    "sentence-order loss",
    "largest relative difference of a loss",
    "difference of the weights, relative to their change",
)


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(settings.Config):
    """Model, data and length of the training."""

    albert_config_file: str = setting(
        "configs/models/albert_demo.json", "Architecture, a JSON file."
    )
    input_file: tuple[str, ...] = setting(
        ("build/same_training/records/train/*.tfrecord",),
        "Training records with static masks, for sentence order, of 128 tokens "
        "and at most 20 masked tokens: comma-separated files or globs.",
    )
    num_train_steps: int = setting(
        200, "Number of training steps.", at_least=20
    )


def main(config: BenchmarkConfig) -> None:
    """Trains twice with each optimizer, and prints the results."""
    # Imported here so that --help answers at once.
    training = importlib.import_module("tests.helpers.paired_training")

    rows = []
    for optimizer, rate in RATES.items():
        run = settings.PretrainingConfig(
            model=settings.ModelConfig.from_json_file(
                config.albert_config_file
            ),
            data=settings.DataConfig(
                input_file=config.input_file,
                max_seq_length=128,
                max_predictions_per_seq=20,
                global_batch_size=8,
            ),
            optimizer=settings.OptimizerConfig(
                optimizer=optimizer,
                learning_rate=rate,
                num_warmup_steps=config.num_train_steps // 10,
            ),
            distribution=settings.DistributionConfig(strategy="one_device"),
            training=settings.TrainingConfig(
                num_train_steps=config.num_train_steps
            ),
        )
        ours = training.train(run)
        theirs = training.train_in_pytorch(run, ours.initial)
        ends = theirs.losses[0], theirs.losses[-10:].mean(axis=0)
        rows.append(
            [
                optimizer,
                *(
                    f"{first:.3f} -> {last:.3f}"
                    for first, last in zip(*ends, strict=True)
                ),
                f"{training.loss_differences(ours, theirs).max():.1e}",
                f"{training.weight_difference(ours, theirs):.1e}",
            ]
        )
    print(table(HEADER, rows), end="")


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
