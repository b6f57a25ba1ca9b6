"""`python -m albert_tf.predict`: exported models asked in this process."""

import os
import re
import subprocess
import sys

import pytest

from albert_tf.config import ExportConfig, PredictConfig, TextsConfig
from albert_tf.errors import UserError
from albert_tf.serving.export import export
from albert_tf.serving.predict import (
    LocalClient,
    ask,
    find_task,
    print_predictions,
)
from tests.helpers.exportable_task import write_task_run
from tests.helpers.served_model import filled_lines


@pytest.mark.slow
def test_the_command_fills_masks_without_model_code(export_dir, served):
    """A line for each mask; an export needs no code of the model."""
    texts = ["The [MASK] sat on [MASK].", "[MASK]"]
    program = (
        "import sys; from albert_tf.config import PredictConfig\n"
        "from albert_tf.predict import print_predictions\n"
        f"print_predictions(PredictConfig({tuple(texts)}, "
        f"saved_model_dir={str(export_dir)!r}))\n"
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


@pytest.mark.slow
def test_texts_of_another_task_are_refused(exported_task):
    for name, texts, message in [
        (
            "plain",
            {"text": ("a",)},
            "question answering must be given text, question. Received: text. "
            "Set --text=... --question=...",
        ),
        (
            "classification",
            {"text": ("a",), "question": ("b",)},
            "must be given text, and may have text_pair. Received: text, quest",
        ),
        (
            "multiple_choice",
            {"text": ("a",), "question": ("b",), "choice": ("c", "d")},
            "choices must have 3 entries for each question.* Received: 2",
        ),
    ]:
        client = exported_task(name).client
        with pytest.raises(UserError, match=message):
            ask(
                client,
                find_task(client.list_signatures()),
                TextsConfig(**texts),
            )


@pytest.mark.parametrize(
    ("suffix", "texts", "message"),
    [
        (
            "_pair",
            {"text": ("a",)},
            "of pairs must be given text, text_pair. Received: text. "
            "Set --text=... --text_pair=...",
        ),
        (
            "",
            {"text": ("a",), "text_pair": ("b",)},
            "must be given text. Received: text, text_pair. Set --text=..., "
            "and omit --text_pair",
        ),
    ],
)
def test_a_model_of_pairs_is_given_pairs_and_no_others(suffix, texts, message):
    task = find_task(["classify", f"classify_text{suffix}"])
    with pytest.raises(UserError, match=re.escape(message)):
        ask(None, task, TextsConfig(**texts))


def test_a_pretrained_model_judges_the_order_of_texts(
    export_dir, capsys, tmp_path
):
    first, second = "She opened the door.", "It was dark inside."
    config = PredictConfig(
        saved_model_dir=str(export_dir),
        text=(first, second),
        text_pair=(second, first),
    )
    print_predictions(config)
    outputs = LocalClient(str(export_dir)).predict(
        "sentence_order_text_pair",
        {"text": [first, second], "text_pair": [second, first]},
    )
    told, turned = outputs["in_order"]
    assert capsys.readouterr().out.splitlines() == [
        f"{told:.1%} in order: {first} | {second}",
        f"{turned:.1%} in order: {second} | {first}",
    ]
    with pytest.raises(UserError, match=r"once per text. Received: 2 for 3"):
        PredictConfig(text=("a", "b", "c"), text_pair=("d", "e"))
    with pytest.raises(UserError, match=r"SavedModel.*Make one with python -m"):
        LocalClient(str(tmp_path))


def test_a_sequence_without_room_for_a_context_is_refused(tmp_path):
    """So is a sequence longer than max_position_embeddings."""
    write_task_run("plain", tmp_path / "run")
    for length, message in [
        (17, "above max_query_length . 3.* Received: 17 and 14"),
        (97, "at most max_position_embeddings. Received: 97 and 96"),
    ]:
        with pytest.raises(UserError, match=message):
            export(
                ExportConfig(
                    run_dir=str(tmp_path / "run"),
                    export_dir=str(tmp_path / "export"),
                    max_seq_length=length,
                )
            )
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(
    ("texts", "remedy"),
    [
        ({}, r"again without --notext_signatures\."),
        ({"text_pair": ("b",)}, "without --notext.*--sentence_objective=sop"),
        ({"question": ("b",)}, "Omit --question and --choice, or export"),
    ],
)
def test_an_export_that_does_not_take_text_says_what_to_do(
    export_without_text, texts, remedy
):
    config = PredictConfig(
        saved_model_dir=str(export_without_text), text=("a [MASK]",), **texts
    )
    with pytest.raises(UserError, match=remedy):
        print_predictions(config)
