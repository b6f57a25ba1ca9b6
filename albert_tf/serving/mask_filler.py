"""Fills the masks of sentences with an exported SavedModel.

It needs the SavedModel and tensorflow-text, and none of the model's code.
"""

import posixpath
from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import FillMaskConfig
from albert_tf.errors import UserError
from albert_tf.io.files import load_json
from albert_tf.records.tokenization import MASK_PIECE
from albert_tf.serving.local_client import load_saved_model
from albert_tf.serving.names import (
    ASSETS_DIR,
    FILL_MASK,
    FILL_MASK_TEXT,
    SERVING_FILE,
)


class Candidate(NamedTuple):
    """A piece that may replace a mask, and its probability.

    Example:
        >>> Candidate("▁Paris", 0.25).piece
        '▁Paris'
    """

    piece: str
    probability: float


class MaskFiller:
    """An exported model that takes text.

    Args:
        saved_model_dir: A directory that `albert_tf.export_saved_model` wrote,
            local or gs://.

    Raises:
        UserError: If the directory is not an export, if the export has no
            signature that takes text, or if tensorflow-text is missing.

    Example:
        >>> filler = MaskFiller("build/demo/saved_model")  # doctest: +SKIP
        >>> masks = filler.fill("The [MASK] of [MASK].")  # doctest: +SKIP
        >>> len(masks)  # doctest: +SKIP
        2
    """

    def __init__(self, saved_model_dir: str) -> None:
        self._model = load_saved_model(saved_model_dir)
        path = posixpath.join(saved_model_dir, ASSETS_DIR, SERVING_FILE)
        self.max_seq_length: int = load_json(path)["max_seq_length"]
        if FILL_MASK_TEXT not in self._model.signatures:
            remedy = "Export it without --notext_signatures."
            if FILL_MASK not in self._model.signatures:
                remedy = (
                    "A fine-tuned model fills no masks: ask it with python -m "
                    "albert_tf.predict."
                )
            raise UserError(
                f"{saved_model_dir} must have the signature {FILL_MASK_TEXT}",
                received=" ".join(self._model.signatures),
                remedy=remedy,
            )

    def fill(self, text: str) -> list[list[Candidate]]:
        """Returns the most probable pieces for each mask of a text.

        Args:
            text: A sentence with at least one `[MASK]`.

        Returns:
            For each mask in order, the candidates by falling probability.

        Raises:
            UserError: If the text has no mask, or if a mask is cut off, since
                it is beyond `max_seq_length`.
        """
        if MASK_PIECE not in text:
            raise UserError(
                f"text must contain {MASK_PIECE}", received=repr(text)
            )
        answer = self._model.signatures[FILL_MASK_TEXT](
            text=tf.constant([text])
        )
        pieces = answer["top_pieces"][0].numpy()
        probabilities = answer["top_probabilities"][0].numpy()
        missing = int((probabilities[:, 0] == 0).sum())
        if missing:
            raise UserError(
                f"every {MASK_PIECE} of a text must be among its first "
                f"{self.max_seq_length - 2} tokens (max_seq_length of the "
                "export, minus [CLS] and [SEP])",
                received=f"{missing} {MASK_PIECE} after them",
                remedy="Shorten the text, or export with a larger "
                "--max_seq_length.",
            )
        return [
            [
                Candidate(piece.decode(), float(probability))
                for piece, probability in zip(*row, strict=True)
            ]
            for row in zip(pieces, probabilities, strict=True)
        ]


def print_filled(config: FillMaskConfig) -> None:
    """Prints each text and, for each mask, a line of candidates."""
    config.require("saved_model_dir", "text")
    filler = MaskFiller(config.saved_model_dir)
    for text in config.text:
        print(text)
        for candidates in filler.fill(text):
            answers = (f"{c.piece} {c.probability:.1%}" for c in candidates)
            print("   ", "  ".join(answers))
