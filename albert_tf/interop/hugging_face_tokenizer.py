"""Writes a SentencePiece vocabulary as the tokenizer files of Hugging Face.

    spiece.model             the vocabulary, for the slow tokenizer
    tokenizer.json           the same for the fast tokenizer, with a pipeline
                             of normalisers that approximates `Tokenizer`
    tokenizer_config.json    settings of both
    special_tokens_map.json  the special pieces

No package of Hugging Face is needed. docs/converting.md lists the text for
which ids differ.
"""

import base64
import json
import posixpath
import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

from albert_tf.io.files import load_json_if_any, open_existing
from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_PIECES,
    TOKENIZER_FILE,
    UNK_ID,
)
from albert_tf.records.tokenization import GOOGLE_ALBERT, WORD_MARK, Tokenizer

_SETTINGS_FILE = "tokenizer_config.json"
_FAST_FILE = "tokenizer.json"
_SPECIAL_TOKENS_FILE = "special_tokens_map.json"

_SPECIAL_TOKENS = {
    "bos_token": SPECIAL_PIECES[CLS_ID],
    "eos_token": SPECIAL_PIECES[SEP_ID],
    "unk_token": SPECIAL_PIECES[UNK_ID],
    "sep_token": SPECIAL_PIECES[SEP_ID],
    "pad_token": SPECIAL_PIECES[PAD_ID],
    "cls_token": SPECIAL_PIECES[CLS_ID],
    "mask_token": SPECIAL_PIECES[MASK_ID],
}

_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")

# Subtracted from the score of a piece that ends in a digit and a comma:
# google-research/albert's tokenizer splits such pieces. Hugging Face's own
# conversion uses the same number.
_PENALTY = 100.0


def tokenizer_files(
    tokenizer: Tokenizer, vocabulary: str, max_length: int
) -> dict[str, bytes]:
    """Returns the contents of the files, by file name.

    Args:
        tokenizer: The tokenizer of the vocabulary.
        vocabulary: Path of the SentencePiece model.
        max_length: Maximum number of tokens in the model's input.
    """
    with open_existing(vocabulary, "rb") as file:
        content = file.read()
    # A self-contained vocabulary normalises text itself.
    normalized_outside = tokenizer.kind == GOOGLE_ALBERT
    settings = {
        **_SPECIAL_TOKENS,
        "mask_token": _added_token(SPECIAL_PIECES[MASK_ID]),
        "do_lower_case": normalized_outside and tokenizer.do_lower_case,
        "keep_accents": not normalized_outside,
        "remove_space": True,
        "model_max_length": max_length,
        "tokenizer_class": _tokenizer_class(tokenizer),
        # Without them, transformers 5 leaves out token_type_ids, and the model
        # reads both texts of a pair as segment 0.
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    return {
        TOKENIZER_FILE: content,
        _FAST_FILE: _to_json(_fast_tokenizer(tokenizer, content)),
        _SETTINGS_FILE: _to_json(settings),
        _SPECIAL_TOKENS_FILE: _to_json(
            _SPECIAL_TOKENS
            | {"mask_token": _added_token(SPECIAL_PIECES[MASK_ID])}
        ),
    }


def is_cased(directory: str, vocabulary: str) -> bool:
    """Whether a folder's settings say that its vocabulary keeps upper case.

    False for a self-contained vocabulary, whose model file stores the case.
    """
    settings = load_json_if_any(posixpath.join(directory, _SETTINGS_FILE))
    return (
        isinstance(settings, dict)
        and settings.get("do_lower_case") is False
        and Tokenizer(vocabulary).kind == GOOGLE_ALBERT
    )


def _tokenizer_class(tokenizer: Tokenizer) -> str:
    """The class that `AutoTokenizer` chooses.

    `AlbertTokenizer` of transformers 5 ignores the pipeline in
    `tokenizer.json` and builds one that has no byte pieces, drops vowels of
    Hindi and Thai as accents, and splits Hangul into letters. A vocabulary
    with such pieces needs the class that uses the file unchanged.
    """
    pieces = map(tokenizer.id_to_piece, range(tokenizer.vocab_size))
    for piece in pieces:
        if _BYTE_PIECE.fullmatch(piece) or (
            tokenizer.kind == GOOGLE_ALBERT and any(map(_is_lost, piece))
        ):
            return "PreTrainedTokenizerFast"
    return "AlbertTokenizer"


def _is_lost(character: str) -> bool:
    return unicodedata.category(character).startswith("M") or (
        unicodedata.name(character, "").startswith("HANGUL SYLLABLE")
    )


def _fast_tokenizer(tokenizer: Tokenizer, content: bytes) -> dict[str, Any]:
    # Imported late, since it takes as long as all other imports here.
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    normalized_outside = tokenizer.kind == GOOGLE_ALBERT
    metaspace = {
        "type": "Metaspace",
        "replacement": WORD_MARK,
        "prepend_scheme": "always",
        "split": True,
    }
    cls, sep = SPECIAL_PIECES[CLS_ID], SPECIAL_PIECES[SEP_ID]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, **_added_token(piece)}
            for i, piece in enumerate(SPECIAL_PIECES)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *(
                    _normalizers(tokenizer.do_lower_case)
                    if normalized_outside
                    else ()
                ),
                {
                    "type": "Precompiled",
                    "precompiled_charsmap": base64.b64encode(
                        model.normalizer_spec.precompiled_charsmap
                    ).decode(),
                },
                _replace(" {2,}", " "),
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special(cls, 0), _sequence("A", 0), _special(sep, 0)],
            "pair": [
                *(_special(cls, 0), _sequence("A", 0), _special(sep, 0)),
                *(_sequence("B", 1), _special(sep, 1)),
            ],
            "special_tokens": {
                piece: {"id": piece, "ids": [i], "tokens": [piece]}
                for piece, i in ((cls, CLS_ID), (sep, SEP_ID))
            },
        },
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": UNK_ID,
            "vocab": [
                [
                    piece.piece,
                    piece.score - _PENALTY
                    if normalized_outside
                    and _ends_in_number_and_comma(piece.piece)
                    else piece.score,
                ]
                for piece in model.pieces
            ],
            "byte_fallback": model.trainer_spec.byte_fallback,
        },
    }


