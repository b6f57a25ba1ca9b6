"""Writes a SentencePiece vocabulary as the tokenizer files of Hugging Face.

    spiece.model             the vocabulary, for the slow tokenizer
    tokenizer.json           the same for the fast tokenizer, with a pipeline
                             of normalisers that approximates `Tokenizer`
    tokenizer_config.json    settings of both
    special_tokens_map.json  the special pieces

`tokenizer_template.json` has what does not depend on the vocabulary. No package
of Hugging Face is needed. docs/converting.md lists the text for which ids
differ.
"""

import base64
import json
import pathlib
import posixpath
import re
import unicodedata
from typing import Any

from albert_tf.io.files import load_json_if_any, open_existing
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import (
    GOOGLE_ALBERT,
    Tokenizer,
    character_class,
)

_TEMPLATE = pathlib.Path(__file__).with_name("tokenizer_template.json")
_SETTINGS_FILE = "tokenizer_config.json"
_FAST_FILE = "tokenizer.json"
_SPECIAL_TOKENS_FILE = "special_tokens_map.json"

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
    # Imported late, since it takes as long as all other imports here.
    from sentencepiece import sentencepiece_model_pb2

    with open_existing(vocabulary, "rb") as file:
        content = file.read()
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    # A self-contained vocabulary normalises text itself.
    normalized_outside = tokenizer.kind == GOOGLE_ALBERT
    files = json.loads(_TEMPLATE.read_text("utf-8"))
    files[_SETTINGS_FILE] = {
        **files[_SPECIAL_TOKENS_FILE],
        "do_lower_case": normalized_outside and tokenizer.do_lower_case,
        "keep_accents": not normalized_outside,
        "remove_space": True,
        "model_max_length": max_length,
        "tokenizer_class": _tokenizer_class(tokenizer),
        # Without them, transformers 5 leaves out token_type_ids, and the model
        # reads both texts of a pair as segment 0.
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    fast = files[_FAST_FILE]
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap)
    fast["normalizer"]["normalizers"] = [
        *(_normalizers(tokenizer.do_lower_case) if normalized_outside else ()),
        {"type": "Precompiled", "precompiled_charsmap": charsmap.decode()},
        _replace(" {2,}", " "),
    ]
    fast["model"]["byte_fallback"] = model.trainer_spec.byte_fallback
    for piece in model.pieces:
        text, score = piece.piece, piece.score
        if normalized_outside and text[-1:] == "," and text[-2:-1].isdigit():
            score -= _PENALTY
        fast["model"]["vocab"].append([text, score])
    return {TOKENIZER_FILE: content} | {
        name: f"{json.dumps(v, indent=2, ensure_ascii=False)}\n".encode()
        for name, v in files.items()
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

    def is_lost(piece: str) -> bool:
        return bool(_BYTE_PIECE.fullmatch(piece)) or (
            tokenizer.kind == GOOGLE_ALBERT
            and any(
                unicodedata.category(c).startswith("M")
                or unicodedata.name(c, "").startswith("HANGUL SYLLABLE")
                for c in piece
            )
        )

    pieces = map(tokenizer.id_to_piece, range(tokenizer.vocab_size))
    any_is_lost = any(map(is_lost, pieces))
    return "PreTrainedTokenizerFast" if any_is_lost else "AlbertTokenizer"


def _normalizers(do_lower_case: bool) -> list[dict[str, Any]]:
    """`tokenization.normalize`, built from Hugging Face's normalisers."""
    # Characters that are white space in Python only.
    spaces = character_class(
        lambda c: c.isspace() and c < "\u0100" and c not in " \t\n\r"
    )
    # StripAccents would drop all marks, vowels of Hindi and Thai among them.
    # `normalize` drops only those with a combining class.
    accents = character_class(unicodedata.combining)
    return [
        _replace(spaces, " "),
        {"type": "NFKD"},
        _replace(accents, ""),
        *([{"type": "Lowercase"}] if do_lower_case else []),
        # SentencePiece's rules compose Hangul. The "Precompiled" normaliser
        # should apply the same rules, but does not compose it.
        {"type": "NFKC"},
    ]


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {
        "type": "Replace",
        "pattern": {"Regex": pattern},
        "content": content,
    }
