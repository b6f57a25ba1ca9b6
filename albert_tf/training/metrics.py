"""From sums over examples to the figures that a person watches.

The names are those of google-research/albert.
"""

from collections.abc import Mapping

import tensorflow as tf

# Development-set figures of ALBERT-base after 125,000 steps at batch 4096
# (Lan et al., 2020, Table 5), by sentence objective.
PAPER_REFERENCE = {
    "sop": {"masked_lm_accuracy": 0.540, "sentence_order_accuracy": 0.865},
    "nsp": {"masked_lm_accuracy": 0.545, "sentence_order_accuracy": 0.905},
    "none": {"masked_lm_accuracy": 0.549},
}


def names(sentence_objective: str) -> tuple[str, ...]:
    """The figures that `means` gives for a sentence objective."""
    masked_lm = ("loss", "masked_lm_loss", "masked_lm_accuracy")
    if sentence_objective == "none":
        return masked_lm
    return (*masked_lm, "sentence_order_loss", "sentence_order_accuracy")


def means(sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Losses in nats and accuracies from 0 to 1.

    Args:
        sums: As `losses.pretraining_sums`, over any number of examples.

    Returns:
        float32 scalars: masked_lm_loss, masked_lm_accuracy and, with a
        sentence objective, sentence_order_loss, sentence_order_accuracy;
        loss is the sum of the losses.
    """
    masked_lm_loss = _ratio(sums, "mlm", "loss")
    result = {
        "loss": masked_lm_loss,
        "masked_lm_loss": masked_lm_loss,
        "masked_lm_accuracy": _ratio(sums, "mlm", "correct"),
    }
    if "sentence_weight_sum" in sums:
        sentence_loss = _ratio(sums, "sentence", "loss")
        result |= {
            "loss": masked_lm_loss + sentence_loss,
            "sentence_order_loss": sentence_loss,
            "sentence_order_accuracy": _ratio(sums, "sentence", "correct"),
        }
    return result


def _ratio(
    sums: Mapping[str, tf.Tensor], task: str, quantity: str
) -> tf.Tensor:
    return tf.math.divide_no_nan(
        sums[f"{task}_{quantity}_sum"], sums[f"{task}_weight_sum"]
    )


def describe(figures: Mapping[str, float]) -> str:
    """One line of text, e.g. `mlm 4.012 (28.1 %), sop 0.601 (66.0 %)`."""
    parts = [
        f"mlm {figures['masked_lm_loss']:.3f} "
        f"({figures['masked_lm_accuracy']:.1%})"
    ]
    if "sentence_order_loss" in figures:
        parts.append(
            f"sop {figures['sentence_order_loss']:.3f} "
            f"({figures['sentence_order_accuracy']:.1%})"
        )
    return ", ".join(parts)


def describe_reference(sentence_objective: str) -> str:
    """The paper's figures for the same objective, on its own data."""
    figures = PAPER_REFERENCE[sentence_objective]
    parts = [f"mlm {figures['masked_lm_accuracy']:.1%}"]
    if "sentence_order_accuracy" in figures:
        parts.append(
            f"{sentence_objective} {figures['sentence_order_accuracy']:.1%}"
        )
    return (
        f"paper, base after 125k steps (Table 5): {', '.join(parts)} accuracy"
    )
