"""The Python interface, and its example in docs/first_model.md."""

import json
import pathlib
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import albert_tf
from albert_tf.interop.hugging_face import tokenizer_files
from albert_tf.records.features import CLS_ID, MASK_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer

ROOT = pathlib.Path(__file__).parents[2]


def test_every_public_name_exists():
    assert len(albert_tf.__all__) > 10
    for name in albert_tf.__all__:
        assert getattr(albert_tf, name).__name__ == name
        assert name in dir(albert_tf)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = albert_tf.absent


def test_import_and_configs_need_no_tensorflow():
    code = (
        "import sys, albert_tf\n"
        "assert 'numpy' not in sys.modules\n"
        "albert_tf.ModelConfig(), albert_tf.PretrainingConfig\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def read_example():
    """The lines of Python in docs/first_model.md that load a run."""
    text = (ROOT / "docs" / "first_model.md").read_text()
    (block,) = [
        block
        for block in re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.M)
        if "albert_tf.load(" in block
    ]
    return textwrap.dedent(block).strip()


@pytest.mark.slow
def test_the_documented_example_runs(tiny_records, tmp_path, monkeypatch):
    """On a run that has trained two steps."""
    from albert_tf.runs.trained_model import load_run
    from tests.helpers import tiny_run

    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "runs" / "base",
        num_train_steps=2,
        eval_input_file=(),
    )
    assert albert_tf.train(config) == 0
    example = read_example()
    assert len(example.splitlines()) <= 6
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(example, names)

    length = names["inputs"].input_ids.shape[1]
    assert names["sequence_output"].shape == (1, length, 16)
    embedding = names["pooled_output"].numpy()
    assert embedding.shape == (1, 16)
    _, trained, step = load_run(config.training.output_dir)
    assert step == 2
    _, pooled = trained.backbone(*names["inputs"])
    np.testing.assert_allclose(embedding, pooled, atol=1e-6)
    # Another sentence has another embedding.
    other = albert_tf.encode(names["tokenizer"], ["Rome burns."])
    _, pooled = trained.backbone(*other)
    assert np.abs(embedding - pooled.numpy()).max() > 1e-5


def test_the_released_tokenizer_is_what_an_export_writes():
    """An older one lets Hugging Face leave out the segments of a pair."""
    folder = ROOT / "models" / "albert_mini_en"
    config = json.loads((folder / "config.json").read_text())
    vocabulary = str(folder / "spiece.model")
    files = tokenizer_files(
        Tokenizer(vocabulary), vocabulary, config["max_position_embeddings"]
    )
    for name, content in files.items():
        assert (folder / name).read_bytes() == content, name


def test_the_released_model_fills_a_mask():
    """With a word that fits: it has learned English, not token frequencies."""
    model, tokenizer = albert_tf.load(str(ROOT / "models" / "albert_mini_en"))
    text = "He was one of the [MASK] important scientists of his time."
    ids = [CLS_ID, *tokenizer.encode_with_masks(text), SEP_ID]
    outputs = model(
        {
            "input_ids": np.array([ids]),
            "input_mask": np.ones([1, len(ids)], int),
            "segment_ids": np.zeros([1, len(ids)], int),
            "masked_lm_positions": np.array([[ids.index(MASK_ID)]]),
        }
    )
    best = int(np.argmax(outputs["mlm_logits"][0, 0]))
    assert tokenizer.id_to_piece(best) == "▁most"
