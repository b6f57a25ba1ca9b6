"""Trains SentencePiece models with the options of google-research/albert.

A self-contained model holds the normalisation of text as rules, each of which
replaces one character. The rules together equal `tokenization.normalize`
followed by the rules of google-research/albert's model, except where the result
depends on neighbouring characters: Hangul letters typed one by one are not
composed, and a capital sigma at the end of a word becomes an ordinary small
sigma.
"""

import io
import os
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from albert_tf.errors import UserError
from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_PIECES,
    UNK_ID,
)
from albert_tf.records.tokenization import (
    NORMALIZER_NAMES,
    SELF_CONTAINED,
    normalize,
)
from data_prep.config import TokenizerConfig

# Punctuation that is always a separate piece, as in google-research/albert.
USER_DEFINED_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")  # noqa: RUF001

# google-research/albert splits a comma off a number in Python. With a comma as
# a separate piece, there is nothing to split.
_SELF_CONTAINED_SYMBOLS = (*USER_DEFINED_SYMBOLS, ",")

# The number of threads changes how sums are rounded, so all machines use the
# same number.
_NUM_THREADS = 16

# The trainer drops longer lines. Its default is 4,192 bytes, but a corpus may
# have a book on one line.
_MAX_LINE_BYTES = 1 << 24

# Characters that google-research/albert's model treats as spaces, in addition
# to Unicode's.
_SPACES = frozenset(
    "\N{ZERO WIDTH SPACE}\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
    "\N{LEFT-TO-RIGHT MARK}\N{RIGHT-TO-LEFT MARK}\N{LOWER ONE EIGHTH BLOCK}"
    "\N{ZERO WIDTH NO-BREAK SPACE}\N{REPLACEMENT CHARACTER}"
)

# NUL ends a string in SentencePiece, so no rule can contain it.
_FIRST_CODE_POINT = 1
_SURROGATES = range(0xD800, 0xE000)


def train_model(config: TokenizerConfig, sentences: Iterator[str]) -> bytes:
    """Returns the content of a SentencePiece model file.

    Args:
        sentences: Normalised for a published vocabulary, raw for a
            self-contained vocabulary.

    Raises:
        UserError: If the text does not allow `vocab_size` pieces.
    """
    if config.vocabulary_kind == SELF_CONTAINED:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "rules.tsv")
            with open(path, "w", encoding="ascii") as file:
                file.write(format_rules(make_rules(config.do_lower_case)))
            model = _run_trainer(
                config,
                sentences,
                user_defined_symbols=list(_SELF_CONTAINED_SYMBOLS),
                normalization_rule_tsv=path,
            )
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        proto.normalizer_spec.name = NORMALIZER_NAMES[config.do_lower_case]
        # The path of the temporary file differs between calls.
        proto.normalizer_spec.ClearField("normalization_rule_tsv")
        return proto.SerializeToString(deterministic=True)
    return _run_trainer(
        config, sentences, user_defined_symbols=list(USER_DEFINED_SYMBOLS)
    )


def _run_trainer(
    config: TokenizerConfig, sentences: Iterator[str], **options: Any
) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type="unigram",
            vocab_size=config.vocab_size,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            eos_id=-1,
            pad_piece=SPECIAL_PIECES[PAD_ID],
            unk_piece=SPECIAL_PIECES[UNK_ID],
            control_symbols=[
                SPECIAL_PIECES[i] for i in (CLS_ID, SEP_ID, MASK_ID)
            ],
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            # The sentences are a sample already.
            input_sentence_size=0,
            shuffle_input_sentence=False,
            max_sentence_length=_MAX_LINE_BYTES,
            num_threads=_NUM_THREADS,
            minloglevel=1,
            **options,
        )
    except (RuntimeError, OSError) as error:
        raise _explain(config, str(error)) from error
    return model.getvalue()


def _explain(config: TokenizerConfig, message: str) -> Exception:
    """Returns an error of the trainer in terms of the settings."""
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return UserError(
            "vocab_size must not exceed the number of pieces in the text",
            received=config.vocab_size,
            remedy=f"Largest possible: {largest[1]}. Or provide more text.",
        )
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(
            "vocab_size must exceed the number of characters to cover",
            received=config.vocab_size,
            remedy=f"Set more than {smallest[1]}, or a lower "
            "--character_coverage.",
        )
    return UserError(
        "SentencePiece failed to train the vocabulary",
        received=message,
        remedy="If the text is very short, provide more.",
    )


def make_rules(do_lower_case: bool) -> dict[str, str]:
    """Returns the characters that normalisation changes, with replacements.

    The rules are idempotent. They follow the Unicode version of this Python.
    """
    rules = {}
    for code_point in range(_FIRST_CODE_POINT, sys.maxunicode + 1):
        if code_point in _SURROGATES:
            continue
        character = chr(code_point)
        replacement = _normalize_character(character, do_lower_case)
        if replacement != character:
            rules[character] = replacement
    return rules


def format_rules(rules: dict[str, str]) -> str:
    """Returns the content of a `normalization_rule_tsv` of SentencePiece."""
    return "".join(
        f"{_spell(character)}\t{_spell(replacement)}\n"
        for character, replacement in rules.items()
    )


def _normalize_character(character: str, do_lower_case: bool) -> str:
    if character.isspace() or character in _SPACES:
        return " "
    if unicodedata.category(character) == "Cc":
        return ""
    # `normalize` strips spaces at the ends, so letters enclose the character.
    # It also decomposes Hangul syllables, which NFKC composes again.
    text = normalize(f"x{character}x", do_lower_case)[1:-1]
    return unicodedata.normalize("NFKC", text)


def _spell(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
