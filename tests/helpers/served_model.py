"""Answers of an exported model: of a server, and as `predict` prints them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def answer_as_served(
    model: Any, signature: str, inputs: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The answer of a server: arrays by the name of the output."""
    if signature not in model.signatures:
        raise KeyError(f"Serving signature key not found: {signature}")
    answer = model.signatures[signature](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    return {name: value.numpy() for name, value in answer.items()}


def filled_lines(model: Any, texts: Sequence[str]) -> list[str]:
    """Each text, and lines of candidates for its masks, as printed."""
    answer = answer_as_served(model, "fill_mask_text", {"text": texts})
    lines = []
    for text, pieces, probabilities in zip(
        texts,
        *(answer[f"top_{n}"] for n in ("pieces", "probabilities")),
        strict=True,
    ):
        lines.append(text)
        for i in range(text.count("[MASK]")):
            pairs = zip(pieces[i], probabilities[i], strict=True)
            lines.append(
                "    " + "  ".join(f"{p.decode()} {q:.1%}" for p, q in pairs)
            )
    return lines
