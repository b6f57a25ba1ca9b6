import json
import os
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from test_export_saved_model import MODEL, write_run

from albert_tf import checkpoints
from albert_tf.config import ExportConfig, FillMaskConfig
from albert_tf.errors import UserError
from albert_tf.export_saved_model import export
from albert_tf.features import CLS_ID, MASK_ID, SEP_ID, sha256_of
from albert_tf.fill_mask import MaskFiller, main
from albert_tf.tokenization import Tokenizer

# Enough for a vocabulary of 41 pieces.
SENTENCES = [
    "the cat sat on the mat and the dog sat on the cat",
    "paris is the capital of france and rome the capital of italy",
    "a quick brown fox jumps over the lazy dog while five wizards box",
]
TEXT = "The [MASK] sat on [MASK]."


@pytest.fixture(scope="module")
def saved_model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fill_mask")
    run_dir = directory / "run"
    write_run(run_dir, steps=(20,))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(directory / "spm"),
        vocab_size=MODEL.vocab_size,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_piece="<pad>",
        control_symbols="[CLS],[SEP],[MASK]",
        user_defined_symbols=".",
        minloglevel=2,
    )
    vocabulary = (directory / "spm.model").read_bytes()
    (run_dir / "spiece.model").write_bytes(vocabulary)
    metadata = {
        "vocabulary_kind": "published",
        "do_lower_case": True,
        "vocabulary_sha256": sha256_of(vocabulary),
    }
    (run_dir / "records_metadata.json").write_text(json.dumps(metadata))
    export(
        ExportConfig(
            run_dir=str(run_dir), export_dir=str(directory / "model"), top_k=3
        )
    )
    return directory / "model"


@pytest.fixture(scope="module")
def filler(saved_model_dir):
    return MaskFiller(str(saved_model_dir))


def test_masks_are_filled_by_the_model_that_was_trained(
    filler, saved_model_dir
):
    """Its three likeliest pieces, by a forward pass of the run itself."""
    tokenizer = Tokenizer(
        str(saved_model_dir.parent / "spm.model"), do_lower_case=True
    )
    ids = [CLS_ID, *tokenizer.encode_with_masks(TEXT), SEP_ID]
    positions = [i for i, piece in enumerate(ids) if piece == MASK_ID]
    assert len(positions) == 2
    _, pretrainer, _ = checkpoints.load_run(str(saved_model_dir.parent / "run"))
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
        best = np.argsort(-odds)[:3]
        assert [c.piece for c in candidates] == [
            tokenizer.id_to_piece(i) for i in best
        ]
        np.testing.assert_allclose(
            [c.probability for c in candidates],
            odds[best] / odds.sum(),
            rtol=1e-4,
        )


def test_the_command_needs_no_model_code(saved_model_dir, filler):
    """In a process of its own; prints a line for each mask."""
    program = (
        "import sys; from albert_tf.config import FillMaskConfig\n"
        "from albert_tf.fill_mask import main\n"
        f"main(FillMaskConfig({str(saved_model_dir)!r}, ({TEXT!r},)))\n"
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
        ("Paris is the capital of France.", r"text must hold \[MASK\]"),
        ("[MASK] " + "the cat " * 20, "at most 15 pieces"),
    ],
)
def test_a_text_without_masks_or_too_long_is_refused(filler, text, message):
    with pytest.raises(UserError, match=message):
        filler.fill(text)


def test_a_text_that_just_fits_is_filled(filler):
    """17 positions, two of them [CLS] and [SEP]."""
    assert len(filler.fill("[MASK]" * 15)) == 15
    with pytest.raises(UserError, match="16 pieces"):
        filler.fill("[MASK]" * 16)


def test_a_missing_model_or_vocabulary_is_named(saved_model_dir, tmp_path):
    with pytest.raises(UserError, match="--saved_model_dir is required"):
        main(FillMaskConfig(text=(TEXT,)))
    with pytest.raises(UserError, match="--text is required"):
        main(FillMaskConfig(saved_model_dir=str(saved_model_dir)))
    with pytest.raises(UserError, match="export_saved_model"):
        MaskFiller(str(tmp_path / "absent"))

    assets = tmp_path / "assets.extra"
    assets.mkdir()
    note = saved_model_dir / "assets.extra" / "serving.json"
    (assets / "serving.json").write_text(note.read_text())
    with pytest.raises(UserError, match=r"spiece\.model must be there"):
        MaskFiller(str(tmp_path))


def test_another_vocabulary_is_refused(saved_model_dir, tmp_path):
    assets = tmp_path / "assets.extra"
    assets.mkdir()
    theirs = saved_model_dir / "assets.extra"
    note = json.loads((theirs / "serving.json").read_text())
    note["vocabulary_sha256"] = "ab12"
    (assets / "serving.json").write_text(json.dumps(note))
    (assets / "spiece.model").write_bytes(
        (theirs / "spiece.model").read_bytes()
    )
    with pytest.raises(UserError, match="vocabulary of the training records"):
        MaskFiller(str(tmp_path))
