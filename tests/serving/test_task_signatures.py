"""Exported models of each kind of task, against the model in memory."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.finetuning.answers import decode
from albert_tf.finetuning.encoding import make_records
from albert_tf.interop.loading import make_model
from albert_tf.records.encoding import encode
from albert_tf.records.tokenization import Tokenizer
from tests.helpers.exportable_task import MODEL, NULL_THRESHOLD, TASK
from tests.helpers.served_examples import choice_examples, squad_examples
from tests.helpers.tiny_albert import VOCABULARY

pytestmark = pytest.mark.slow  # exports a model of each kind

LENGTH = MODEL.max_position_embeddings
INPUTS = ("input_ids", "input_mask", "segment_ids")


def stack(records, *names):
    return {
        name: np.stack([record[name] for record in records]).astype(np.int32)
        for name in names
    }


def predict(weights, batch):
    """The outputs of the model in memory, computed in parts of 200 rows."""
    model = make_model(weights)
    parts = [
        model(
            {
                name: tf.constant(values[begin : begin + 200])
                for name, values in batch.items()
            }
        )
        for begin in range(0, len(batch["input_ids"]), 200)
    ]
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def answers_in_memory(examples, weights):
    """The answers of mode=predict, and the number of windows."""
    tokenizer = Tokenizer(str(VOCABULARY))
    records = list(make_records(examples, tokenizer, TASK, LENGTH))
    is_beam = weights.head.is_beam
    names = (*INPUTS, "p_mask") if is_beam else INPUTS
    outputs = predict(weights, stack(records, *names))
    predictions = outputs | stack(records, "example_number", "window_number")
    if is_beam:  # mode=predict collects the other outputs only
        del predictions["start_logits"]
    answers = decode(examples, tokenizer, TASK, LENGTH, predictions)
    return list(answers), len(records)


def decided_by_rounding(examples, weights, expected):
    """Numbers of the questions whose answer tiny changes of weights change.

    Of the tokens that may start or end an answer, only the best of each window
    are tried, and the last of them may be hardly better than the next one.
    """
    found = set()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        values = {
            path: value * (1 + 1e-6 * rng.normal(size=value.shape))
            for path, value in weights.values.items()
        }
        changed = dataclasses.replace(
            weights,
            values={path: v.astype(np.float32) for path, v in values.items()},
        )
        answers, _ = answers_in_memory(examples, changed)
        found |= {
            i
            for i, (a, b) in enumerate(zip(answers, expected, strict=True))
            if a.candidates[0][:3] != b.candidates[0][:3]
        }
    return found


@pytest.mark.parametrize("pairs", [None, ["It lies on a river.", ""]])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_served_labels_and_values_are_those_of_the_model(
    kind, pairs, exported_task
):
    weights, _, client = exported_task(kind)
    texts = ["The town, in 1905.", "It " * 200]
    batch = encode(Tokenizer(str(VOCABULARY)), texts, pairs, LENGTH)
    logits = predict(weights, batch._asdict())["logits"]

    name = "classify" if kind == "classification" else "predict_value"
    more = {"text_pair": pairs} if pairs else {}
    suffix = "_text_pair" if pairs else "_text"
    found = client.predict(name + suffix, {"text": texts} | more)

    if kind == "regression":
        np.testing.assert_allclose(found["value"], logits[:, 0], atol=1e-5)
        return
    labels = ["no", "yes", "maybe"]
    assert found["labels"] == [labels] * 2
    np.testing.assert_allclose(
        found["probabilities"], softmax(logits), atol=1e-5
    )
    assert found["label"] == [labels[i] for i in logits.argmax(axis=-1)]


def test_served_choices_are_those_of_the_model(exported_task):
    weights, _, client = exported_task("multiple_choice")
    examples = choice_examples()
    tokenizer = Tokenizer(str(VOCABULARY))
    records = list(make_records(examples, tokenizer, TASK, LENGTH))
    batch = stack(records, *INPUTS)
    probabilities = softmax(predict(weights, batch)["logits"])
    best = probabilities.argmax(axis=-1)
    assert len(set(best)) > 1

    choices = [example.choices for example in examples.examples]
    found = client.predict(
        "choose_text",
        {
            "question": [example.question for example in examples.examples],
            "context": [example.passage for example in examples.examples],
            "choices": choices,
        },
    )
    from_ids = client.predict(
        "choose", {n: v.reshape(len(v), 3, LENGTH) for n, v in batch.items()}
    )

    for outputs in found, from_ids:
        np.testing.assert_allclose(
            outputs["probabilities"], probabilities, atol=1e-5
        )
        assert outputs["choice_number"] == best.tolist()
    assert found["choice"] == [
        of_question[i] for of_question, i in zip(choices, best, strict=True)
    ]


def test_choices_longer_than_the_model_are_refused(exported_task):
    """The length of each choice counts, not that of all three together."""
    _, _, client = exported_task("multiple_choice")

    def choose(length):
        ids = np.ones([2, 3, length], np.int32)
        return client.predict("choose", dict.fromkeys(INPUTS, ids))

    assert len(choose(LENGTH)["choice_number"]) == 2
    with pytest.raises(Exception, match=f"at most {LENGTH} tokens long"):
        choose(LENGTH + 1)


@pytest.mark.parametrize("head", ["plain", "beam"])
def test_served_answers_are_those_of_mode_predict(head, exported_task):
    squad = squad_examples()
    weights, _, client = exported_task(head)
    expected, num_records = answers_in_memory(squad, weights)
    undecided = decided_by_rounding(squad, weights, expected)
    threshold = NULL_THRESHOLD[head]

    found = client.predict(
        "find_answer_text",
        {
            "question": [q.question for q in squad.examples],
            "context": [q.document for q in squad.examples],
        },
    )

    texts = []
    for i, (question, answer) in enumerate(
        zip(squad.examples, expected, strict=True)
    ):
        if i in undecided:
            continue
        best = answer.candidates[0]
        assert found["score"][i] == pytest.approx(best.score, abs=1e-5)
        assert found["null_odds"][i] == pytest.approx(
            answer.null_odds, rel=1e-6, abs=1e-5
        )
        null_score = answer.null_odds + best.score * (head == "plain")
        assert found["null_score"][i] == pytest.approx(null_score, abs=1e-5)
        if abs(answer.null_odds - threshold) < 1e-5:
            continue
        text = found["answer"][i]
        start, end = found["start"][i], found["end"][i]
        assert text == answer.text(threshold), question.id
        assert question.document[start:end] == text
        assert (start, end) == ((best.begin, best.end) if text else (0, 0))
        texts.append(text)
    nothing = {"question": np.array([], str), "context": np.array([], str)}
    assert client.predict("find_answer_text", nothing)["answer"] == []
    # Most documents have several windows; the threshold divides the answers.
    assert num_records > 2 * len(expected)
    assert len(texts) > len(expected) - 5, undecided
    assert 30 < texts.count("") < len(expected) - 30
    assert len(set(texts)) > 25


def test_an_answer_is_found_in_a_context_of_100_000_words(exported_task):
    """The model reads its thousands of windows in parts."""
    squad = squad_examples()
    words = " ".join(q.document for q in squad.examples).split(" ")
    context = " ".join(np.random.default_rng(0).choice(words, 100_000))
    question = squad.examples[0]._replace(document=context)
    squad.examples[:] = [question]
    weights, _, client = exported_task("plain")
    (expected,), num_records = answers_in_memory(squad, weights)
    assert num_records > 2000

    found = client.predict(
        "find_answer_text",
        {"question": [question.question], "context": [context]},
    )

    start, end = found["start"][0], found["end"][0]
    assert found["answer"][0] == context[start:end]
    best = expected.candidates[0]
    assert (start, end) == (best.begin, best.end)
    assert found["score"][0] == pytest.approx(best.score, abs=1e-5)
