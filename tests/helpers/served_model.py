"""Answers of an exported model: of a server, and as `fill_mask` prints them."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.serving.mask_filler import MaskFiller


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


def filled_lines(export_dir: pathlib.Path, texts: Sequence[str]) -> list[str]:
    """Each text, and lines of candidates if it has a mask, as printed."""
    filler = MaskFiller(str(export_dir))
    lines = []
    for text in texts:
        lines.append(text)
        for candidates in filler.fill(text) if "[MASK]" in text else []:
            pairs = (f"{c.piece} {c.probability:.1%}" for c in candidates)
            lines.append("    " + "  ".join(pairs))
    return lines
