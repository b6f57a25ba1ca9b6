"""Compares training with the same training in PyTorch, step by step.

    python -m benchmarks.same_training

docs/benchmarks.md has the commands that build the records. Trains a small
model on 128 tokens in float32 without dropout: with the trainer, and with a
reference in PyTorch, which is Hugging Face's ALBERT with LAMB and AdamW from
the papers (`tests/helpers/pytorch_training.py`). Both begin with the same
weights and read the same batches. Prints a Markdown table.
"""

import importlib
import pathlib
import sys

from albert_tf import config as settings
from albert_tf.config import Config, flags
from albert_tf.sweep import table

# To import tests/helpers, which the tests of the same comparison use, too.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

RATES = {"lamb": 0.01, "adamw": 0.001}
NUM_STEPS = 200
HEADER = (
    "optimizer",
    "masked-LM loss",
    "sentence-order loss",
    "largest relative difference of a loss",
    "difference of the weights, relative to their change",
)


def main(_: Config) -> None:
    """Trains twice with each optimizer, and prints the results."""
    # Imported here so that --help answers at once.
    training = importlib.import_module("tests.helpers.paired_training")

    rows = []
    for optimizer, rate in RATES.items():
        run = settings.PretrainingConfig(
            model=settings.ModelConfig.from_json_file(
                "configs/models/albert_demo.json"
            ),
            data=settings.DataConfig(
                input_file=("build/same_training/records/train/*.tfrecord",),
                max_seq_length=128,
                max_predictions_per_seq=20,
                global_batch_size=8,
            ),
            optimizer=settings.OptimizerConfig(
                optimizer=optimizer,
                learning_rate=rate,
                num_warmup_steps=NUM_STEPS // 10,
            ),
            distribution=settings.DistributionConfig(strategy="one_device"),
            training=settings.TrainingConfig(num_train_steps=NUM_STEPS),
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
    flags.run(main, Config)
