r"""Draw the curves of one run or several into one picture.

    python -m albert_tf.report \
      --run_dirs=build/demo/run --output_file=build/demo/curves.png

Loss and accuracy of training and of held-out records, learning rate, dropout.
"""

import posixpath
from collections.abc import Sequence
from typing import Any

import matplotlib
import tensorflow as tf

from albert_tf import flags, run_directory
from albert_tf.config import ReportConfig
from albert_tf.errors import UserError
from albert_tf.files import load_json_if_any
from albert_tf.metrics import PAPER_REFERENCE, describe
from albert_tf.run_log import METRICS_FILE, read_metrics

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt

# Key in metrics.jsonl, title of the panel; those with held-out lines first.
PANELS = (
    ("masked_lm_loss", "masked-LM loss (nats)"),
    ("sentence_order_accuracy", "sentence-order accuracy"),
    ("learning_rate", "learning rate"),
    ("dropout", "dropout"),
)


def draw(run_dirs: Sequence[str], output_file: str) -> None:
    """Writes the PNG.

    Loss and accuracy are drawn for training and held-out records, with the
    unigram entropy of the corpus as the line that a model must fall below.

    Args:
        run_dirs: `--output_dir` of each run.
        output_file: PNG, local or gs://.

    Raises:
        UserError: If a directory holds no metrics.
    """
    figure, grid = plt.subplots(2, 2, figsize=(11, 7), sharex=True)
    axes = dict(zip((key for key, _ in PANELS), grid.flat, strict=True))
    for key, title in PANELS:
        axes[key].set_title(title)
        axes[key].grid(alpha=0.3)
    for color, run_dir in enumerate(run_dirs):
        lines = read_metrics(run_dir)
        if not lines:
            raise UserError(
                f"run_dirs must hold {METRICS_FILE}", received=run_dir
            )
        _draw_run(axes, lines, posixpath.basename(run_dir), f"C{color}")
        entropy = _unigram_entropy(run_dir)
        if entropy is not None:
            axes["masked_lm_loss"].axhline(
                entropy, color=f"C{color}", linestyle=":"
            )
            axes["masked_lm_loss"].annotate(
                f"unigram entropy {entropy:.2f}",
                (0.98, entropy),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=8,
            )
    axes["sentence_order_accuracy"].axhline(
        PAPER_REFERENCE["sop"]["sentence_order_accuracy"],
        color="gray",
        linestyle=":",
        label="paper, base, 125k steps",
    )
    for axis in grid[1]:
        axis.set_xlabel("step")
    for axis in grid[0]:
        axis.legend(fontsize=8)
    figure.tight_layout()
    with tf.io.gfile.GFile(output_file, "wb") as file:
        figure.savefig(file, format="png", dpi=110)
    plt.close(figure)


def summarize(run_dir: str) -> str:
    """A run's newest held-out figures beside the unigram entropy.

    Args:
        run_dir: `--output_dir` of a run.
    """
    evaluations = [
        line for line in read_metrics(run_dir) if line["split"] == "eval"
    ]
    if not evaluations:
        return f"{run_dir}: not evaluated yet"
    newest = evaluations[-1]
    text = f"{run_dir}, step {newest['step']}, held out: {describe(newest)}"
    entropy = _unigram_entropy(run_dir)
    if entropy is not None:
        text += f"; unigram entropy of the corpus {entropy:.3f}"
    return text


def _draw_run(
    axes: dict[str, Any], lines: Sequence[dict], label: str, color: str
) -> None:
    for split, style in (("train", {"alpha": 0.5}), ("eval", {"marker": "o"})):
        for key, axis in axes.items():
            points = [
                (line["step"], line[key])
                for line in lines
                if line["split"] == split and key in line
            ]
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    color=color,
                    label=f"{label}, {split}",
                    **style,
                )


def _unigram_entropy(run_dir: str) -> float | None:
    path = posixpath.join(run_dir, run_directory.RECORDS_METADATA_FILE)
    metadata = load_json_if_any(path)
    return metadata["unigram_entropy_nats"] if metadata else None


def main(config: ReportConfig) -> None:
    """Draws the runs that the flags name."""
    config.require("run_dirs", "output_file")
    draw(config.run_dirs, config.output_file)
    for run_dir in config.run_dirs:
        print(summarize(run_dir))
    print(f"curves: {config.output_file}")


if __name__ == "__main__":
    flags.run(main, ReportConfig)
