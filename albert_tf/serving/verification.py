"""Compares a model with other weights to that of float32, on real text."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import FinetuningConfig, PretrainingConfig
from albert_tf.config.task import MULTIPLE_CHOICE, QUESTION_ANSWERING
from albert_tf.errors import UserError
from albert_tf.records.features import MASK_ID
from albert_tf.records.tokenization import Tokenizer

_TEXTS = 8  # of different lengths, so that a batch has padding
_MASKS = 3  # of a text
_LEAST_AGREEMENT = 0.5


class Batch(NamedTuple):
    """Texts as a signature takes them: int32, in its order of inputs."""

    signature: str
    inputs: dict[str, tf.Tensor]


def make_batches(
    run: PretrainingConfig, tokenizer: Tokenizer, texts: Sequence[str]
) -> Iterator[Batch]:
    """Texts with masks, or the second of a pair is the next text."""
    signature = "serving_default"
    for begin in range(0, len(texts), _TEXTS):
        first = list(texts[begin : begin + _TEXTS])
        inputs: dict[str, Any] = make_inputs(
            run, tokenizer, first, [first[1:] + first[:1]]
        )
        if not isinstance(run, FinetuningConfig):
            signature = "fill_mask"
            inputs["masked_lm_positions"] = _mask(inputs)
        tensors = {k: tf.constant(v, tf.int32) for k, v in inputs.items()}
        yield Batch(signature, tensors)


def make_inputs(
    run: PretrainingConfig,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    others: Sequence[Sequence[str]],
) -> dict[str, np.ndarray]:
    """The inputs of the model of a run, int32, `(texts, length)`.

    Args:
        others: The second texts, for a model of pairs or questions; for each
            choice, those of the model, or less, which are repeated.
    """
    length = run.data.max_seq_length
    if not isinstance(run, FinetuningConfig):
        return tokenizer.encode(texts, None, length)._asdict()
    head = run.head
    if head.kind == MULTIPLE_CHOICE:
        choices = itertools.cycle(others)
        columns = [next(choices) for _ in range(head.num_choices)]
        chosen = [other for row in zip(*columns, strict=True) for other in row]
        first = [text for text in texts for _ in columns]
        rows = tokenizer.encode(first, chosen, length)._asdict()
        shape = len(texts), len(columns), -1
        return {k: v.reshape(shape) for k, v in rows.items()}
    has_pairs = run.task.has_pairs or head.kind == QUESTION_ANSWERING
    second = others[0] if has_pairs else None
    inputs = tokenizer.encode(texts, second, length)._asdict()
    if head.is_beam:
        inputs["p_mask"] = 1 - inputs["segment_ids"]
        inputs["p_mask"][:, 0] = 0
    return inputs


def _mask(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Masks tokens at positions that it returns, `(batch, masks)`."""
    ends = inputs["input_mask"].sum(1) - 2
    positions = np.linspace(np.minimum(1, ends), ends, _MASKS, axis=1)
    positions = positions.astype(np.int32)
    np.put_along_axis(inputs["input_ids"], positions, MASK_ID, 1)
    return positions


def compare(
    name: str,
    batches: Sequence[Batch],
    expected: Sequence[Mapping[str, tf.Tensor]],
    found: Sequence[Mapping[str, tf.Tensor]],
) -> dict[str, float]:
    """Compares answers, and refuses those that are wrong.

    Args:
        name: What was changed, for the error.

    Returns:
        Number of batches, largest difference of a number, and the fraction of
        equal answers: classes, choices, ends of spans, best pieces of masks.
    """
    differences, equal = [0.0], [True]
    for batch, one, other in zip(batches, expected, found, strict=True):
        is_token = batch.inputs["input_mask"].numpy() > 0
        for key in one.keys() - {"labels"}:
            values, others = one[key].numpy(), other[key].numpy()
            if key in ("start_logits", "end_logits"):
                best = [
                    np.where(is_token, scores, -np.inf).argmax(1)
                    for scores in (values, others)
                ]
                equal += (best[0] == best[1]).tolist()
            if values.shape[:2] == is_token.shape:
                values, others = values[is_token], others[is_token]
            if values.dtype.kind == "f":
                differences.append(np.abs(values - others).max())
                continue
            if key == "top_ids":
                values, others = values[..., 0], others[..., 0]
            equal += (values == others).ravel().tolist()
    difference, agreement = float(np.max(differences)), float(np.mean(equal))
    if not np.isfinite(difference) or agreement < _LEAST_AGREEMENT:
        raise UserError(
            f"a model with {name} must answer like that of float32",
            received=f"a difference of {difference:.2g}, and {agreement:.1%} "
            "equal answers",
            remedy="Export without these settings, or with weights that are "
            "finite and trained.",
        )
    logging.info(
        "%s: largest difference %.2g, %.1f %% equal answers in %d batches",
        *(name, difference, 100 * agreement, len(batches)),
    )
    return {
        "batches": len(batches),
        "largest_difference": difference,
        "equal_answers": agreement,
    }
