import os
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import FillMaskConfig
from albert_tf.errors import UserError
from albert_tf.records.features import CLS_ID, MASK_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs import trained_model
from albert_tf.serving.mask_filler import MaskFiller, print_filled
from tests.helpers.docstring_example import run_example

TEXT = "The [MASK] sat on [MASK]."


@pytest.fixture(scope="module")
def filler(export_dir):
    return MaskFiller(str(export_dir))


def test_masks_are_filled_by_the_trained_model(filler, run_dir):
    """The four most probable pieces, by a forward pass of the run."""
    tokenizer = Tokenizer(str(run_dir / "spiece.model"), do_lower_case=True)
    ids = [CLS_ID, *tokenizer.encode_with_masks(TEXT), SEP_ID]
    positions = [i for i, piece in enumerate(ids) if piece == MASK_ID]
    assert len(positions) == 2
    _, pretrainer, _ = trained_model.load_run(str(run_dir))
    logits = pretrainer(
        {
            "input_ids": tf.constant([ids]),
            "input_mask": tf.ones((1, len(ids)), tf.int32),
            "segment_ids": tf.zeros((1, len(ids)), tf.int32),
            "masked_lm_positions": tf.constant([positions]),
        }
    )["mlm_logits"][0].numpy()

    filled = filler.fill(TEXT)

    assert len(filled) == 2
    for candidates, row in zip(filled, logits, strict=True):
        odds = np.exp(row.astype(float))
        best = np.argsort(-odds)[:4]
        assert [c.piece for c in candidates] == [
            tokenizer.id_to_piece(i) for i in best
        ]
        np.testing.assert_allclose(
            [c.probability for c in candidates],
            odds[best] / odds.sum(),
            rtol=1e-4,
        )


@pytest.mark.slow
def test_the_command_needs_no_model_code(export_dir, filler):
    """In a process of its own; prints a line for each mask."""
    program = (
        "import sys; from albert_tf.config import FillMaskConfig\n"
        "from albert_tf.fill_mask import print_filled\n"
        f"print_filled(FillMaskConfig({str(export_dir)!r}, ({TEXT!r},)))\n"
        "assert 'albert_tf.modeling' not in sys.modules\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUTF8": "1"},
    ).stdout.splitlines()

    assert printed[0] == TEXT
    assert len(printed) == 3
    for line, candidates in zip(printed[1:], filler.fill(TEXT), strict=True):
        assert line.split() == [
            word
            for c in candidates
            for word in (c.piece, f"{c.probability:.1%}")
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Paris is the capital of France.", r"text must contain \[MASK\]"),
        (
            "the cat " * 20 + "[MASK]",
            r"first 15 tok.*1 \[MASK\] after.*--max_seq",
        ),
    ],
)
def test_a_text_that_cannot_be_answered_is_refused(filler, text, message):
    with pytest.raises(UserError, match=message):
        filler.fill(text)


def test_a_text_that_just_fits_is_filled(filler):
    """17 positions, two of them [CLS] and [SEP]."""
    assert len(filler.fill("[MASK]" * 15)) == 15
    with pytest.raises(UserError, match=r"1 \[MASK\] after"):
        filler.fill("[MASK]" * 16)


def test_a_missing_model_or_signature_is_named(
    export_dir, export_without_text, tmp_path
):
    with pytest.raises(UserError, match="--saved_model_dir is required"):
        print_filled(FillMaskConfig(text=(TEXT,)))
    with pytest.raises(UserError, match="--text is required"):
        print_filled(FillMaskConfig(saved_model_dir=str(export_dir)))
    with pytest.raises(UserError, match="export_saved_model"):
        MaskFiller(str(tmp_path / "absent"))
    with pytest.raises(UserError, match="without --notext_signatures"):
        MaskFiller(str(export_without_text))


@pytest.mark.parametrize("names", [["classify", "classify_text"], ["classify"]])
def test_a_fine_tuned_model_is_asked_with_another_command(
    names, export_dir, monkeypatch
):
    """The command that fine-tuned models have, also if they take no text."""
    model = types.SimpleNamespace(signatures=dict.fromkeys(names))
    monkeypatch.setattr(
        "albert_tf.serving.mask_filler.load_saved_model", lambda _: model
    )
    with pytest.raises(UserError, match=r"python -m albert_tf.predict\.$"):
        MaskFiller(str(export_dir))


def test_the_example_of_the_docstring_gives_what_it_shows(
    export_dir, tmp_path, monkeypatch
):
    (tmp_path / "build/demo").mkdir(parents=True)
    (tmp_path / "build/demo/saved_model").symlink_to(export_dir)
    monkeypatch.chdir(tmp_path)
    run_example(MaskFiller)
