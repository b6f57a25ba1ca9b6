"""Tokens, windows and answers of documents."""

import pathlib

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples
from albert_tf.finetuning.scores import score_answers
from albert_tf.interop.hugging_face import tokenizer_files
from albert_tf.records.questions import (
    Answer,
    Question,
    WindowMaker,
    align,
    find_answers,
    split,
)
from albert_tf.records.tokenization import Tokenizer

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"


@pytest.fixture(scope="module")
def squad():
    """Real questions of SQuAD 2.0: 55 with and 59 without answer."""
    path = str(TESTDATA / "finetuning" / "squad-v2.0-excerpt.json")
    config = TaskConfig(task="squad_v2", dev_file=path)
    return read_examples(config, "dev").examples


# --- tokens and their characters ---------------------------------------------

# Characters that normalisation changes in different ways, and plain ones.
AWKWARD = st.text(
    st.one_of(
        st.sampled_from("ab19,. \t\n\u3000\u00a8é\u0301ﬁ½ΣςİßÅ한🎉नि\u200b™"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)


@pytest.fixture(scope="module", params=["30k-clean", "self-contained-500"])
def either_tokenizer(request):
    return Tokenizer(str(TESTDATA / f"{request.param}.model"))


@hypothesis.settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(text=AWKWARD)
@hypothesis.example(text="\u0301 a \u0301")
def test_tokens_are_those_of_the_tokenizer_and_cover_the_text(
    either_tokenizer, text
):
    tokens = align(either_tokenizer, text)
    assert (
        tokens.ids.tolist()
        == either_tokenizer.encode_batch([text]).ids.tolist()
    )
    assert np.all(tokens.begins <= tokens.ends)
    assert np.all(np.diff(tokens.begins) >= 0)
    assert np.all(np.diff(tokens.ends) >= 0)
    covered = np.zeros(len(text), bool)
    for begin, end in zip(tokens.begins, tokens.ends, strict=True):
        covered[begin:end] = True
    for character, is_covered in zip(text, covered, strict=True):
        # SentencePiece drops control and format characters.
        assert is_covered or not character.isalnum()


# --- windows -----------------------------------------------------------------


@hypothesis.given(
    num_tokens=st.integers(0, 60),
    room=st.integers(1, 20),
    stride=st.integers(1, 25),
)
def test_windows_cover_the_document_in_steps_of_the_stride(
    num_tokens, room, stride
):
    spans = split(num_tokens, room, stride)
    begins = [begin for begin, _ in spans]
    assert begins == [i * min(stride, room) for i in range(len(spans))]
    covered = {t for begin, end in spans for t in range(begin, end)}
    assert covered == set(range(num_tokens))
    assert all(end - begin == room for begin, end in spans[:-1])
    assert all(end < num_tokens for _, end in spans[:-1])


@pytest.mark.parametrize(
    ("document", "text", "found"),
    [
        # Accents, case, compatibility characters and white space.
        ("The  Café\u0301s of “Zu\u0308rich”.", "Zu\u0308rich", ""),
        ("İstanbul and ΑΘΗΝΑΣ, ½ ﬁne", "½ ﬁne", ""),
        ("In 2011,\u3000the \uff21\uff22 tower", "2011", ""),
        ("한국의 수도는 서울이다", "한국의", ""),
        ("a\u00a0b\nc", "b\nc", ""),
        # Invisible characters beside an answer are no part of it.
        ("in the\u200b old\u200b town", "old", ""),
        ("\ufeffnear\u200e the \u200ered gate\u200f\a now", "red gate", ""),
        ("a b \u200b c d", "\u200b", "no tokens"),
        ("a b c d e f g h i", "b c d e f g h", "no window has all"),
    ],
)
def test_an_answer_comes_back_or_has_a_reason(tokenizer, document, text, found):
    question = Question(
        "q", "Which?", document, (Answer(text, document.find(text)),)
    )
    config = TaskConfig(max_query_length=2)
    maker = WindowMaker(tokenizer, config, 11 if found else 128)
    windows = maker.make(question)
    assert found in windows.problem
    if found:
        assert windows.answer is None and windows.answer_in(0) == (0, 0)
    else:
        assert windows.text_of(*windows.answer) == text


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    with pytest.raises(UserError, match=r"max_query_length.*64 and 67"):
        WindowMaker(tokenizer, TaskConfig(), 67)


@pytest.mark.interop
def test_windows_and_positions_equal_those_of_transformers(
    tokenizer, squad, tmp_path
):
    """The features of the question-answering example of transformers, whose
    `stride` is the overlap of two windows."""
    import transformers

    vocabulary = str(TESTDATA / "30k-clean.model")
    for name, content in tokenizer_files(tokenizer, vocabulary, 512).items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    config, length = TaskConfig(doc_stride=40, max_query_length=40), 128
    maker = WindowMaker(tokenizer, config, length)
    ours = iter(windows_of(maker, squad))
    num_windows = num_answers = 0
    for question in squad:
        query = theirs(question.question, add_special_tokens=False)["input_ids"]
        assert len(query) <= 40
        encoded = theirs(
            question.question,
            question.document,
            truncation="only_second",
            max_length=length,
            stride=length - 3 - len(query) - config.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )
        for window, input_ids in enumerate(encoded["input_ids"]):
            windows, number = next(ours)
            inputs = windows.inputs(number, length)
            assert inputs["input_ids"].tolist() == input_ids
            segments = encoded.sequence_ids(window)
            assert inputs["p_mask"].tolist() == [
                int(segment != 1 and position > 0)
                for position, segment in enumerate(segments)
            ]
            expected = positions_of_transformers(
                question, encoded["offset_mapping"][window], segments
            )
            assert windows.answer_in(number) == expected
            num_windows += 1
            num_answers += expected != (0, 0)
    assert next(ours, None) is None
    assert (num_windows, num_answers) == (916, 103)


def positions_of_transformers(question, offsets, segments):
    """Start and end by the rules of its question-answering example."""
    if not question.answers:
        return 0, 0
    begin = question.answers[0].start
    end = begin + len(question.answers[0].text)
    tokens = [i for i, segment in enumerate(segments) if segment == 1]
    if not (offsets[tokens[0]][0] <= begin and offsets[tokens[-1]][1] >= end):
        return 0, 0
    return (
        max(i for i in tokens if offsets[i][0] <= begin),
        min(i for i in tokens if offsets[i][1] >= end),
    )


# --- answers -----------------------------------------------------------------


def windows_of(maker, questions):
    """Each window of each question: its windows, and its number."""
    return [
        (windows, window)
        for windows in map(maker.make, questions)
        for window in range(len(windows.spans))
    ]


def oracle_logits(positions, length):
    """Logits that point at the answer of each window, else at [CLS]."""
    logits = np.full((2, len(positions), length), -10.0, np.float32)
    for i, (start, end) in enumerate(positions):
        logits[0, i, start] = logits[1, i, end] = 10
    return {"start_logits": logits[0], "end_logits": logits[1]}


def oracle_beam(positions):
    """The answer of each window is the second span of the beam."""
    starts, ends = np.array(positions).T[:, :, np.newaxis]
    size, beam = len(positions), 2
    return {
        # The first start is the first token of the question: no answer.
        "start_positions": np.hstack([starts * 0 + 1, starts]),
        "start_log_probs": np.tile([-0.5, -1.0], (size, 1)),
        "end_positions": np.tile(ends[:, np.newaxis], (1, beam, beam)),
        "end_log_probs": np.full((size, beam, beam), -1.0),
        "null_logits": np.where(starts[:, 0] == 0, 3.0, -3.0),
    }


@pytest.mark.parametrize(("head", "length"), [("plain", 192), ("beam", 384)])
def test_perfect_scores_give_every_answer(tokenizer, squad, length, head):
    """Windows overlap, so that an answer is in several of them. Questions with
    and without answer score 100 by the official rules."""
    config = TaskConfig(doc_stride=64, max_answer_length=60)
    maker = WindowMaker(tokenizer, config, length)
    positions = [w.answer_in(i) for w, i in windows_of(maker, squad)]
    answers = list(
        find_answers(
            squad,
            maker,
            oracle_logits(positions, length)
            if head == "plain"
            else oracle_beam(positions),
        )
    )
    scores = score_answers(
        squad,
        {answer.id: answer.text(0.0) for answer in answers},
        {answer.id: answer.null_odds for answer in answers},
        null_threshold=0.0,
    )
    assert scores["HasAns_exact"] == scores["NoAns_exact"] == 100
    assert (scores["HasAns_total"], scores["NoAns_total"]) == (55, 59)


DOCUMENT = "one two three four five six"
CONFIG = TaskConfig(max_query_length=4, n_best_size=3, max_answer_length=2)
# Positions: 0 [CLS], 1 which, 2 [SEP], 3 one, 4 two, ... 8 six, 9 [SEP].


def answer(tokenizer, starts, ends, document=DOCUMENT, config=CONFIG):
    """The answer at these logits, `(windows, length)`."""
    starts, ends = np.float32(starts), np.float32(ends)
    maker = WindowMaker(tokenizer, config, starts.shape[1])
    (found,) = find_answers(
        [Question("q", "which", document)],
        maker,
        {"start_logits": starts, "end_logits": ends},
    )
    return found


def logits(**values):
    array = np.full([1, 12], -9.0)
    for position, value in values.items():
        array[0, int(position[1:])] = value
    return array


def test_candidates_are_scored_by_start_and_end(tokenizer):
    found = answer(
        tokenizer, logits(p0=1, p3=2, p4=5), logits(p0=1, p4=3, p5=4)
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
    assert (found.null_score, found.null_odds) == (2, 2 - 9)
    assert (found.text(), found.text(-7), found.text(-7.5)) == (
        "two three",
        "two three",
        "",
    )


@pytest.mark.parametrize(
    ("starts", "ends", "document", "best"),
    [
        # Start after end, more than `max_answer_length` tokens, and tokens of
        # the question or separators.
        (
            {"p1": 9, "p2": 9, "p5": 8, "p3": 7, "p9": 9},
            {"p1": 9, "p4": 8, "p6": 7, "p9": 9},
            DOCUMENT,
            [("three four", 15), ("one two", 15)],
        ),
        # A text is a candidate once.
        ({"p3": 5, "p5": 6}, {"p3": 5, "p5": 6}, "two or two", [("two", 12)]),
        # Neither an empty document nor a combining mark has an answer.
        ({}, {}, "", [("", -1e6)]),
        ({}, {}, "\u0301", [("", -1e6)]),
    ],
)
def test_impossible_or_equal_spans_are_no_candidates(
    tokenizer, starts, ends, document, best
):
    found = answer(tokenizer, logits(**starts), logits(**ends), document)
    candidates = [(c.text, c.score) for c in found.candidates]
    assert candidates[: len(best)] == best
    assert len({text for text, _ in candidates}) == len(candidates)


def test_a_span_counts_only_in_the_window_of_its_largest_context(tokenizer):
    """Windows of tokens 0 to 3, 1 to 4 and 2 to 5: "three" and "four" count in
    the first of two windows with as much context. The null score is the least
    of all windows: one that contains an answer is enough."""
    config = TaskConfig(max_query_length=4, doc_stride=1, max_answer_length=1)
    scores = np.zeros((3, 8))
    scores[0, [3, 5, 6]] = 2, 1, 9  # one, three, four
    scores[1, 4] = scores[2, 4] = 9  # three; four
    scores[:, 0] = 4, 3, 5
    found = answer(tokenizer, scores, scores, config=config)
    best = [(c.text, c.score) for c in found.candidates[:2]]
    assert best == [("one", 4), ("three", 2)]
    assert (found.null_score, found.null_odds) == (6, 6 - 4)
