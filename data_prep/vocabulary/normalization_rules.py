"""The normalisation of text as rules that a SentencePiece model can hold.

A rule replaces one character. Together they do to text what
`tokenization.normalize` and the published model's own rules do one after the
other, but for what depends on neighbours: letters of Hangul typed one by one
are not joined, and a capital sigma at the end of a word becomes an ordinary
small one.
"""

import sys
import unicodedata

from albert_tf.records.tokenization import normalize

# What the published model takes for spaces, besides those of Unicode.
_SPACES = frozenset(
    "\N{ZERO WIDTH SPACE}\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
    "\N{LEFT-TO-RIGHT MARK}\N{RIGHT-TO-LEFT MARK}\N{LOWER ONE EIGHTH BLOCK}"
    "\N{ZERO WIDTH NO-BREAK SPACE}\N{REPLACEMENT CHARACTER}"
)

# NUL ends a string in SentencePiece, so no rule can hold it.
_FIRST = 1
_SURROGATES = range(0xD800, 0xE000)


def make_rules(do_lower_case: bool) -> dict[str, str]:
    """Characters that normalisation changes, and what they become.

    To apply the rules twice changes no more than to apply them once. They
    are those of the Unicode version of this Python.
    """
    rules = {}
    for code_point in range(_FIRST, sys.maxunicode + 1):
        if code_point in _SURROGATES:
            continue
        character = chr(code_point)
        replacement = _normalize_character(character, do_lower_case)
        if replacement != character:
            rules[character] = replacement
    return rules


def format_rules(rules: dict[str, str]) -> str:
    """Rules as SentencePiece's `normalization_rule_tsv` wants them."""
    return "".join(
        f"{_spell(character)}\t{_spell(replacement)}\n"
        for character, replacement in rules.items()
    )


def _normalize_character(character: str, do_lower_case: bool) -> str:
    if character.isspace() or character in _SPACES:
        return " "
    if unicodedata.category(character) == "Cc":
        return ""
    # Between letters, since spaces at the ends are stripped; composed again,
    # since syllables of Hangul would fall into letters.
    text = normalize(f"x{character}x", do_lower_case)[1:-1]
    return unicodedata.normalize("NFKC", text)


def _spell(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
