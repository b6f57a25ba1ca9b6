import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.encoding import make_records
from albert_tf.finetuning.example_types import Answer, Question
from albert_tf.finetuning.windows import WindowMaker, _best_window, split
from albert_tf.interop.hugging_face_tokenizer import tokenizer_files
from tests.finetuning.conftest import TESTDATA


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


@hypothesis.given(st.integers(1, 60), st.integers(2, 20), st.integers(1, 19))
def test_a_token_counts_in_the_window_of_its_largest_context(
    num_tokens, room, stride
):
    """The expected window follows from the definition, token by token."""
    spans = split(num_tokens, room, stride)
    for token, found in enumerate(_best_window(spans, num_tokens)):
        contexts = [
            min(token - begin, end - 1 - token) + 0.01 * (end - begin)
            if begin <= token < end
            else -1
            for begin, end in spans
        ]
        assert found == contexts.index(max(contexts))


def test_every_answer_comes_back_from_its_tokens(tokenizer, squad):
    """For real questions; five answers that end within a token get longer."""
    maker = WindowMaker(tokenizer, TaskConfig(), 384)
    different = []
    for question in squad.examples:
        windows = maker.make(question)
        assert not windows.problem
        if question.answers:
            text = windows.text_of(*windows.answer)
            if text != question.answers[0].text:
                different.append((question.answers[0].text, text))
    assert sorted(different) == [
        ("27-30", "27-30%"),
        *[("90", "90%")] * 2,
        *[("Japan", "Japanese")] * 2,
    ]


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        ("The  Café\u0301s of “Zu\u0308rich”.", "Zu\u0308rich"),
        ("İstanbul and ΑΘΗΝΑΣ, ½ ﬁne", "½ ﬁne"),
        ("In 2011,\u3000the \uff21\uff22 tower", "2011"),
        ("한국의 수도는 서울이다", "한국의"),
        ("a\u00a0b\nc", "b\nc"),
    ],
)
def test_an_answer_comes_back_through_the_normalisation(
    tokenizer, document, answer
):
    """Accents, case, compatibility characters and white space."""
    question = Question(
        "q",
        "Which?",
        document,
        (Answer(answer, document.index(answer)),),
        False,
    )
    windows = WindowMaker(tokenizer, TaskConfig(), 128).make(question)
    assert windows.text_of(*windows.answer) == answer


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer("dog", 3), "does not have the answer"),
        (Answer(" ", 1), "no tokens"),
        (Answer("b c d e f", 2), "no window has all of the answer"),
    ],
)
def test_an_answer_that_is_not_found_has_a_reason(tokenizer, answer, problem):
    config = TaskConfig(max_query_length=2)
    question = Question("q", "Which one", "a b c d e f", (answer,), False)
    windows = WindowMaker(tokenizer, config, 9).make(question)
    assert problem in windows.problem
    assert windows.answer is None and windows.answer_in(0) == (0, 0)


def test_a_window_that_cuts_the_answer_does_not_contain_it(tokenizer):
    """Windows of tokens 0 to 3 and 2 to 5; the answer is tokens 3 and 4."""
    document = "one two three four five six"
    answer = Answer("four five", document.index("four"))
    question = Question("q", "which", document, (answer,), False)
    config = TaskConfig(max_query_length=4, doc_stride=2)
    windows = WindowMaker(tokenizer, config, 8).make(question)
    assert windows.spans == [(0, 4), (2, 6)]
    assert windows.answer_in(0) == (0, 0)
    assert windows.answer_in(1) == (4, 5)  # [CLS] which [SEP] three four five


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    with pytest.raises(UserError, match=r"max_query_length.*64 and 67"):
        WindowMaker(tokenizer, TaskConfig(), 67)


@pytest.mark.slow
def test_an_answer_is_found_in_a_document_of_100_000_words(tokenizer):
    """Quadratic time would make this test very slow; no limit is checked."""
    words = [f"word{i}" for i in range(100_000)]
    document = " ".join(words)
    answer = Answer("word99998", document.index("word99998"))
    question = Question("q", "Which?", document, (answer,), False)
    windows = WindowMaker(tokenizer, TaskConfig(), 384).make(question)
    assert windows.text_of(*windows.answer) == "word99998"
    assert len(windows.spans) > 1000
    assert windows.answer_in(len(windows.spans) - 1) != (0, 0)


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
    ours = make_records(squad, tokenizer, config, length)
    num_windows = num_answers = 0
    for question in squad.examples:
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
            record = next(ours)
            assert record["input_ids"].tolist() == input_ids
            segments = encoded.sequence_ids(window)
            assert record["p_mask"].tolist() == [
                int(segment != 1 and position > 0)
                for position, segment in enumerate(segments)
            ]
            expected = positions_of_transformers(
                question, encoded["offset_mapping"][window], segments
            )
            found = (record["start_position"][0], record["end_position"][0])
            assert found == expected
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


def test_windows_are_numbered_and_share_the_number_of_their_question(
    tokenizer, squad
):
    records = list(make_records(squad, tokenizer, TaskConfig(), 256))
    keys = [(r["example_number"][0], r["window_number"][0]) for r in records]
    assert keys == sorted(set(keys))
    assert {number for number, _ in keys} == set(range(len(squad.examples)))
    for record in records:
        begin, end = record["start_position"][0], record["end_position"][0]
        assert np.all(record["p_mask"][begin : end + 1] == 0)
        assert record["is_impossible"][0] == (begin == 0)
