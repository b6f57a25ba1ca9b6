import numpy as np
import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.finetuning.answers import decode
from albert_tf.finetuning.encoding import make_records
from albert_tf.finetuning.example_types import ExampleSet, Question
from albert_tf.finetuning.squad_scores import score_answers
from albert_tf.finetuning.tasks import TASKS


def stack(records, *names):
    return {name: np.stack([r[name] for r in records]) for name in names}


def oracle_logits(records, length):
    """Logits that point at the answer of each record, else at [CLS]."""
    logits = np.full((2, len(records), length), -10.0, np.float32)
    for i, record in enumerate(records):
        logits[0, i, record["start_position"]] = 10
        logits[1, i, record["end_position"]] = 10
    return {
        **stack(records, "example_number", "window_number"),
        "start_logits": logits[0],
        "end_logits": logits[1],
    }


def oracle_beam(records, beam=2):
    """The answer of each record is the second span of the beam."""
    predictions = stack(records, "example_number", "window_number")
    starts = stack(records, "start_position")["start_position"]
    ends = stack(records, "end_position")["end_position"]
    size = len(records)
    # The first start is the first token of the question: no answer.
    predictions["start_positions"] = np.hstack([starts * 0 + 1, starts])
    predictions["start_log_probs"] = np.tile([-0.5, -1.0], (size, 1))
    predictions["end_positions"] = np.tile(ends[:, np.newaxis], (1, beam, beam))
    predictions["end_log_probs"] = np.full((size, beam, beam), -1.0)
    is_impossible = stack(records, "is_impossible")["is_impossible"]
    predictions["null_logits"] = np.where(is_impossible[:, 0], 3.0, -3.0)
    return predictions


@pytest.mark.parametrize("length", [384, 192])
@pytest.mark.parametrize("head", ["plain", "beam"])
def test_perfect_scores_give_every_answer(tokenizer, squad, length, head):
    """Windows overlap, so that an answer is in several of them. Questions with
    and without answer score 100 by the official rules."""
    config = TaskConfig(doc_stride=64, max_answer_length=60)
    records = list(make_records(squad, tokenizer, config, length))
    predictions = (
        oracle_logits(records, length)
        if head == "plain"
        else oracle_beam(records)
    )
    # The order of the records does not matter.
    order = np.random.default_rng(0).permutation(len(records))
    predictions = {name: v[order] for name, v in predictions.items()}
    answers = list(decode(squad, tokenizer, config, length, predictions))
    scores = score_answers(
        squad.examples,
        {answer.id: answer.text(0.0) for answer in answers},
        {answer.id: answer.null_odds for answer in answers},
        na_prob_thresh=0.0,
    )
    assert scores["HasAns_exact"] == scores["NoAns_exact"] == 100
    assert (scores["HasAns_total"], scores["NoAns_total"]) == (55, 59)


DOCUMENT = "one two three four five six"
QUESTION = Question("q", "which", DOCUMENT, (), False)
CONFIG = TaskConfig(max_query_length=4, n_best_size=3, max_answer_length=2)
# Positions: 0 [CLS], 1 which, 2 [SEP], 3 one, 4 two, ... 8 six, 9 [SEP].


def answer(start_logits, end_logits, config=CONFIG, tokenizer=None):
    examples = ExampleSet(TASKS["squad_v2"], "test", "f", examples=[QUESTION])
    (found,) = decode(
        examples,
        tokenizer,
        config,
        12,
        {
            "example_number": np.array([0]),
            "window_number": np.array([0]),
            "start_logits": np.array([start_logits], np.float32),
            "end_logits": np.array([end_logits], np.float32),
        },
    )
    return found


def logits(**values):
    array = np.full(12, -9.0)
    for position, value in values.items():
        array[int(position[1:])] = value
    return array


