"""Gaps of questions."""

import pytest

from albert_tf.records.gaps import fill_gaps
from tests.helpers.gap_cases import GAP_CASES


@pytest.mark.parametrize(("question", "choice", "filled"), GAP_CASES)
def test_a_choice_fills_each_gap_or_follows_its_question(
    question, choice, filled
):
    assert fill_gaps(question, choice) == filled
