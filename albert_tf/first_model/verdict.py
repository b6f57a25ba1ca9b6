"""What a first model is worth: the verdict, and the page that shows it."""

import base64
import html
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert_tf.io import files

WORSE = "worse than the frequency of the pieces"
BETTER = "better than the frequency of the pieces, worse than 5-grams"
BEST = "better than 5-grams"

# With fewer steps, a small model from random weights has learned little more
# than how frequent the pieces are.
FEW_STEPS = 3000
# Differences of losses, in nats, above which a model knows its text by heart,
# and above which twice the time is worth it.
BY_HEART, FALLING = 0.5, 0.1

_BEFORE = (
    "<tr><td>the initial model</td><td>{masked_lm_loss:.3f}</td>"
    "<td>{masked_lm_accuracy:.1%}</td></tr>"
)
_TEMPLATE = pathlib.Path(__file__).with_name("page.html")


class Verdict(NamedTuple):
    """What a model is worth.

    Attributes:
        text: WORSE, BETTER or BEST.
        advice: What to do next, as a sentence.
    """

    text: str
    advice: str


def judge(
    loss: float,
    figures: dict[str, Any],
    training: Sequence[Sequence[dict[str, Any]]],
    minutes: float,
    before: float | None = None,
) -> Verdict:
    """Compares a model with simpler ones, and reads its curves.

    Args:
        loss: Of the held-out examples, in nats.
        figures: `unigram_loss` and `five_gram_loss` of the same examples.
        training: The lines of the log of each stage, of which the first has a
            constant learning rate, and the last ends with the model.
        minutes: Time that the model had.
        before: The loss of the initial model, if any.
    """
    text = WORSE
    if loss < figures["unigram_loss"]:
        text = BEST if loss < figures["five_gram_loss"] else BETTER
    num_steps = sum(rows[-1]["step"] for rows in training)
    end = training[-1][-max(1, len(training[-1]) // 10) :]
    on_text = float(np.mean([row["masked_lm_loss"] for row in end]))
    gain = gain_of_doubling([row["masked_lm_loss"] for row in training[0]])
    if before is not None and loss >= before:
        advice = (
            f"The initial model is better (loss {before:.2f}): use that one, "
            "or give more text."
        )
    elif text != BEST and num_steps < FEW_STEPS:
        needed = math.ceil(minutes * max(2, FEW_STEPS / num_steps))
        advice = f"It had only {num_steps:,} steps: try --minutes={needed}."
    elif loss - on_text > BY_HEART:
        advice = (
            f"It learns the text by heart (loss {on_text:.2f} on it, "
            f"{loss:.2f} on held-out text): give more text, not more minutes."
        )
    elif gain > FALLING:
        advice = (
            "Its loss is still falling: try "
            f"--minutes={math.ceil(2 * minutes)}, which may gain about "
            f"{gain:.1f} nats."
        )
    else:
        advice = "More minutes would gain little: give more text."
    if text == WORSE:
        advice += " Or continue a trained model, which for English is best: "
        advice += "--init_checkpoint=albert_mini_en, with another --output_dir."
    return Verdict(text, advice)


def gain_of_doubling(losses: Sequence[float]) -> float:
    """How much the loss falls while the number of steps doubles.

    Args:
        losses: At equal distances, at a constant learning rate.

    Example:
        >>> steps = np.arange(1, 1001)
        >>> round(gain_of_doubling(6 - 0.3 * np.log2(steps)), 2)
        0.3
    """
    if len(losses) < 10:
        return 0.0
    size = len(losses) // 10
    middle = losses[len(losses) // 2 - size : len(losses) // 2 + size]
    fall = np.mean(middle) - np.mean(losses[-size:])
    return float(fall / np.log2(0.95 / 0.5))


def draw(
    training: Mapping[str, Sequence[dict[str, Any]]],
    summary: dict[str, Any],
    path: str,
) -> None:
    """Draws the loss against the minutes of training, as PNG.

    Args:
        training: The lines of the log of each stage, by name and in order.
        summary: The content of summary.json.
        path: Of the picture.
    """
    # Slow to import.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    minutes = 0.0
    for name, rows in training.items():
        seconds = np.cumsum([row["loop_seconds"] for row in rows])
        losses = np.array([row["masked_lm_loss"] for row in rows])
        # Means over 2 % of the lines.
        width = max(1, len(rows) // 50)
        means = np.convolve(losses, np.ones(width) / width, "valid")
        axes.plot(minutes + seconds[width - 1 :] / 60, means, label=name)
        minutes += seconds[-1] / 60
    found = summary["masked_lm_loss"]
    label = f"held-out text: {found:.2f}"
    axes.plot([minutes], [found], "o", color="black", label=label)
    for name, text in (
        ("unigram_loss", "frequency of the pieces"),
        ("five_gram_loss", "5-grams"),
    ):
        axes.axhline(summary[name], color="gray", linestyle=":")
        axes.text(0, summary[name] + 0.02, f"{text}: {summary[name]:.2f}")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("masked-LM loss, nats")
    axes.legend()
    figure.savefig(path, dpi=110)


def write_page(
    directory: str,
    summary: dict[str, Any],
    facts: Sequence[str],
    filled: str,
    words: Sequence[str],
    commands: Sequence[str],
) -> None:
    """Writes index.html, which needs no network.

    Args:
        directory: Of the first model; it has curves.png.
        summary: The content of summary.json.
        facts: Of the plan.
        filled: Masked sentences with the guesses of the model.
        words: The masked words.
        commands: The command line of each stage.
    """
    curves = pathlib.Path(f"{directory}/curves.png").read_bytes()
    before = summary["before"]
    items = [f"<li>{html.escape(fact)}</li>" for fact in facts]
    page = _TEMPLATE.read_text().format(
        **summary,
        directory=html.escape(directory),
        before_row=_BEFORE.format(**before) if before else "",
        more_minutes=2 * math.ceil(summary["minutes"]),
        facts="".join(items),
        filled=html.escape(filled),
        words=html.escape("\n".join(words)),
        curves=base64.b64encode(curves).decode(),
        commands=html.escape("\n\n".join(commands)),
    )
    files.write_text(f"{directory}/index.html", page)
