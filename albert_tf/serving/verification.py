"""Compares a converted model with the one in TensorFlow, on real text."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert_tf.config import FinetuningConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.records.features import CLS_ID, MASK_ID, PAD_ID, SEP_ID
from albert_tf.records.questions import make_p_mask
from albert_tf.records.tokenization import Tokenizer
from albert_tf.serving.kinds import KINDS

_MASKED = 0.15  # of the tokens of a text, as in pretraining
_MAX_MASKS = 8  # of a text; each has as many outputs as there are pieces

# The largest difference of an output of exact numbers, relative to the largest
# value. Of others, the smallest fraction of equal answers.
_TOLERANCE = 1e-3
_LEAST_AGREEMENT = 0.5

# Outputs whose largest entry is an answer.
_SCORES = ("log_probabilities", "probabilities", "start_logits", "end_logits")

Arrays = dict[str, np.ndarray]


class Comparison(NamedTuple):
    """How a model answers, beside the one in TensorFlow.

    Attributes:
        largest_difference: Of a number at a token.
        equal_answers: Fraction of classes, choices, tags, ends of spans, or
            best pieces of masks; None of values.
    """

    largest_difference: float
    equal_answers: float | None


def make_samples(
    run: PretrainingConfig,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    batch_size: int = 1,
) -> list[Arrays]:
    """The inputs of the model of a run: int32 arrays by name.

    The choices of a text, or the second text of a pair, are the texts after it.
    Texts have masks for a pretrained model.
    """
    length = run.data.max_seq_length
    samples = []
    for begin in range(0, len(texts), batch_size):
        first = list(texts[begin : begin + batch_size])
        if not isinstance(run, FinetuningConfig):
            inputs = tokenizer.encode(first, None, length)._asdict()
            samples.append(_mask(inputs, np.random.default_rng(begin)))
            continue
        head = run.head
        kind = KINDS[head.kind]
        choices = kind.choices(head)
        (count,) = choices or (1,)
        second: list[str] | None = [
            texts[(begin + i + number) % len(texts)]
            for i in range(len(first))
            for number in range(1, count + 1)
        ]
        shape = len(first), count, -1
        if choices:
            first = [text for text in first for _ in range(count)]
        elif not (kind.has_question or run.task.has_pairs):
            second = None
        inputs = tokenizer.encode(first, second, length)._asdict()
        if choices:
            inputs = {k: v.reshape(shape) for k, v in inputs.items()}
        if head.is_beam:
            inputs["p_mask"] = make_p_mask(inputs["segment_ids"])
        samples.append(inputs)
    return samples


def _mask(inputs: Arrays, rng: np.random.Generator) -> Arrays:
    """Masks as many tokens of each text."""
    ids = inputs["input_ids"]
    special = np.isin(ids, (PAD_ID, CLS_ID, SEP_ID))
    ordinary = [np.flatnonzero(~row) for row in special]
    ordinary = [found if len(found) else np.array([0]) for found in ordinary]
    count = min(max(1, round(_MASKED * min(map(len, ordinary)))), _MAX_MASKS)
    positions = np.sort([rng.choice(o, count, replace=False) for o in ordinary])
    np.put_along_axis(ids, positions, MASK_ID, 1)
    return inputs | {"masked_lm_positions": positions.astype(np.int32)}


def run_all(
    call: Callable[..., Any], samples: Sequence[Arrays]
) -> list[Arrays]:
    """The outputs of all samples."""
    return [
        {name: np.array(values) for name, values in call(**inputs).items()}
        for inputs in samples
    ]


def compare(
    name: str,
    samples: Sequence[Arrays],
    expected: Sequence[Arrays],
    found: Sequence[Arrays],
    *,
    is_exact: bool,
    remedy: str,
) -> Comparison:
    """Compares outputs with those in TensorFlow, and refuses wrong ones.

    Args:
        name: What the model is, for the error.
        is_exact: Whether its numbers are float32.
        remedy: Of a model that is wrong.
    """
    differences, equal, largest = [0.0], [], 1.0
    for sample, one, other in zip(samples, expected, found, strict=True):
        is_token = sample["input_mask"] > 0
        for key in one.keys() - {"labels"}:
            values, others = one[key], other[key]
            is_number = values.dtype.kind == "f"
            if key in ("start_logits", "end_logits"):
                values, others = (
                    np.where(is_token, scores, -1e9)
                    for scores in (values, others)
                )
            elif values.shape[:2] == is_token.shape:
                values, others = values[is_token], others[is_token]
            if is_number:
                differences.append(np.abs(values - others).max())
                largest = max(largest, np.abs(values).max())
            if key in _SCORES and values.ndim > 1:
                values, others = values.argmax(-1), others.argmax(-1)
            elif is_number:
                continue
            elif values.ndim > 1:  # the best first
                values, others = values[..., 0], others[..., 0]
            equal += (values == others).ravel().tolist()
    difference = float(np.max(differences))
    agreement = float(np.mean(equal)) if equal else None
    fault = ""
    if not math.isfinite(difference):
        fault = "NaN or infinity in its outputs"
    elif is_exact and difference > _TOLERANCE * largest:
        fault = f"outputs that differ by {difference:.2g}"
    elif agreement is not None and agreement < _LEAST_AGREEMENT:
        fault = f"{agreement:.1%} equal answers"
    if fault:
        raise UserError(
            f"{name} must answer like the model in TensorFlow",
            received=fault,
            remedy=remedy,
        )
    return Comparison(difference, agreement)
