r"""Fills in the masks of sentences with an exported SavedModel.

    python -m albert_tf.fill_mask --saved_model_dir=build/demo/saved_model \
      --text='Paris is the [MASK] of France.'

It needs the SavedModel and tensorflow-text, none of the model's code.
"""

import posixpath
from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import FillMaskConfig, flags
from albert_tf.errors import UserError
from albert_tf.io.files import load_json
from albert_tf.records.tokenization import MASK_PIECE
from albert_tf.serving.text_tokenizer import import_text_ops

# What `export_saved_model` writes beside the graph. The directory is
# TensorFlow Serving's for such files.
ASSETS_DIR = "assets.extra"
SERVING_FILE = "serving.json"

SIGNATURE = "fill_mask_text"


class Candidate(NamedTuple):
    """A piece that may stand where a mask is, and its probability."""

    piece: str
    probability: float


class MaskFiller:
    """An exported model that takes text.

    Args:
        saved_model_dir: What `export_saved_model` wrote, local or gs://.

    Raises:
        UserError: If there is no such model, or one that takes no text, or
            if tensorflow-text is missing.
    """

    def __init__(self, saved_model_dir: str) -> None:
        serving_path = posixpath.join(saved_model_dir, ASSETS_DIR, SERVING_FILE)
        if not tf.io.gfile.exists(serving_path):
            raise UserError(
                "saved_model_dir must be an export of this project",
                received=f"{saved_model_dir}, without {SERVING_FILE}",
                remedy="Make one with python -m albert_tf.export_saved_model.",
            )
        self.max_seq_length: int = load_json(serving_path)["max_seq_length"]
        import_text_ops()
        self._model = tf.saved_model.load(saved_model_dir)
        if SIGNATURE not in self._model.signatures:
            raise UserError(
                f"{saved_model_dir} must have the signature {SIGNATURE}",
                received=" ".join(self._model.signatures),
                remedy="Export it without --notext_signatures.",
            )

    def fill(self, text: str) -> list[list[Candidate]]:
        """The likeliest pieces for each mask of a text.

        Args:
            text: A sentence, `[MASK]` where a piece is to be found.

        Returns:
            For each mask in turn, the candidates, the likeliest first.

        Raises:
            UserError: If the text has no mask, or one too far behind.
        """
        if MASK_PIECE not in text:
            raise UserError(f"text must hold {MASK_PIECE}", received=repr(text))
        answer = self._model.signatures[SIGNATURE](text=tf.constant([text]))
        pieces = answer["top_pieces"][0].numpy()
        probabilities = answer["top_probabilities"][0].numpy()
        missing = int((probabilities[:, 0] == 0).sum())
        if missing:
            raise UserError(
                f"every {MASK_PIECE} of a text must be among its first "
                f"{self.max_seq_length - 2} pieces, the max_seq_length of the "
                "run without [CLS] and [SEP]",
                received=f"{missing} behind them",
            )
        return [
            [
                Candidate(piece.decode(), float(probability))
                for piece, probability in zip(*row, strict=True)
            ]
            for row in zip(pieces, probabilities, strict=True)
        ]


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
