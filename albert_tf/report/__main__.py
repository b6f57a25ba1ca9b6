r"""Draw the curves of runs, as a picture, a page, or both.

    python -m albert_tf.report \
      --run_dirs=runs/base,runs/base_no_dropout \
      --output_file=build/report.html,build/curves.png

The picture has panels for losses, accuracies, learning rate, norms and speed,
in training and evaluation; --metrics selects some of them. It marks the steps
at which a run was restarted, rolled back, or changed dropout or data. The page
adds tables of the runs, their settings and their events, in one file that needs
no network.
"""

from typing import TYPE_CHECKING

from albert_tf.cluster import versions
from albert_tf.config import ReportConfig, flags

if TYPE_CHECKING:
    from albert_tf.report.runs import RunHistory


def summarize(run: "RunHistory") -> str:
    """Returns a run's newest held-out metrics and the unigram entropy.

    For a run of fine-tuning, the metrics are loss and scores of its task.
    """
    from albert_tf.training.pretraining import describe

    newest = {
        name: curve.last[1]
        for (split, name), curve in run.curves.items()
        if split == "eval"
    }
    if not newest:
        return f"{run.run_dir}: not evaluated yet"
    step = int(run.curve("eval", "loss").last[0])
    text = f"{run.run_dir}, step {step}, held-out set: "
    if "masked_lm_loss" not in newest:
        scores = (f"{name} {value:.4g}" for name, value in newest.items())
        return text + ", ".join(scores)
    objective = run.settings.get("training.sentence_objective", "sop")
    text += describe(newest, objective)
    if "unigram_entropy_nats" in run.records:
        entropy = run.records["unigram_entropy_nats"]
        text += f"; unigram entropy of the corpus {entropy:.3f}"
    return text


def main(config: ReportConfig) -> None:
    """Draws the runs that the flags name."""
    config.require("run_dirs", "output_file")
    versions.import_tensorflow()
    from albert_tf.io.files import write_bytes
    from albert_tf.report.curves import picture
    from albert_tf.report.page import page
    from albert_tf.report.runs import read_runs

    runs = read_runs(config.run_dirs)
    for output_file in config.output_file:
        if output_file.endswith(".html"):
            content = page(runs, config.metrics).encode()
        else:
            content = picture(runs, config.metrics)
        write_bytes(output_file, content)
    for run in runs:
        print(summarize(run))
    for output_file in config.output_file:
        kind = "page" if output_file.endswith(".html") else "curves"
        print(f"{kind}: {output_file}")


if __name__ == "__main__":
    flags.run(main, ReportConfig)
