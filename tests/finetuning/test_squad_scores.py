import json

import hypothesis
import pytest
from hypothesis import strategies as st

from albert_tf.errors import UserError
from albert_tf.finetuning.scores import (
    exact_match,
    normalize_answer,
    score_answers,
    word_f1,
)
from albert_tf.records.documents import Answer, Question
from tests.helpers.make_squad_scores import (
    SCORES_FILE,
    make_predictions,
    read_questions,
    without_some,
)


def question(name, *answers):
    golds = tuple(Answer(text, 0) for text in answers)
    return Question(name, "?", "", golds, not answers)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  U.S.A.'s army", "usas army"),
        ("a-an-the", "aanthe"),  # punctuation goes first
        ("Theory of an apple", "theory of apple"),
        ("the", ""),
        # Only ASCII punctuation is removed.
        ("“São” a", "“são”"),
        ("1,000 %", "1000"),
    ],
)
def test_answers_are_normalised_by_the_official_rules(text, normalized):
    assert normalize_answer(text) == normalized


def test_f1_counts_repeated_words_once_for_each_match():
    # 2 shared words; precision 2/3, recall 2/2.
    assert word_f1("go go go", "go go") == pytest.approx(0.8)
    assert word_f1("dog", "cat") == 0


def test_the_best_of_several_right_answers_counts():
    scores = score_answers(
        [question("q", "cat", "big dog")],
        {"q": "the dog!"},
        may_be_unanswerable=False,
    )
    assert (scores["exact"], scores["f1"]) == (0, pytest.approx(200 / 3))


def test_an_unanswered_question_scores_0_in_version_1(caplog):
    scores = score_answers(
        [question("q", "dog"), question("r", "cat")],
        {"q": "dog", "other": "x"},
        may_be_unanswerable=False,
    )
    assert scores == {"exact": 50, "f1": 50, "total": 2}
    assert "no prediction for 1 of 2 questions, which score 0: r" in caplog.text


def test_two_answers_without_words_differ_between_the_versions():
    """Version 1.1: equal, but no shared word. Version 2.0: both mean that
    there is no answer, though the question counts as answerable."""
    asked, predictions = [question("q", "The")], {"q": "a"}
    one = score_answers(asked, predictions, may_be_unanswerable=False)
    two = score_answers(asked, predictions)
    assert (one["exact"], one["f1"]) == (100, 0)
    assert (two["exact"], two["f1"], two["HasAns_total"]) == (100, 100, 1)
    # A right answer without words counts only if there is no other one.
    asked = [question("q", "The", "dog")]
    assert score_answers(asked, {"q": ""})["exact"] == 0


def test_answers_above_the_threshold_count_as_none():
    asked = [question("a", "dog"), question("b", "cat"), question("c")]
    predictions = {"a": "dog", "b": "cat", "c": "cow"}
    odds = {"a": 0.5, "b": 2, "c": 1.5}
    scores = score_answers(asked, predictions, odds)
    assert scores["HasAns_exact"] == 50  # b is lost
    assert scores["NoAns_exact"] == 100
    assert scores["exact"] == pytest.approx(200 / 3)
    all_answered = score_answers(asked, predictions, odds, na_prob_thresh=3)
    assert all_answered["HasAns_exact"] == 100
    assert all_answered["NoAns_exact"] == 0


def test_the_best_threshold_equals_one_computed_by_hand():
    """If all are null, 1 of 4 is right: c. Without null for a: 2 are right; for
    b, too: 2, since b is wrong; for c: 1; for d: 2. The best is 2 of 4, at the
    odds of a."""
    asked = [question(n, "dog") for n in "abd"] + [question("c")]
    predictions = {"a": "dog", "b": "cat", "c": "cow", "d": "dog"}
    odds = {"a": -2.0, "b": -1.0, "c": 0.5, "d": 4.0}
    scores = score_answers(asked, predictions, odds)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50, -2)
    no_odds = score_answers(asked, predictions)
    assert not [key for key in no_odds if key.startswith("best")]


