"""Gaps of a question, which its choices fill, as in "It lies on the ____".

The rule is written once, for Python and for the graph of an exported model.
"""

import re

# Stands for a gap. Unicode keeps this character out of texts.
GAP = "\ufdd0"


def gap_rules(word: str) -> tuple[tuple[str, str], ...]:
    """Substitutions that put `GAP` in place of each gap of a question.

    A gap is a row of underscores, but not one or two between two letters or
    digits, as in `user_name`. In Chinese, letters stand next to a gap.

    Args:
        word: Letters and digits, inside of brackets of a regular expression.
            Libraries write them differently.

    Returns:
        Pairs of a pattern and its replacement, to be applied in order.
    """
    return (
        (r"_{3,}", GAP),
        (rf"(^|[^{word}_])_+", rf"\1{GAP}"),
        (rf"_+([^{word}_]|$)", rf"{GAP}\1"),
    )


def fill_gaps(question: str, choice: str) -> str:
    """Puts a choice into each gap of its question, or else after it.

    Example:
        >>> fill_gaps("Paris lies on the ____ .", "Seine")
        'Paris lies on the Seine .'
        >>> fill_gaps("What does user_name hold?", "a name")
        'What does user_name hold? a name'
    """
    marked = question
    for pattern, replacement in gap_rules(r"\w"):
        marked = re.sub(pattern, replacement, marked)
    if GAP in marked:
        return marked.replace(GAP, choice)
    return f"{question} {choice}"
