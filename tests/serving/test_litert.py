"""`--format=litert`: models for phones, asked by ai-edge-litert."""

import contextlib
import copy
import io
import pathlib
import re
import sys
import unittest.mock

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ConvertConfig, ExportConfig
from albert_tf.convert_checkpoint import main as convert
from albert_tf.errors import UserError
from albert_tf.export_saved_model import main as export
from albert_tf.io import faults
from albert_tf.records.tokenization import Tokenizer
from albert_tf.serving import litert
from tests.helpers.exports import SENTENCES

ROOT = pathlib.Path(__file__).parents[2]
QUESTIONS = "data_prep/sample_questions/test.jsonl"

pytestmark = pytest.mark.edge


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "held_out.txt"
    path.write_text("\n\n".join(SENTENCES))
    return str(path)


def load(path):
    """The model of a file: a function of arrays."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(str(path)).get_signature_runner()


def tmp_path_of(exported):
    return pathlib.Path(exported.saved_model_dir).parent


def batch_of(shape, *names):
    rng = np.random.default_rng(shape[-1])
    ids = rng.integers(5, 41, shape).astype(np.int32)
    batch = {"input_ids": ids, "input_mask": np.ones_like(ids)}
    batch["segment_ids"] = ids % 2
    batch["input_mask"][..., -2:] = 0
    if "p_mask" in names:
        batch["p_mask"] = (np.arange(shape[-1]) % 4 == 1).astype(np.int32)[None]
    if "masked_lm_positions" in names:
        batch["masked_lm_positions"] = np.array([[3, 0, 1]], np.int32)
    return batch


def call(model, signature, batch):
    function = model.signatures[signature]
    wanted = function.structured_input_signature[1]
    return function(
        **{k: tf.constant(v) for k, v in batch.items() if k in wanted}
    )


@pytest.mark.slow
def test_a_pretrained_model_answers_as_its_saved_model(
    run_dir, served, text_file, tmp_path
):
    """Of any length."""
    export(
        ExportConfig(
            run_dir=str(run_dir),
            text_file=text_file,
            export_dir=str(tmp_path / "litert"),
            format="litert",
            quantize="none",
        )
    )
    model = load(tmp_path / "litert" / "none.tflite")
    for length in 7, 13:
        batch = batch_of((1, length), "masked_lm_positions")
        found = model(**batch)
        expected = {**call(served, "encode", batch)}
        expected |= call(served, "sentence_order", batch)
        expected["embedding"] = call(served, "embed", batch)["embedding"]
        filled = call(served, "fill_mask", batch)
        logs = found.pop("log_probabilities")
        assert set(found) == set(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=1e-5)
        np.testing.assert_allclose(
            np.take_along_axis(logs, filled["top_ids"].numpy(), -1),
            filled["top_log_probabilities"],
            atol=1e-5,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "multiple_choice", "beam"])
def test_fine_tuned_models_answer_as_their_saved_models(
    name, exported_task, text_file, tmp_path
):
    """For a text, for several texts, and with p_mask. The other kinds have the
    inputs of the first one."""
    exported = exported_task(name)
    run_dir = tmp_path_of(exported) / "run"
    directory = tmp_path / "litert"
    export(
        ExportConfig(
            run_dir=str(run_dir),
            export_dir=str(directory),
            text_file=text_file,
            format="litert",
            quantize="none",
        )
    )
    shape = (1, 3, 11) if name == "multiple_choice" else (1, 11)
    batch = batch_of(shape, *["p_mask"] * (name == "beam"))
    model = load(directory / "none.tflite")
    found = model(**batch)
    expected = call(exported.model.model, "serving_default", batch)
    assert set(found) <= set(expected)
    for output, values in found.items():
        np.testing.assert_allclose(values, expected[output], atol=1e-5)


# --- the released model ------------------------------------------------------


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """A directory with build/mini_litert, as docs/edge.md makes it."""
    directory = tmp_path_factory.mktemp("mini")
    run_dir = str(directory / "build/mini")
    convert(ConvertConfig(from_="models/albert_mini_en", to=run_dir))
    questions = directory / "questions.txt"
    texts = re.findall('"text": "(.*?)"', (ROOT / QUESTIONS).read_text())
    questions.write_text("\n".join(texts[:20]))
    export(
        ExportConfig(
            run_dir=run_dir,
            export_dir=str(directory / "build/mini_litert"),
            format="litert",
            text_file=str(questions),
        )
    )
    return directory


@pytest.mark.slow
def test_the_released_model_stores_each_weight_once(mini):
    """It has 2,020,290 parameters."""
    size = (mini / "build/mini_litert/dynamic_int8.tflite").stat().st_size
    assert size < 1.2 * 2_020_290 + 200_000


@pytest.mark.slow
def test_the_code_of_the_page_fills_the_mask(mini, monkeypatch):
    """With the pieces that the model in TensorFlow predicts."""
    from albert_tf.interop.formats import load as load_model
    from albert_tf.library import fill_mask

    page = (ROOT / "docs/edge.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(mini)
    printed = io.StringIO()
    names = {}
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    text = "He asked her to [MASK] him."
    tokenizer = Tokenizer("build/mini/spiece.model")
    assert names["ids"].tolist() == tokenizer.encode(text).input_ids.tolist()
    (pieces,) = fill_mask(load_model("build/mini")[0], tokenizer, text)
    found = eval(printed.getvalue())
    assert found[0] == next(iter(pieces))
    assert len(set(found) & set(pieces)) >= 3


# --- refusals ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"text_file": ""},
            "text_file must name real text.*litert, to verify",
        ),
        ({"quantize": "int8"}, "none, dynamic_int8.* Received: 'int8'"),
        ({"text_file": "/dev/null"}, "/dev/null must be a regular file"),
    ],
)
def test_what_cannot_be_verified_is_refused(
    settings, message, run_dir, text_file, tmp_path
):
    values = {"text_file": text_file} | settings
    with pytest.raises(UserError, match=message):
        export(
            ExportConfig(
                run_dir=str(run_dir),
                export_dir=str(tmp_path / "litert"),
                format="litert",
                **values,
            )
        )
    assert not (tmp_path / "litert").exists()


@pytest.mark.parametrize(
    ("quantize", "change", "message"),
    [
        ("none", np.nan, "converted to none must.*NaN or infinity"),
        ("none", 0.1, r"Received: outputs that differ by 0\.1"),
        ("dynamic_int8", 99.0, "equal answers. Choose --quantize=none"),
    ],
)
def test_a_model_that_answers_otherwise_is_not_written(
    quantize, change, message, run_dir, text_file, tmp_path, monkeypatch
):
    """As one does that is converted without its variables."""
    run, expected = litert.run_all, []

    def answer(call, samples):
        if not expected:  # in TensorFlow
            expected.append(run(call, samples))
            return expected[0]
        outputs = copy.deepcopy(expected[0])
        for found in outputs:
            values = found["log_probabilities"]
            worst = values.argmin(-1)[..., np.newaxis]
            changed = np.take_along_axis(values, worst, -1) + change
            np.put_along_axis(values, worst, changed, -1)
        return outputs

    monkeypatch.setattr(litert, "run_all", answer)
    monkeypatch.setattr(litert, "_convert", lambda *_: b"")
    for name in "ai_edge_litert", "ai_edge_litert.interpreter":
        monkeypatch.setitem(sys.modules, name, unittest.mock.MagicMock())
    with pytest.raises(UserError, match=message):
        export(
            ExportConfig(
                run_dir=str(run_dir),
                export_dir=str(tmp_path / "litert"),
                format="litert",
                quantize=quantize,
                text_file=text_file,
            )
        )
    assert not list(tmp_path.glob("litert*"))


def test_a_missing_runtime_is_named(run_dir, text_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(ModuleNotFoundError) as missing:
        export(
            ExportConfig(
                run_dir=str(run_dir),
                export_dir=str(tmp_path / "litert"),
                format="litert",
                text_file=text_file,
            )
        )
    explained = str(faults.explain(missing.value))
    assert "pip install 'albert-tf[litert]'" in explained
    assert not (tmp_path / "litert").exists()
