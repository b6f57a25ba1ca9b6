"""The code of docs/converting.md that writes ONNX."""

import os
import pathlib
import re
import shutil

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.edge
@pytest.mark.slow
def test_onnx_runtime_gives_the_outputs_of_albert_tf(tmp_path, monkeypatch):
    """Of the released model, for texts of other lengths, with padding."""
    import onnxruntime

    from albert_tf.interop.formats import load
    from albert_tf.records.features import MASK_ID

    monkeypatch.chdir(tmp_path)
    folder = "build/hugging_face"
    shutil.copytree(ROOT / "models/albert_mini_en", folder)
    page = (ROOT / "docs/converting.md").read_text()
    for module in "torch", "onnxruntime":
        (code,) = re.findall(
            rf"```python\n(import {module}\n.*?)```", page, re.S
        )
        exec(code, {})

    model, tokenizer = load(folder)
    texts = ["He asked her to [MASK] him.", "No.", "The [MASK] is [MASK] old."]
    inputs = tokenizer.encode(texts)
    assert not inputs.input_mask.all()
    names = "input_ids", "attention_mask", "token_type_ids"
    values = [array.astype(np.int64) for array in inputs]
    (logits, order), (int8_logits, _) = (
        onnxruntime.InferenceSession(path).run(
            ["prediction_logits", "sop_logits"],
            dict(zip(names, values, strict=True)),
        )
        for path in ("albert.onnx", "albert_int8.onnx")
    )
    rows, positions = np.nonzero(inputs.input_ids == MASK_ID)
    outputs = model.encode(inputs._asdict())
    hidden = outputs["sequence_output"].numpy()[rows, positions]
    expected = model.mlm_logits(hidden[np.newaxis])[0]
    np.testing.assert_allclose(
        logits[rows, positions], expected, rtol=1e-5, atol=1e-4
    )
    np.testing.assert_allclose(order, outputs["sentence_logits"], atol=1e-4)

    sizes = map(os.path.getsize, ("albert_int8.onnx", "albert.onnx"))
    assert next(sizes) < 0.4 * next(sizes)
    best = int8_logits[rows, positions].argmax(-1)
    assert np.mean(best == logits[rows, positions].argmax(-1)) > 0.5
