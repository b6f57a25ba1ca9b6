"""Exported fine-tuned models, against the model in memory."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config.task import TaskConfig
from albert_tf.finetuning.examples import read_examples
from albert_tf.finetuning.features import make_records
from albert_tf.finetuning.kinds import (
    ChoiceExample,
    ExampleSet,
    Reader,
    TokenExample,
)
from albert_tf.finetuning.tasks import Task
from albert_tf.interop.formats import make_model
from albert_tf.records.questions import Question, WindowMaker, find_answers
from albert_tf.records.tokenization import Tokenizer, encode
from albert_tf.serving.predict import answer_rows
from tests.helpers.exports import NULL_THRESHOLD, TASK, TASK_MODEL
from tests.helpers.tiny_albert import TESTDATA, VOCABULARY

pytestmark = pytest.mark.slow  # exports a model of each kind

LENGTH = TASK_MODEL.max_position_embeddings
INPUTS = ("input_ids", "input_mask", "segment_ids")


def squad_examples():
    """Real questions of SQuAD 2.0, and unusual texts."""
    path = TESTDATA / "finetuning" / "squad-v2.0-excerpt.json"
    config = TaskConfig(task="squad_v2", dev_file=str(path))
    examples = read_examples(config, "dev")
    question, document = examples.examples[2][1:3]
    more = {
        "empty": (question, ""),
        "marks": (question, " \u0301 \xa8 \u0301 "),
        "long": (question, "Rhine, İstanbul " * 900),
        "accents": (question, f"  Ünï\u0301 ﬁn ½\t{document} "),
        "long question": ("who " * 40, document),
    }
    examples.examples += [
        Question(name, *texts, (), True) for name, texts in more.items()
    ]
    return examples


def choice_examples():
    """Questions with three choices, some longer than a sequence."""
    passage = "In 2011, the Café in Zürich was closed. "
    examples = [
        ("Where is it?", passage, ("Zürich", "1,000, Rome", "Bern")),
        ("It is _.", passage * 20, ("here", "a_b", "")),
        ("_, _ or _", passage * 20, ("x" * 90, "y " * 90, "z")),
        ("Why? " * 30, "", ("so " * 30, "Oslo.", "_")),
        ("", " \t", ("here", "not _ here", "\xa8")),
    ]
    task = Task("multiple_choice", "multiple_choice", num_choices=3)
    return ExampleSet(
        task,
        "test",
        "tests",
        examples=[
            ChoiceExample(str(i), passage, question, choices, None)
            for i, (question, passage, choices) in enumerate(examples)
        ],
    )


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


@pytest.mark.parametrize("pairs", [None, ["It lies on a river.", ""]])
@pytest.mark.parametrize(
    "kind", ["classification", "regression", "multi_label_classification"]
)
def test_served_labels_and_values_are_those_of_the_model(
    kind, pairs, exported_task
):
    weights, _, model = exported_task(kind)
    texts = ["The town, in 1905.", "It " * 200]
    batch = encode(Tokenizer(str(VOCABULARY)), texts, pairs, LENGTH)
    logits = predict(weights, batch._asdict())["logits"]

    name = "predict_value" if kind == "regression" else "classify"
    more = {"text_pair": pairs} if pairs else {}
    suffix = "_text_pair" if pairs else "_text"
    found = model.predict(name + suffix, {"text": texts} | more)

    if kind == "regression":
        np.testing.assert_allclose(found["value"], logits[:, 0], atol=1e-5)
        return
    if kind == "multi_label_classification":
        assert found["labels"] == [["joy", "fear"]] * 2
        probabilities = 1 / (1 + np.exp(-logits))
        np.testing.assert_allclose(
            found["probabilities"], probabilities, atol=1e-5
        )
        return
    labels = ["no", "yes", "maybe"]
    assert found["labels"] == [labels] * 2
    np.testing.assert_allclose(
        found["probabilities"], softmax(logits), atol=1e-5
    )
    assert found["label"] == [labels[i] for i in logits.argmax(axis=-1)]


# Texts, and their words.
WORDS = {
    "Ann's U.N. visit, in Café-Bar İstanbul: 3.5%!": "Ann ' s U.N . visit , "
    "in Café-Bar İstanbul : 3.5 % !",
    " \t": "",
    "word " * 200: "word " * 200,
    "It\0is\0.": "It is .",
}


def test_served_tags_are_those_of_the_model(exported_task):
    """Of the words of raw texts, with their characters, and of given words.
    Words beyond the length have no tag."""
    weights, _, model = exported_task("token_classification")
    kind, labels = weights.head.kind, weights.head.labels
    words = [text.split() for text in WORDS.values()]
    task = Task(kind, kind, labels=labels)
    rows = [
        TokenExample(str(i), tuple(row), None) for i, row in enumerate(words)
    ]
    examples = ExampleSet(task, "test", "tests", rows)
    tokenizer = Tokenizer(str(VOCABULARY))
    records = list(make_records(examples, Reader(tokenizer, TASK, LENGTH)))
    probabilities = softmax(predict(weights, stack(records, *INPUTS))["logits"])
    assert np.ptp(probabilities.max(-1)) > 1e-4  # the tokens differ
    assert "words beyond max_seq_length" in examples.bad[0][1]

    found = model.predict("tag_text", {"text": [*WORDS]})
    rows = [{"text": next(iter(WORDS))}]
    (answer,) = answer_rows(model, rows)
    size = max(map(len, words))
    padded = [row + [""] * (size - len(row)) for row in words]
    given = model.predict("tag_words", {"words": padded})

    assert answer["words"] == words[0]
    assert found["words"] == given["words"] == padded
    for name in "tags", "probabilities":
        assert found[name] == given[name]
    for i, (text, record) in enumerate(zip(WORDS, records, strict=True)):
        offsets = zip(found["begins"][i], found["ends"][i], strict=True)
        assert [text[begin:end] for begin, end in offsets] == padded[i]
        tags, numbers = [""] * size, record["word_numbers"]
        expected = np.zeros(size)
        for position in np.flatnonzero(numbers):
            word, of_word = numbers[position] - 1, probabilities[i, position]
            tags[word] = labels[of_word.argmax()]
            expected[word] = of_word.max()
        assert found["tags"][i] == tags
        np.testing.assert_allclose(
            found["probabilities"][i], expected, atol=3e-6
        )


def test_served_choices_are_those_of_the_model(exported_task):
    weights, _, model = exported_task("multiple_choice")
    examples = choice_examples()
    tokenizer = Tokenizer(str(VOCABULARY))
    records = list(make_records(examples, Reader(tokenizer, TASK, LENGTH)))
    batch = stack(records, *INPUTS)
    probabilities = softmax(predict(weights, batch)["logits"])
    best = probabilities.argmax(axis=-1)
    assert len(set(best)) > 1

    choices = [example.choices for example in examples.examples]
    found = model.predict(
        "choose_text",
        {
            "question": [example.question for example in examples.examples],
            "context": [example.passage for example in examples.examples],
            "choices": choices,
        },
    )
    no_texts = tf.zeros([0], tf.string)
    nothing = model.model.signatures["choose_text"](
        question=no_texts, context=no_texts, choices=tf.zeros([0, 3], tf.string)
    )
    assert nothing["probabilities"].shape == (0, 3)
    from_ids = model.predict(
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


@pytest.mark.parametrize("head", ["question_answering", "beam"])
def test_served_answers_are_those_of_mode_predict(head, exported_task):
    """Every question is answered by a request of its own windows only. Each
    head answers a quarter of the questions."""
    squad = squad_examples()
    squad.examples = squad.examples[head == "beam" :: 4]
    weights, _, model = exported_task(head)
    tokenizer = Tokenizer(str(VOCABULARY))
    records = list(make_records(squad, Reader(tokenizer, TASK, LENGTH)))
    names = (*INPUTS, *["p_mask"] * (head == "beam"))
    outputs = predict(weights, stack(records, *names))
    maker = WindowMaker(tokenizer, TASK, LENGTH)
    expected = list(find_answers(squad.examples, maker, outputs))
    threshold = NULL_THRESHOLD[head]

    differ, texts = 0, set()
    for question, wanted in zip(squad.examples, expected, strict=True):
        (found,) = answer_rows(
            model,
            [{"text": question.document, "question": question.question}],
        )
        best, text = wanted.candidates[0], wanted.text(threshold)
        begin, end = (best.begin, best.end) if text else (0, 0)
        texts.add(text)
        if found["answer"] != text:
            differ += 1  # scores that differ by rounding decide it
            continue
        assert (found["start"], found["end"]) == (begin, end)
        for name, value in [
            ("score", best.score),
            ("null_score", wanted.null_score),
            ("null_odds", wanted.null_odds),
        ]:
            assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-5)
    assert differ < 3
    assert "" in texts and len(texts) > 6
    # Most documents have several windows.
    assert len(records) > 2 * len(expected)
