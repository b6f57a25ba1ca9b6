r"""Fills in the masks of sentences with an exported SavedModel.

    python -m albert_tf.fill_mask --saved_model_dir=build/demo/saved_model \
      --text='Paris is the [MASK] of France.'

It needs the SavedModel alone, as a server would, none of the model's code.
"""

import math
import posixpath
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf import flags
from albert_tf.config import FillMaskConfig
from albert_tf.errors import UserError
from albert_tf.features import CLS_ID, MASK_ID, SEP_ID, TOKENIZER_FILE
from albert_tf.files import load_json
from albert_tf.tokenization import MASK_PIECE, Tokenizer

# What `export_saved_model` writes beside the graph: the vocabulary, and how
# text becomes ids. The directory is TensorFlow Serving's for such files.
ASSETS_DIR = "assets.extra"
SERVING_FILE = "serving.json"


class Candidate(NamedTuple):
    """A piece that may stand where a mask is, and its probability."""

    piece: str
    probability: float


class MaskFiller:
    """An exported model with its vocabulary.

    Args:
        saved_model_dir: What `export_saved_model` wrote, local or gs://.

    Raises:
        UserError: If there is no such model, or one without a vocabulary.
    """

    def __init__(self, saved_model_dir: str) -> None:
        assets = posixpath.join(saved_model_dir, ASSETS_DIR)
        serving_path = posixpath.join(assets, SERVING_FILE)
        vocabulary = posixpath.join(assets, TOKENIZER_FILE)
        if not tf.io.gfile.exists(serving_path):
            raise UserError(
                "saved_model_dir must be an export of this project",
                received=f"{saved_model_dir}, without {SERVING_FILE}",
                remedy="Make one with python -m albert_tf.export_saved_model.",
            )
        if not tf.io.gfile.exists(vocabulary):
            raise UserError(
                f"{vocabulary} must be there to make ids of text",
                received="no such file",
                remedy="Copy the SentencePiece model of the records there.",
            )
        serving = load_json(serving_path)
        self.max_seq_length: int = serving["max_seq_length"]
        self.tokenizer = Tokenizer(vocabulary, serving["do_lower_case"])
        if serving["vocabulary_sha256"] not in (None, self.tokenizer.sha256):
            raise UserError(
                f"{vocabulary} must be the vocabulary of the training records",
                received=f"sha256 {self.tokenizer.sha256}, not "
                f"{serving['vocabulary_sha256']}",
            )
        self._model = tf.saved_model.load(saved_model_dir)

    def fill(self, text: str) -> list[list[Candidate]]:
        """The likeliest pieces for each mask of a text.

        Args:
            text: A sentence, `[MASK]` where a piece is to be found.

        Returns:
            For each mask in turn, the candidates, the likeliest first.

        Raises:
            UserError: If the text has no mask or is too long.
        """
        ids = [CLS_ID, *self.tokenizer.encode_with_masks(text), SEP_ID]
        positions = np.flatnonzero(np.array(ids) == MASK_ID)
        if not len(positions):
            raise UserError(f"text must hold {MASK_PIECE}", received=repr(text))
        if len(ids) > self.max_seq_length:
            raise UserError(
                f"text must be at most {self.max_seq_length - 2} pieces long, "
                "the max_seq_length of the run without [CLS] and [SEP]",
                received=f"{len(ids) - 2} pieces",
            )

        answer = self._model.signatures["fill_mask"](
            input_ids=_one_row(ids),
            input_mask=_one_row(np.ones_like(ids)),
            segment_ids=_one_row(np.zeros_like(ids)),
            masked_lm_positions=_one_row(positions),
        )
        return [
            [
                Candidate(
                    self.tokenizer.id_to_piece(piece_id),
                    math.exp(log_probability),
                )
                for piece_id, log_probability in zip(
                    top_ids, log_probabilities, strict=True
                )
            ]
            for top_ids, log_probabilities in zip(
                answer["top_ids"][0].numpy(),
                answer["top_log_probabilities"][0].numpy(),
                strict=True,
            )
        ]


def _one_row(values: Any) -> tf.Tensor:
    """int32, `(1, values)`."""
    return tf.constant([values], tf.int32)


def main(config: FillMaskConfig) -> None:
    """Prints each text and, a line for each mask, the likeliest pieces."""
    config.require("saved_model_dir", "text")
    filler = MaskFiller(config.saved_model_dir)
    for text in config.text:
        print(text)
        for candidates in filler.fill(text):
            answers = (f"{c.piece} {c.probability:.1%}" for c in candidates)
            print("   ", "  ".join(answers))


if __name__ == "__main__":
    flags.run(main, FillMaskConfig)