def test_candidates_are_scored_by_start_and_end(tokenizer):
    found = answer(
        logits(p0=1, p3=2, p4=5), logits(p0=1, p4=3, p5=4), tokenizer=tokenizer
    )
    assert [(c.text, c.score) for c in found.candidates] == [
        ("two three", 9),
        ("two", 8),
        ("one two", 5),
    ]
    assert [DOCUMENT[c.begin : c.end] for c in found.candidates] == [
        c.text for c in found.candidates
    ]
    shares = np.exp([0, -1, -4]) / np.exp([0, -1, -4]).sum()
    np.testing.assert_allclose(
        [c.probability for c in found.candidates], shares
    )
    assert found.null_odds == 2 - 9
    assert (found.text(), found.text(-7), found.text(-7.5)) == (
        "two three",
        "two three",
        "",
    )


def test_impossible_spans_are_no_candidates(tokenizer):
    """Start after end, more than `max_answer_length` tokens, and tokens of the
    question or separators."""
    found = answer(
        logits(p1=9, p2=9, p5=8, p3=7, p9=9),
        logits(p1=9, p4=8, p6=7, p9=9),
        tokenizer=tokenizer,
    )
    assert [c.text for c in found.candidates][:2] == ["three four", "one two"]


def test_a_text_is_a_candidate_once(tokenizer):
    question = Question("q", "which", "two or two", (), False)
    examples = ExampleSet(TASKS["squad_v2"], "test", "f", examples=[question])
    scores = logits(p3=5, p5=6)[np.newaxis]
    (found,) = decode(
        examples,
        tokenizer,
        CONFIG,
        12,
        {
            "example_number": np.array([0]),
            "window_number": np.array([0]),
            "start_logits": scores,
            "end_logits": scores,
        },
    )
    assert [c.text for c in found.candidates][:1] == ["two"]
    assert (found.candidates[0].begin, found.candidates[0].score) == (7, 12)
    assert len({c.text for c in found.candidates}) == len(found.candidates)


def test_the_null_score_is_the_least_of_all_windows(tokenizer):
    """One window that contains an answer is enough."""
    config = TaskConfig(max_query_length=4, doc_stride=2)
    examples = ExampleSet(TASKS["squad_v2"], "test", "f", examples=[QUESTION])
    records = list(make_records(examples, tokenizer, config, 8))
    assert len(records) == 2
    scores = np.zeros((2, 8))
    scores[:, 0] = [4, 3]
    scores[0, 4] = 1  # "two"
    (found,) = decode(
        examples,
        tokenizer,
        config,
        8,
        {
            **stack(records, "example_number", "window_number"),
            "start_logits": scores,
            "end_logits": scores,
        },
    )
    assert (found.candidates[0].text, found.null_odds) == ("two", 6 - 2)


def test_a_span_counts_only_in_the_window_of_its_largest_context(tokenizer):
    """Windows of tokens 0 to 3 and 2 to 5. "four" is the last token of the
    first one, so only its score in the second one counts."""
    config = TaskConfig(max_query_length=4, doc_stride=2, max_answer_length=1)
    examples = ExampleSet(TASKS["squad_v2"], "test", "f", examples=[QUESTION])
    scores = np.zeros((2, 8))
    scores[0, 6] = 9  # "four" in the first window
    scores[1, 4] = 1  # "four" in the second window
    scores[0, 3] = 2  # "one"
    (found,) = decode(
        examples,
        tokenizer,
        config,
        8,
        {
            "example_number": np.array([0, 0]),
            "window_number": np.array([0, 1]),
            "start_logits": scores,
            "end_logits": scores,
        },
    )
    best = [(c.text, c.score) for c in found.candidates[:2]]
    assert best == [("one", 4), ("four", 2)]


def test_a_question_without_candidates_has_the_empty_answer(tokenizer):
    question = Question("q", "which", "", (), False)
    examples = ExampleSet(TASKS["squad_v2"], "test", "f", examples=[question])
    (found,) = decode(
        examples,
        tokenizer,
        CONFIG,
        12,
        {
            "example_number": np.array([0]),
            "window_number": np.array([0]),
            "start_logits": np.zeros((1, 12)),
            "end_logits": np.zeros((1, 12)),
        },
    )
    assert found.text() == "" and found.null_odds > 1e5
