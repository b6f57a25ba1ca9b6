"""The Python interface, and its example in docs/first_model.md."""

import json
import pathlib
import re
import subprocess
import sys
import textwrap
import unicodedata

import numpy as np
import pytest

import albert_tf
from albert_tf.interop.hugging_face import tokenizer_files
from albert_tf.library import Metrics
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


def test_a_table_shows_zero_and_leaves_out_what_is_missing():
    rows = {"split": "eval", "step": 0, "loss": 1.5}, {"split": "train"}
    table = Metrics(rows)._repr_html_()
    assert "<td>eval</td><td>0</td><td>1.5</td>" in table
    assert "<td>train</td><td></td><td></td>" in table


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_the_documented_example_runs(
    tiny_records, tmp_path, monkeypatch, capsys
):
    """On a run that has trained two steps."""
    from albert_tf.runs.directory import load_run
    from tests.helpers import tiny_run

    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "runs" / "base",
        num_train_steps=2,
        eval_input_file=(),
    )
    result = albert_tf.train(config)
    assert result.status == 0
    err = capsys.readouterr().err
    assert "2/2" in err and "loss" in err and "strategy" not in err
    assert result.metrics.of("train")["step"][-1] == 2
    assert "<th>masked_lm_loss</th>" in result.metrics._repr_html_()
    assert result.plot("masked_lm_loss").startswith(b"\x89PNG")
    assert "step 2, loss" in repr(result)

    monkeypatch.chdir(tmp_path)
    names = {}
    exec(read_example(), names)
    length = names["inputs"].input_ids.shape[1]
    assert names["sequence_output"].shape == (1, length, 16)
    (mask,) = names["masks"]
    assert len(mask) == 5 and 0 < sum(mask.values()) < 1
    # The mean of the tokens of each text, without padding for a longer one.
    inputs = names["tokenizer"].encode("Rome burns.")
    hidden = names["model"].backbone(*inputs).sequence_output
    mean = np.asarray(hidden)[0].mean(0)
    np.testing.assert_allclose(names["embeddings"][0], mean, atol=1e-6)
    assert np.abs(names["embeddings"][1] - mean).max() > 1e-3

    states, attentions = names["hidden_states"], names["attentions"]
    assert len(states) == len(attentions) + 1 == 2
    np.testing.assert_allclose(states[-1], names["sequence_output"], atol=1e-6)
    np.testing.assert_allclose(np.sum(attentions[0], -1), 1, atol=1e-6)
    _, trained, step = load_run(config.training.output_dir)
    assert step == 2
    pooled = trained.backbone(*names["inputs"]).pooled_output
    np.testing.assert_allclose(names["pooled_output"], pooled, atol=1e-6)


def test_recipes_load_and_change():
    config = albert_tf.recipe("mini_en_16", num_hidden_layers=5, seed=8)
    assert config.model.num_hidden_layers == 5
    assert (config.training.seed, config.data.max_seq_length) == (8, 16)
    task = albert_tf.recipe("mnli", output_dir="runs/mnli")
    assert (task.task.task, task.training.output_dir) == ("mnli", "runs/mnli")
    with pytest.raises(albert_tf.UserError, match="name of a recipe"):
        albert_tf.recipe("no_recipe")
    with pytest.raises(albert_tf.UserError, match="mean num_train_steps"):
        albert_tf.recipe("mini_en_16", num_trainsteps=1)


def test_the_released_tokenizer_is_what_an_export_writes():
    """An older one lets Hugging Face leave out the segments of a pair.

    It names the marks of Python 3.11's Unicode.
    """
    if unicodedata.unidata_version != "14.0.0":
        pytest.skip(f"Unicode {unicodedata.unidata_version}")
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
    (first, *_), _ = albert_tf.fill_mask(
        model, tokenizer, f"{text} It is [MASK].", top_k=2
    )
    assert first == "▁most"
    filled = albert_tf.fill_mask(model, tokenizer, [text, "It is [MASK]."])
    assert [len(masks) for masks in filled] == [1, 1]
    assert next(iter(filled[0][0])) == "▁most"
    assert tokenizer.decode(tokenizer.encode(text).input_ids) == [
        text.lower().replace("mask", "MASK")
    ]
    with pytest.raises(albert_tf.UserError, match=r"must contain \[MASK\]"):
        albert_tf.fill_mask(model, tokenizer, "He was.")


# By name: the call with a model and its vocabulary, and the error.
VALUES_REFUSED = {
    "no model": (lambda *_: albert_tf.load(None), "must name a model"),
    "no texts": (lambda *of: albert_tf.embed(*of, None), "must be strings"),
    "an empty cell": (
        lambda *of: albert_tf.embed(*of, ["a", float("nan")]),
        "must be a string. Received: nan",
    ),
    "bytes": (lambda *of: albert_tf.embed(*of, [b"a"]), "must be a string"),
    "half of an emoji": (
        lambda *of: albert_tf.embed(*of, ["a", "b \ud83d"]),
        r"unpaired surrogates. Received: '\\ud83d' at character 2",
    ),
    "a mask that does not fit": (
        lambda *of: albert_tf.fill_mask(*of, "a " * 600 + "[MASK]"),
        "within 512 tokens. Received: 1 beyond",
    ),
    "a fine-tuned model": (
        lambda model, tokenizer: albert_tf.fill_mask(
            model.backbone, tokenizer, "[MASK]"
        ),
        "must fill masks",
    ),
}


def test_values_of_a_notebook_work_or_are_refused():
    model, tokenizer = albert_tf.load(ROOT / "models" / "albert_mini_en")
    assert albert_tf.embed(model, tokenizer, ()).shape == (0, 256)
    for call, message in VALUES_REFUSED.values():
        with pytest.raises(albert_tf.UserError, match=message):
            call(model, tokenizer)
