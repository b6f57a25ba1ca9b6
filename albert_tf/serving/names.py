"""Names of the files and of the signatures of an exported SavedModel.

This module does not import TensorFlow, since clients of a server need only the
names.
"""

from typing import NamedTuple

# TensorFlow Serving reserves this directory of a SavedModel for extra files.
ASSETS_DIR = "assets.extra"
SERVING_FILE = "serving.json"

# Key of serving.json: what a client needs to answer questions.
QUESTION_ANSWERING = "question_answering"

ENCODE = "encode"
FILL_MASK = "fill_mask"
SERVING_DEFAULT = "serving_default"

# Suffixes of the names of signatures that take text.
TEXT = "_text"
TEXT_PAIR = "_text_pair"

# Signatures of fine-tuned models.
CLASSIFY = "classify"
PREDICT_VALUE = "predict_value"
CHOOSE = "choose"
SCORE_SPANS = "score_spans"


class SentenceSignature(NamedTuple):
    """The signature of a sentence head.

    Attributes:
        name: Name of the signature that takes ids.
        outputs: Names of the two probabilities, in the order of the labels.
        statement: Text for the event that the first probability refers to.
    """

    name: str
    outputs: tuple[str, str]
    statement: str


# By sentence objective.
SENTENCE_SIGNATURES = {
    "sop": SentenceSignature(
        "sentence_order", ("in_order", "swapped"), "in order"
    ),
    "nsp": SentenceSignature("next_sentence", ("next", "random"), "next"),
}
