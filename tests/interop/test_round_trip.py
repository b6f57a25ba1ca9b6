"""A model is fine-tuned by transformers, comes back, and is exported."""

import json

import numpy as np
import pytest

from albert_tf.config import ExportConfig
from albert_tf.serving.export import export
from albert_tf.serving.predict import ExportedModel
from tests.helpers.conversion import converted

TEXTS = ("It is [good].", "A bad, bad day!", "Why 1,000 films?")


@pytest.mark.interop
@pytest.mark.slow
def test_a_model_that_transformers_fine_tuned_predicts_the_same(tmp_path):
    """From the released model; transformers saves no spiece.model."""
    import torch
    import transformers

    torch.manual_seed(0)
    folder = "models/albert_mini_en"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    cls = transformers.AutoModelForSequenceClassification
    names = dict(enumerate(("fine", "awful", "odd")))
    model = cls.from_pretrained(folder, id2label=names)
    batch = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        losses.append(model(**batch, labels=torch.arange(3)).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] / 2
    for part in (model.eval(), tokenizer):
        part.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = model(**batch).logits.softmax(-1).numpy()

    run = converted(tmp_path / "theirs", tmp_path / "run")
    assert run.head.labels == tuple(names.values())
    assert json.loads((tmp_path / "run/config.json").read_text())["head"]
    saved_model = str(tmp_path / "export")
    export(ExportConfig(run_dir=str(tmp_path / "run"), export_dir=saved_model))
    answer = ExportedModel(saved_model).predict(
        "classify_text", {"text": TEXTS}
    )

    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
    assert answer["label"] == [names[i] for i in expected.argmax(-1)]
