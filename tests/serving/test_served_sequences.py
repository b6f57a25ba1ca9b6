"""Sequences and answers made in the graph, against those of fine-tuning."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config.task import TaskConfig
from albert_tf.finetuning.answers import decode
from albert_tf.finetuning.encoding import make_records
from albert_tf.records.tokenization import Tokenizer
from albert_tf.serving.answer_search import find_answers
from albert_tf.serving.document_windows import make_windows
from albert_tf.serving.task_signatures import (
    AnswerRules,
    join_choices,
    pack_choices,
)
from albert_tf.serving.text_alignment import align
from albert_tf.serving.text_tokenizer import TextTokenizer
from tests.helpers.exportable_task import TASK
from tests.helpers.served_examples import choice_examples, squad_examples
from tests.helpers.tiny_albert import VOCABULARY

LENGTH = 64


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(str(VOCABULARY))


@pytest.fixture(scope="module")
def text_tokenizer():
    return TextTokenizer(str(VOCABULARY))


def stack(records, *names):
    return {name: np.stack([r[name] for r in records]) for name in names}


def assert_equal_rows(packed, records):
    """The rows equal those of records, which have more padding."""
    for name, values in packed._asdict().items():
        expected = np.concatenate(
            [record[name].reshape(-1, LENGTH) for record in records]
        )
        length = values.shape[1]
        np.testing.assert_array_equal(values, expected[:, :length], name)
        assert not expected[:, length:].any()


@pytest.mark.parametrize("max_qa_length", [20, 100])
def test_choices_are_packed_as_in_training(
    max_qa_length, tokenizer, text_tokenizer
):
    """Passages lose their end; questions with choices, their beginning."""
    task = TaskConfig(max_qa_length=max_qa_length)
    examples = choice_examples()
    records = list(make_records(examples, tokenizer, task, LENGTH))

    texts = join_choices(
        tf.constant([example.question for example in examples.examples]),
        tf.constant([example.choices for example in examples.examples]),
    )
    passages = [example.passage for example in examples.examples]
    packed = pack_choices(
        text_tokenizer.encode(tf.constant(passages)),
        text_tokenizer.encode(tf.reshape(texts, [-1])),
        3,
        AnswerRules(LENGTH, task, 0.0),
    )

    assert_equal_rows(packed, records)
    assert packed.input_ids.shape == (15, LENGTH)


@pytest.fixture(scope="module")
def windows(tokenizer, text_tokenizer):
    """Questions, their records, and the documents and windows of the graph."""
    squad = squad_examples()
    records = list(make_records(squad, tokenizer, TASK, LENGTH))
    contexts = tf.constant([q.document for q in squad.examples])
    documents = align(text_tokenizer, contexts)
    questions = text_tokenizer.encode(
        tf.constant([q.question for q in squad.examples])
    )
    made = make_windows(questions, documents.ids, TASK, LENGTH)
    return squad, records, contexts, documents, made


def test_windows_are_those_of_training(windows):
    squad, records, *_, made = windows
    assert len(records) > 4 * len(squad.examples)
    assert_equal_rows(made.packed, records)
    numbers = stack(records, "example_number", "p_mask")
    np.testing.assert_array_equal(
        made.examples, numbers["example_number"][:, 0]
    )
    np.testing.assert_array_equal(made.p_mask, numbers["p_mask"])


def random_scores(rng, records, head):
    """Whole numbers, so that there are many equal scores."""
    size = len(records)

    def whole(*shape):
        return rng.integers(-4, 5, (size, *shape)).astype(np.float32)

    if head == "plain":
        return {"start_logits": whole(LENGTH), "end_logits": whole(LENGTH)}
    return {
        "start_positions": rng.integers(0, LENGTH, (size, 5)),
        "end_positions": rng.integers(0, LENGTH, (size, 5, 5)),
        "start_log_probs": whole(5),
        "end_log_probs": whole(5, 5),
        "null_logits": whole(),
    }


@pytest.mark.parametrize("head", ["plain", "beam"])
def test_answers_are_those_of_mode_predict(head, windows, tokenizer):
    """Many scores are equal, so the rules for ties must agree, too."""
    squad, records, contexts, documents, made = windows
    scores = random_scores(np.random.default_rng(0), records, head)
    predictions = scores | stack(records, "example_number", "window_number")
    expected = list(decode(squad, tokenizer, TASK, LENGTH, predictions))
    threshold = float(np.median([answer.null_odds for answer in expected]))

    found = find_answers(
        contexts,
        documents,
        made,
        {name: tf.constant(values) for name, values in scores.items()},
        TASK,
        threshold,
    )

    rows = zip(*(values.numpy() for values in found.values()), strict=True)
    texts = []
    for question, answer, row in zip(
        squad.examples, expected, rows, strict=True
    ):
        best = answer.candidates[0]
        text = answer.text(threshold)
        span = (best.begin, best.end) if text else (0, 0)
        null_score = answer.null_odds + best.score * (head == "plain")
        assert row == (
            text.encode(),
            *span,
            best.score,
            null_score,
            answer.null_odds,
        ), question.id
        assert question.document[span[0] : span[1]] == text
        texts.append(text)
    assert 0.2 < texts.count("") / len(texts) < 0.8
    assert len(set(texts)) > 20


def test_a_question_without_answer_has_the_empty_one(text_tokenizer):
    """Neither an empty context nor one of a combining mark has an answer."""
    contexts = tf.constant(["", "\u0301"])
    documents = align(text_tokenizer, contexts)
    questions = text_tokenizer.encode(tf.constant(["Who?", "Who?"]))
    made = make_windows(questions, documents.ids, TASK, LENGTH)
    logits = tf.ones(made.p_mask.shape)
    scores = {"start_logits": logits, "end_logits": logits}
    found = find_answers(contexts, documents, made, scores, TASK, float("inf"))
    assert found["answer"].numpy().tolist() == [b"", b""]
    assert found["score"].numpy().tolist() == [-1e6, -1e6]
    assert found["end"].numpy().tolist() == [0, 0]
