"""Where words begin: whole-word masking masks the tokens of a word together.

As in google-research/albert, a word begins at a word mark, at a punctuation
mark or another sign, and at `<unk>`; letters after a sign continue its word. As
there, a piece of ASCII letters and several marks, such as "!!", continues a
word. There, digits and letters of other scripts always begin a word. Here:

- digits and letters continue a word, in all scripts with spaces between words;
- in all other scripts, each piece is a word;
- a word begins after such a piece, and after a punctuation mark of a certain
  script, such as the Ethiopic word space;
- a character spelled in byte pieces is treated as any other character.

Of symbols, a word ends at each space; without a space, each symbol is a word.

Reference:
    `_is_start_piece_sp` in
    https://github.com/google-research/albert/blob/master/create_pretraining_data.py
"""

import functools
import itertools
import string
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
from fontTools.unicodedata import script_extension

from albert_tf.records.features import CLS_ID, SEP_ID, SPECIAL_PIECES, UNK_ID

WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"

# ISO 15924 codes of the scripts with spaces between words. A missing code costs
# a script only whole-word masking; with a wrong one, sentences would be words.
_SPACED_SCRIPTS = (
    "Adlm Arab Armn Beng Cakm Cans Cher Copt Cyrl Deva Ethi Geor Grek Gujr "
    "Guru Hang Hebr Kali Knda Latn Lepc Limb Lisu Mand Mlym Mong Mtei Nkoo "
    "Olck Orya Osge Rohg Samr Saur Sinh Sund Sylo Syrc Taml Telu Tfng Thaa"
)
# Common, inherited, unknown: the character belongs to no certain script.
_NO_SCRIPT = frozenset(["Zyyy", "Zinh", "Zzzz"])

# In google-research/albert, an ASCII piece with one of the first always begins
# a word, and another piece of these characters only if it is a single mark.
_QUOTES = frozenset("'<=>")
_ENGLISH = frozenset(string.ascii_letters + string.punctuation) - _QUOTES

# What a piece does, as flags. Segments are not cut before a sign, which only
# begins a word.
_BEGINS, _CUTS, _BEGINS_AFTER, _ENDS_WORD = 1, 2, 4, 8
_WORD = _BEGINS | _CUTS

# Lengths of characters in UTF-8, with the smallest first byte of each.
_LEAD_BYTES = ((2, 0xC2), (3, 0xE0), (4, 0xF0), (0, 0xF5))


class WordBoundaries:
    """Finds where words begin among the tokens of a vocabulary.

    Args:
        pieces: The pieces of the vocabulary.
        values: The byte of each byte piece; -1 for other pieces.
        are_symbols: Whether the pieces are symbols; see
            `tokenization.make_symbols`.

    Attributes:
        is_byte: bool, `(vocab_size,)`; the byte pieces.
    """

    def __init__(
        self,
        pieces: Sequence[str],
        values: Sequence[int],
        are_symbols: bool = False,
    ) -> None:
        spelled = [
            piece if value < 0 else chr(value) if value < 128 else ""
            for piece, value in zip(pieces, values, strict=True)
        ]
        if are_symbols and WORD_MARK in pieces:
            self._flags = np.full(len(pieces), _BEGINS_AFTER, np.uint8)
            self._flags[pieces.index(WORD_MARK)] |= _ENDS_WORD
        elif are_symbols:
            self._flags = np.full(len(pieces), _WORD, np.uint8)
        else:
            self._flags = np.array([*map(_flags_of, spelled)], np.uint8)
        self._flags[: len(SPECIAL_PIECES)] = 0
        self._flags[[UNK_ID, CLS_ID, SEP_ID]] = _BEGINS
        self._begins = self._flags & _BEGINS > 0
        self._cuts = self._flags & _CUTS > 0
        self._bytes = np.array(values, np.int16)
        self.is_byte = self._bytes >= 0
        has_ends = bool((self._flags & _ENDS_WORD).any())
        self._depends_on_neighbours = has_ends or bool(self.is_byte.any())

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Returns `token_boundary`; bool, of the shape of `ids`.

        True where a word begins, at [CLS] and at [SEP].
        """
        if not self._depends_on_neighbours:
            return self._begins.take(ids)
        return self._flags_in_context(ids) & _BEGINS > 0

    def find_cuts(self, ids: np.ndarray) -> np.ndarray:
        """Returns where a segment may begin: at words, but not at signs."""
        if not self._depends_on_neighbours:
            return self._cuts.take(ids)
        return self._flags_in_context(ids) & _CUTS > 0

    def _flags_in_context(self, ids: np.ndarray) -> np.ndarray:
        flat = ids.reshape(-1)
        flags = self._flags.take(flat)
        if self.is_byte.any():
            _add_characters(flags, self._bytes[flat])
        ends = flags & _ENDS_WORD > 0
        if ends.any():
            begins = flags & _BEGINS_AFTER > 0
            begins[1:] &= ends[:-1]
            begins[:1] = False
            flags[begins] |= _WORD
        return flags.reshape(ids.shape)


def _add_characters(flags: np.ndarray, values: np.ndarray) -> None:
    """Adds the flags of the characters beyond ASCII that are spelled in bytes.

    Args:
        flags: uint8, `(tokens,)`.
        values: int16, `(tokens,)`; -1 for a token that is no byte.
    """
    values = np.append(values, -1)
    for (length, lowest), (_, end) in itertools.pairwise(_LEAD_BYTES):
        first = np.flatnonzero((values >= lowest) & (values < end))
        if not len(first):
            continue
        points = values[first].astype(np.int32) & (0x7F >> length)
        last = first
        # At the end of a segment, bytes may be missing. Zeros replace them.
        for _ in range(1, length):
            rest = values[last + 1]
            is_rest = (rest >= 0x80) & (rest < 0xC0)
            points = points << 6 | np.where(is_rest, rest & 0x3F, 0)
            last = last + is_rest
        unique, inverse = np.unique(points, return_inverse=True)
        known = [
            _flags_of_character(chr(min(point, sys.maxunicode)))
            for point in unique.tolist()
        ]
        found = np.array(known, np.uint8)[inverse]
        flags[first] |= found
        flags[last] |= found & _ENDS_WORD


def _flags_of(piece: str) -> int:
    if not piece:
        return 0
    ends = _flags_of_character(piece[-1]) & _ENDS_WORD
    if piece[0] == WORD_MARK:
        return _WORD | ends
    if piece.isascii() and not _QUOTES.isdisjoint(piece):
        return _BEGINS
    if len(piece) > 1 and _ENGLISH.issuperset(piece):
        return _BEGINS_AFTER
    first = _flags_of_character(piece[0])
    inner = map(_flags_of_character, piece[:-1])
    if any(flags & _BEGINS and flags & _ENDS_WORD for flags in inner):
        first |= _WORD
    return first & ~_ENDS_WORD | ends


@functools.cache
def _flags_of_character(character: str) -> int:
    category = unicodedata.category(character)
    scripts = script_extension(character)
    has_script = scripts.isdisjoint(_NO_SCRIPT)
    is_spaced = not has_script or any(s in _SPACED_SCRIPTS for s in scripts)
    is_control = category[0] in "CZ" and category != "Cf"
    if category[0] in "PS" or (is_spaced and is_control):
        ends = has_script and "Latn" not in scripts
        return _BEGINS | _ENDS_WORD if ends else _BEGINS
    if not is_spaced:
        return _WORD | _ENDS_WORD
    return _BEGINS_AFTER if category[0] in "LN" else 0
