"""Measures how well a vocabulary represents held-out sentences."""

import collections
import os
import tempfile
import unicodedata
from typing import Any

import numpy as np
import sentencepiece
from absl import logging

from albert_tf.io.files import write_bytes
from albert_tf.records.features import UNK_ID
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.config import TokenizerConfig

# Largest number of uncovered characters in the report.
_MAX_UNCOVERED = 20


def make_report(
    config: TokenizerConfig, model: bytes, sentences: list[str]
) -> dict[str, Any]:
    """Returns statistics of sentences that the vocabulary was not trained on.

    Args:
        model: Content of the model file.
        sentences: At least one sentence, in the form that `train_model` takes.

    Returns:
        Counts and fractions, ready for JSON. Spaces do not count as
        characters. A character is covered if it is a piece, also in a
        vocabulary that spells other characters as bytes.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "spm.model")
        write_bytes(path, model)
        tokenizer = Tokenizer(path, config.do_lower_case)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    characters: collections.Counter[str] = collections.Counter()
    num_words = 0
    for sentence in sentences:
        words = processor.normalize(sentence).split(WORD_MARK)[1:]
        num_words += len(words)
        for word in words:
            characters.update(word)
    ids = tokenizer.encode_batch(sentences).ids
    pieces = [tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)]
    # Every character of a piece is a piece, too.
    alphabet = {piece for piece in pieces if len(piece) == 1}
    uncovered = collections.Counter(
        {c: n for c, n in characters.items() if c not in alphabet}
    )
    num_characters = characters.total()
    num_tokens = max(1, len(ids))  # sentences may have no visible character
    is_byte = np.array(processor.is_byte(list(range(len(pieces)))))
    return {
        "num_sentences": len(sentences),
        "num_words": num_words,
        "num_characters": num_characters,
        "pieces_per_word": len(ids) / max(1, num_words),
        "characters_per_piece": num_characters / num_tokens,
        "characters_covered": 1 - uncovered.total() / max(1, num_characters),
        "byte_pieces": int(is_byte[ids].sum()) / num_tokens,
        "unknown_pieces": int((ids == UNK_ID).sum()) / num_tokens,
        "most_uncovered": [
            {
                "code_point": f"U+{ord(character):04X}",
                "name": unicodedata.name(character, ""),
                "count": count,
            }
            for character, count in sorted(
                uncovered.items(), key=lambda item: (-item[1], item[0])
            )[:_MAX_UNCOVERED]
        ],
    }


def log_report(report: dict[str, Any]) -> None:
    """Logs a report of `make_report`."""
    logging.info(
        "%d held-out sentences: %.2f tokens per word, %.2f characters per "
        "token, %.4f %% of the characters covered; %.3f %% of the tokens are "
        "<unk>, %.3f %% are bytes",
        report["num_sentences"],
        report["pieces_per_word"],
        report["characters_per_piece"],
        100 * report["characters_covered"],
        100 * report["unknown_pieces"],
        100 * report["byte_pieces"],
    )
    if report["most_uncovered"]:
        logging.info(
            "most frequent uncovered characters: %s",
            "; ".join(
                f"{c['code_point']} {c['name']}, {c['count']} times"
                for c in report["most_uncovered"][:5]
            ),
        )