def test_if_no_threshold_beats_null_the_threshold_is_0():
    scores = score_answers([question("c")], {"c": "cow"}, {"c": -5.0})
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100, 0)


OFFICIAL = json.loads(SCORES_FILE.read_text())


@pytest.mark.parametrize("seed", range(len(OFFICIAL)))
def test_awkward_predictions_score_as_with_the_official_scripts(seed, squad):
    """Real questions; empty answers, articles, punctuation, Unicode, ties of
    null odds, and, for version 1.1, questions without a prediction."""
    predictions, null_odds = make_predictions(read_questions(), seed)
    answerable, kept = without_some(read_questions(), predictions, seed)
    names = {question["id"] for question in answerable}

    scores = {
        "1.1": score_answers(
            [question for question in squad.examples if question.id in names],
            kept,
            may_be_unanswerable=False,
        ),
        "2.0": score_answers(squad.examples, predictions),
        "2.0 with null odds": score_answers(
            squad.examples, predictions, null_odds
        ),
    }

    assert scores.keys() == OFFICIAL[seed].keys()
    for version, expected in OFFICIAL[seed].items():
        assert scores[version] == pytest.approx(expected, rel=1e-12), version


WORDS = st.lists(
    st.sampled_from(["the", "dog", "Dog.", "a", "cat"]), max_size=3
)
TEXTS = WORDS.map(" ".join)


@hypothesis.given(TEXTS, TEXTS)
def test_scores_of_two_texts_are_symmetric_and_agree(one, other):
    assert word_f1(one, other) == pytest.approx(word_f1(other, one))
    assert exact_match(one, other) == exact_match(other, one)
    if exact_match(one, other) and normalize_answer(one):
        assert word_f1(one, other) == 1


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
    st.lists(
        st.tuples(
            st.lists(TEXTS.filter(bool), max_size=2),
            # A wordless answer such as "the" is not "", but scores like it.
            TEXTS.filter(lambda text: not text or normalize_answer(text)),
            st.floats(-3, 3).map(lambda odds: round(odds, 3)),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda entry: entry[2],
    )
)
def test_the_best_threshold_is_the_best_of_all(entries):
    """No threshold among the odds gives a higher score."""
    asked = [question(str(i), *e[0]) for i, e in enumerate(entries)]
    predictions = {str(i): e[1] for i, e in enumerate(entries)}
    odds = {str(i): e[2] for i, e in enumerate(entries)}
    found = score_answers(asked, predictions, odds)
    for key in ("exact", "f1"):
        at = {
            threshold: score_answers(
                asked, predictions, odds, na_prob_thresh=threshold
            )[key]
            for threshold in [-9.0, *odds.values()]
        }
        assert found[f"best_{key}"] >= max(at.values()) - 1e-9
        reached = found[f"best_{key}_thresh"]
        if reached in odds.values() and all(q.answers for q in asked):
            assert at[reached] == pytest.approx(found[f"best_{key}"])


def test_predictions_for_other_questions_are_refused():
    asked = [question("q1", "dog"), question("q2", "dog")]
    with pytest.raises(UserError, match=r"none for 2 of 2 questions: q1; q2"):
        score_answers(asked, {"x": "dog"}, may_be_unanswerable=False)
    with pytest.raises(UserError, match=r"none for 1 of 2 questions: q2"):
        score_answers(asked, {"q1": "dog"})
    both = {"q1": "dog", "q2": "dog"}
    with pytest.raises(UserError, match=r"null_odds_file must .* q1"):
        score_answers(asked, both, {"q2": 0.0})
    with pytest.raises(UserError, match=r"predictions_file .*None for q1"):
        score_answers(asked, both | {"q1": None})


def test_null_odds_have_no_effect_in_version_1(caplog):
    asked = [question("q", "dog")]
    scores = score_answers(
        asked, {"q": "dog"}, {"x": 1.0}, may_be_unanswerable=False
    )
    assert scores == {"exact": 100, "f1": 100, "total": 1}
    assert not caplog.text
