"""Compares training with the same training in PyTorch, step by step.

    python -m benchmarks.same_training

docs/benchmarks.md has the commands that build the records. Trains a small
model on 128 tokens in float32 without dropout: with the trainer, and with a
reference in PyTorch, which is Hugging Face's ALBERT with LAMB and AdamW from
the papers (`tests/helpers/pytorch_training.py`). Both begin with the same
weights and read the same batches. A third training corrects the bias of the
moments, as PyTorch's own AdamW does, to show how much such a difference
matters. Prints a Markdown table, and draws the losses and their relative
differences. Takes about ten minutes on two cores.
"""

import dataclasses
import importlib
import io
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from albert_tf import config as settings
from albert_tf.config import flags, setting
from albert_tf.io import files

# To import tests/helpers, which the tests of the same comparison use, too.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

RATES = {"lamb": 0.01, "adamw": 0.001}
TITLES = {"lamb": "LAMB", "adamw": "AdamW"}
LOSSES = ("Masked-LM loss (nats)", "Sentence-order loss (nats)")
GOAL = 1e-3
OURS, THEIRS, OTHER = "#8ac4ea", "#0b3c5d", "#d95f02"
STYLE: dict[Any, Any] = {
    "font.size": 8,
    # Written into every text element.
    "font.sans-serif": ["DejaVu Sans", "Helvetica"],
    "svg.fonttype": "none",  # text, not outlines
    "svg.hashsalt": "same_training",  # reproducible ids
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(settings.Config):
    """Model, data and length of the training."""

    albert_config_file: str = setting(
        "configs/models/albert_demo.json", "Architecture, a JSON file."
    )
    input_file: tuple[str, ...] = setting(
        ("build/same_training/records/train/*.tfrecord",),
        "Training records with static masks, for sentence order: "
        "comma-separated files or globs.",
    )
    max_seq_length: int = setting(
        128, "Number of tokens in an example, as in the records.", at_least=1
    )
    max_predictions_per_seq: int = setting(
        20,
        "Largest number of masked tokens in an example, as in the records.",
        at_least=1,
    )
    global_batch_size: int = setting(
        8, "Number of examples in a step.", at_least=1
    )
    num_train_steps: int = setting(
        200, "Number of training steps.", at_least=20
    )
    output_file: str = setting("docs/same_training.svg", "SVG file to write.")


class Comparison(NamedTuple):
    """Results of the trainer, and of PyTorch with and without bias correction.

    Differences are relative; those of weights, to the change of the weights.
    """

    ours: np.ndarray  # `LOSSES` by step, `(steps, 2)`
    theirs: np.ndarray
    same: np.ndarray  # differences between trainer and PyTorch, `(steps, 2)`
    apart: np.ndarray  # between PyTorch with and without bias correction
    same_weights: float
    apart_weights: float


def main(config: BenchmarkConfig) -> None:
    """Trains three times with each optimizer, draws and prints the results."""
    # Imported here so that --help answers at once.
    training = importlib.import_module("tests.helpers.paired_training")

    compared = {}
    for optimizer in RATES:
        run = _make_run(config, optimizer)
        ours = training.train(run)
        theirs = training.train_in_pytorch(run, ours.initial)
        other = training.train_in_pytorch(
            run, ours.initial, bias_correction=True
        )
        compared[optimizer] = Comparison(
            ours.losses,
            theirs.losses,
            training.loss_differences(ours, theirs),
            training.loss_differences(other, theirs),
            training.weight_difference(ours, theirs),
            training.weight_difference(other, theirs),
        )
    picture = _draw(compared)
    files.write_bytes(config.output_file, picture)
    _print_table(compared)
    print(f"\n{config.output_file}: {len(picture):,} bytes")


def _make_run(
    config: BenchmarkConfig, optimizer: str
) -> settings.PretrainingConfig:
    return settings.PretrainingConfig(
        model=settings.ModelConfig.from_json_file(config.albert_config_file),
        data=settings.DataConfig(
            input_file=config.input_file,
            max_seq_length=config.max_seq_length,
            max_predictions_per_seq=config.max_predictions_per_seq,
            global_batch_size=config.global_batch_size,
        ),
        optimizer=settings.OptimizerConfig(
            optimizer=optimizer,
            learning_rate=RATES[optimizer],
            num_warmup_steps=config.num_train_steps // 10,
        ),
        distribution=settings.DistributionConfig(strategy="one_device"),
        training=settings.TrainingConfig(
            num_train_steps=config.num_train_steps
        ),
    )


def _print_table(compared: Mapping[str, Comparison]) -> None:
    print(
        "| optimizer | masked-LM loss | sentence-order loss "
        "| differences: masked-LM | sentence-order | weights "
        "| with bias correction: losses | weights |"
    )
    print("|---" * 8 + "|")
    for optimizer, comparison in compared.items():
        ends = zip(
            comparison.theirs[0],
            comparison.theirs[-10:].mean(axis=0),
            strict=True,
        )
        cells = [
            TITLES[optimizer],
            *(f"{first:.3f} to {last:.3f}" for first, last in ends),
            *(f"{value:.1e}" for value in comparison.same.max(axis=0)),
            f"{comparison.same_weights:.1e}",
            f"{comparison.apart.max():.1e}",
            f"{comparison.apart_weights:.1e}",
        ]
        print(f"| {' | '.join(cells)} |")


def _draw(compared: Mapping[str, Comparison]) -> bytes:
    """Losses above, relative differences below; a column per optimizer."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 6.4), layout="constrained")
        rows = figure.subplots(3, len(compared), sharex=True, sharey="row")
        for column, (optimizer, comparison) in zip(
            rows.T, compared.items(), strict=True
        ):
            column[0].set_title(TITLES[optimizer])
            for task, name in enumerate(LOSSES):
                axes, thin = column[task], {"linewidth": 0.8, "ls": "--"}
                ours, theirs = comparison.ours, comparison.theirs
                axes.plot(ours[:, task], OURS, linewidth=3, label="albert_tf")
                axes.plot(theirs[:, task], THEIRS, label="PyTorch", **thin)
                axes.set_ylabel(name)
            _draw_differences(column[2], comparison)
        for axes in rows[:, 1:].flat:
            axes.set_ylabel("")
        rows[0, 0].legend(frameon=False)
        low, high = rows[2, 0].get_ylim()
        rows[2, 0].set_ylim(low, high * 1000)  # room for the legend
        rows[2, 0].legend(frameon=False, loc="upper left")
        file = io.BytesIO()
        nothing: dict[str, Any] = dict.fromkeys(("Date", "Creator"))
        figure.savefig(file, format="svg", metadata=nothing)
    # Cuts coordinates to one decimal place; the difference is not visible.
    return re.sub(
        rb' d="[^"]*"',
        lambda path: re.sub(
            rb"(\d\.\d)\d+", rb"\1", path[0].replace(b" \nL ", b"L")
        ),
        file.getvalue(),
    )


def _draw_differences(axes: Axes, comparison: Comparison) -> None:
    # A difference of 0 has no logarithm.
    smallest = np.finfo(np.float32).eps / 4
    for values, color, label in (
        (comparison.same, THEIRS, "albert_tf and PyTorch"),
        (comparison.apart, OTHER, "PyTorch, with and without bias correction"),
    ):
        largest = np.maximum(values.max(axis=1), smallest)
        axes.plot(largest, color=color, linewidth=0.8, label=label)
    axes.axhline(GOAL, color="#858585", linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.locator_params(axis="x", nbins=5)
    axes.set_ylabel("Relative difference")


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
