"""The pretraining metrics, computed from sums over examples.

The names are those of google-research/albert. `sentence_order_loss` and
`sentence_order_accuracy` are also the names for next-sentence prediction.
"""

from collections.abc import Mapping

import tensorflow as tf

# Development-set accuracies of ALBERT-base after 125,000 steps at batch 4096
# (Lan et al., 2020, Table 5), by sentence objective.
PAPER_REFERENCE = {
    "sop": {"masked_lm_accuracy": 0.540, "sentence_order_accuracy": 0.865},
    "nsp": {"masked_lm_accuracy": 0.545, "sentence_order_accuracy": 0.905},
    "none": {"masked_lm_accuracy": 0.549},
}


# Accuracies on records of another sentence objective, by the objectives of the
# model and of the records. A model without a sentence objective has no sentence
# head; the paper does not say how it measured the accuracies of such a model.
PAPER_CROSS_REFERENCE = {
    ("none", "nsp"): 0.524,
    ("none", "sop"): 0.533,
    ("nsp", "sop"): 0.520,
    ("sop", "nsp"): 0.789,
}


def names(sentence_objective: str) -> tuple[str, ...]:
    """The keys of `means`, by sentence objective."""
    masked_lm = ("loss", "masked_lm_loss", "masked_lm_accuracy")
    if sentence_objective == "none":
        return masked_lm
    return (*masked_lm, "sentence_order_loss", "sentence_order_accuracy")


def means(sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Computes losses in nats and accuracies from 0 to 1.

    Args:
        sums: `losses.pretraining_sums`, added up over any batches.

    Returns:
        float32 scalars: masked_lm_loss, masked_lm_accuracy and, with a
        sentence objective, sentence_order_loss, sentence_order_accuracy;
        loss is the sum of both losses.
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


def describe(values: Mapping[str, float], sentence_objective: str) -> str:
    """Formats metrics as one line of text.

    Example:
        >>> values = {"masked_lm_loss": 4.0, "masked_lm_accuracy": 0.281}
        >>> describe(values, "none")
        'mlm 4.000 (28.1%)'
    """
    parts = [
        f"mlm {values['masked_lm_loss']:.3f} "
        f"({values['masked_lm_accuracy']:.1%})"
    ]
    if "sentence_order_loss" in values:
        parts.append(
            f"{sentence_objective} {values['sentence_order_loss']:.3f} "
            f"({values['sentence_order_accuracy']:.1%})"
        )
    return ", ".join(parts)


def describe_reference(
    sentence_objective: str, objective_of_records: str = ""
) -> str:
    """Formats the accuracies of the paper, which used other data.

    Args:
        sentence_objective: Sentence objective of the model.
        objective_of_records: Sentence objective of the held-out records; "" if
            it is that of the model.

    Example:
        >>> describe_reference("sop", "nsp")
        'paper, base after 125k steps (Table 5): mlm 54.0%, nsp 78.9% accuracy'
    """
    accuracies = PAPER_REFERENCE[sentence_objective]
    parts = [f"mlm {accuracies['masked_lm_accuracy']:.1%}"]
    task = objective_of_records or sentence_objective
    accuracy = PAPER_CROSS_REFERENCE.get(
        (sentence_objective, task), accuracies.get("sentence_order_accuracy")
    )
    if accuracy is not None:
        parts.append(f"{task} {accuracy:.1%}")
    return (
        f"paper, base after 125k steps (Table 5): {', '.join(parts)} accuracy"
    )