def _normalizers(do_lower_case: bool) -> list[dict[str, Any]]:
    """`tokenization.normalize`, built from Hugging Face's normalisers."""
    # Characters that are white space in Python only.
    spaces = "".join(
        c for c in map(chr, range(0x100)) if c.isspace() and c not in " \t\n\r"
    )
    steps = [
        _replace(_character_class(spaces), " "),
        {"type": "NFKD"},
        # StripAccents would drop all marks, vowels of Hindi and Thai among
        # them. `normalize` drops only those with a combining class.
        _replace(
            _character_class(
                c
                for c in map(chr, range(sys.maxunicode + 1))
                if unicodedata.combining(c)
            ),
            "",
        ),
    ]
    if do_lower_case:
        steps.append({"type": "Lowercase"})
    # SentencePiece's rules compose Hangul. The "Precompiled" normaliser should
    # apply the same rules, but does not compose it.
    return [*steps, {"type": "NFKC"}]


def _character_class(characters: Iterable[str]) -> str:
    r"""A regular expression such as `[\x{300}-\x{34E}]`."""
    ranges: list[list[int]] = []
    for code in map(ord, characters):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    spelled = "".join(
        rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges
    )
    return f"[{spelled}]"


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {
        "type": "Replace",
        "pattern": {"Regex": pattern},
        "content": content,
    }


def _added_token(piece: str) -> dict[str, Any]:
    """A special piece; a mask absorbs the space before it."""
    return {
        "content": piece,
        "single_word": False,
        "lstrip": piece == SPECIAL_PIECES[MASK_ID],
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _special(piece: str, segment: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": piece, "type_id": segment}}


def _sequence(name: str, segment: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": segment}}


def _ends_in_number_and_comma(piece: str) -> bool:
    return piece[-1:] == "," and piece[-2:-1].isdigit()


def _to_json(values: Any) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
