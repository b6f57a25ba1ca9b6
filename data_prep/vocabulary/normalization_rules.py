"""The normalisation of text as rules that a SentencePiece model can hold.

Each rule replaces one character. The rules together equal
`tokenization.normalize` followed by the rules of google-research/albert's
model, except where the result depends on neighbouring characters: Hangul
letters typed one by one are not composed, and a capital sigma at the end of a
word becomes an ordinary small sigma.
"""

import sys
import unicodedata

from albert_tf.records.tokenization import normalize

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


def make_rules(do_lower_case: bool) -> dict[str, str]:
    """Returns the characters that normalisation changes, with replacements.

    The rules are idempotent. They follow the Unicode version of this Python.

    Example:
        >>> rules = make_rules(do_lower_case=True)
        >>> rules["É"], rules["Ⅳ"]
        ('e', 'iv')
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
