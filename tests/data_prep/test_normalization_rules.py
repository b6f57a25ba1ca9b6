import sys
import unicodedata

import pytest
import sentencepiece

from albert_tf.records.tokenization import normalize
from data_prep.vocabulary.normalization_rules import make_rules

GOOGLE_ALBERT = "tests/testdata/30k-clean.model"


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_rules_equal_the_normalisation_of_google_albert(do_lower_case):
    """For each character. google-research/albert normalises in Python, then in
    its model.

    Control characters are not compared: it keeps some, such as U+0080.
    """
    published = sentencepiece.SentencePieceProcessor(model_file=GOOGLE_ALBERT)
    rules = make_rules(do_lower_case)
    # Its model may not know characters of later Unicode versions.
    known = [
        c
        for c in map(chr, range(1, sys.maxunicode + 1))
        if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Co", "Cs", "Cc")
    ]
    assert len(known) > 90_000
    texts = [normalize(f"x{c}x", do_lower_case) for c in known]
    for c, expected in zip(known, published.normalize(texts), strict=True):
        found = f"x{rules.get(c, c)}x"
        assert " ".join(found.split(" ")) == expected[1:].replace("▁", " "), (
            f"U+{ord(c):04X}"
        )


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_rules_are_idempotent(do_lower_case):
    rules = make_rules(do_lower_case)
    assert (
        rules["\x01"] == "" and rules["\xc4"] == ("a", "A")[not do_lower_case]
    )
    for replacement in rules.values():
        assert "".join(rules.get(c, c) for c in replacement) == replacement
