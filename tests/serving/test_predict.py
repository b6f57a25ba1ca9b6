"""`python -m albert_tf.predict`: exported models asked in this process."""

import os
import re
import subprocess
import sys

import pytest

from albert_tf.config import PredictConfig, TextsConfig
from albert_tf.errors import UserError
from albert_tf.predict import main
from albert_tf.serving import predict
from albert_tf.serving.predict import (
    LocalClient,
    ask,
    find_task,
    print_responses,
)
from tests.helpers.exports import filled_lines


@pytest.mark.slow
def test_the_command_fills_masks_without_model_code(exported, served):
    """A line for each mask; an export needs no code of the model."""
    texts = ["The [MASK] sat on [MASK].", "[MASK]"]
    program = (
        "import sys; from albert_tf.config import PredictConfig\n"
        "from albert_tf.predict import main\n"
        f"main(PredictConfig({tuple(texts)}, "
        f"saved_model_dir={str(exported('sop'))!r}))\n"
        "assert 'albert_tf.modeling' not in sys.modules\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUTF8": "1"},
    ).stdout.splitlines()
    assert printed == filled_lines(served, texts)
    assert len(printed) == 2 + 3


class Signatures:
    """A `Client` of a model that has these signatures and answers NaN."""

    def __init__(self, *names):
        self.names = ["serving_default", *names]

    def list_signatures(self):
        return self.names

    def predict(self, signature, inputs):
        return {"label": ["a"], "probabilities": [[float("nan")]]}


# Signatures, texts, and the error.
REFUSED = [
    (
        *("score_spans", {}),
        "question answering must be given text, question. Received: text. "
        "Set --text=... --question=...",
    ),
    (
        *("classify_text_pair", {}),
        "of pairs must be given text, text_pair. Received: text. "
        "Set --text=... --text_pair=...",
    ),
    (
        *("classify_text", {"text_pair": ("b",)}),
        "must be given text. Received: text, text_pair. Set --text=..., and "
        "omit --text_pair",
    ),
    (
        *("classify_text", {}),
        "classify_text must return finite numbers. Received: NaN or infinity "
        "in probabilities.",
    ),
    ("fill_mask", {}, "Export the run again without --notext_signatures."),
    (
        *("fill_mask", {"text_pair": ("b",)}),
        "without --notext_signatures. It must be trained with --sentence_objec",
    ),
    (
        *("fill_mask_text", {"text_pair": ("b",)}),
        "a sentence head and text signatures. Received: the signatures serving",
    ),
    (
        *("fill_mask", {"question": ("b",)}),
        "Omit --question and --choice, or export a fine-tuned run",
    ),
]


@pytest.mark.parametrize(("signature", "texts", "message"), REFUSED)
def test_texts_that_a_model_does_not_take_are_refused(
    signature, texts, message
):
    texts = TextsConfig(**{"text": ("a [MASK]",)} | texts)
    with pytest.raises(UserError, match=re.escape(message)):
        print_responses(Signatures(signature), texts, "")


def test_questions_need_the_vocabulary_of_the_export(export_dir):
    texts = TextsConfig(text=("a",), question=("b",))
    for directory, message in [
        ("", "saved_model_dir is required.* Give a copy of the export"),
        ("tests", "must be a SavedModel of albert_tf"),
        (str(export_dir), "have question_answering.* Export the run again"),
    ]:
        with pytest.raises(UserError, match=message):
            print_responses(Signatures("score_spans"), texts, directory)
    with pytest.raises(UserError, match=r"once per text. Received: 2 for 3"):
        PredictConfig(text=("a", "b", "c"), text_pair=("d", "e"))


@pytest.mark.slow
def test_another_number_of_choices_is_refused(exported_task):
    client = exported_task("multiple_choice").client
    texts = TextsConfig(text=("a",), question=("b",), choice=("c", "d"))
    message = "choices must have 3 entries for each question.* Received: 2"
    with pytest.raises(UserError, match=message):
        ask(client, find_task(client.list_signatures()), texts)


@pytest.mark.parametrize(
    ("objective", "signature", "word"),
    [
        ("sop", "sentence_order_text_pair", "in order"),
        ("nsp", "next_sentence_text_pair", "next"),
    ],
)
def test_a_pretrained_model_judges_pairs(
    exported, capsys, objective, signature, word
):
    saved_model_dir = str(exported(objective))
    first, second = "She opened the door.", "It was dark inside."
    config = PredictConfig(
        saved_model_dir=saved_model_dir, text=(first, second), text_pair=("It",)
    )
    main(config)
    outputs = LocalClient(saved_model_dir).predict(
        signature, {"text": [first, second], "text_pair": ["It", "It"]}
    )
    told, turned = outputs[word.replace(" ", "_")]
    assert told != turned
    assert capsys.readouterr().out.splitlines() == [
        f"{told:.1%} {word}: {first} | It",
        f"{turned:.1%} {word}: {second} | It",
    ]


def test_texts_are_asked_in_requests_of_bounded_size(
    exported, capsys, monkeypatch
):
    """Of different numbers of masks; the answers are those of one request."""
    texts = ("[MASK]", "a [MASK] b [MASK].", "no", "[MASK]?", "c [MASK]")
    config = PredictConfig(texts, saved_model_dir=str(exported("sop")))
    main(config)
    printed = capsys.readouterr().out
    sizes, ask_once = [], LocalClient.predict

    def count(client, signature, inputs):
        sizes.extend(map(len, inputs.values()))
        return ask_once(client, signature, inputs)

    monkeypatch.setattr(LocalClient, "predict", count)
    monkeypatch.setattr(predict, "_MAX_ROWS", 2)
    main(config)
    assert capsys.readouterr().out == printed
    assert sizes == [2, 2, 1]


def test_a_mask_that_was_cut_off_is_reported(exported, capsys):
    """17 positions, two of them [CLS] and [SEP]."""
    config = PredictConfig(
        saved_model_dir=str(exported("sop")), text=("[MASK]" * 17,)
    )
    main(config)
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 15
    assert last == "    2 [MASK] beyond the model's max_seq_length"
