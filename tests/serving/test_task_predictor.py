"""A fine-tuned model is exported and asked."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ExportConfig, PredictConfig, TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.interop.convert import write_run
from albert_tf.interop.loading import make_model
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.interop.weight_names import list_weights
from albert_tf.records.encoding import encode
from albert_tf.records.tokenization import Tokenizer
from albert_tf.serving.export import export
from albert_tf.serving.task_predictor import TaskPredictor, print_predictions
from tests.helpers.docstring_example import run_example
from tests.helpers.tiny_run import MODEL

HEADS = {
    "classification": TaskHeadConfig("classification", ("no", "yes", "maybe")),
    "regression": TaskHeadConfig("regression"),
    "multiple_choice": TaskHeadConfig("multiple_choice", num_choices=4),
}


def write_model(head, records, run_dir):
    vocabulary = str(records / "train" / "spiece.model")
    rng = np.random.default_rng(0)
    values = {
        weight.path: rng.normal(size=weight.shape).astype(np.float32) / 3
        for weight in list_weights(MODEL, head=head)
    }
    weights = ModelWeights(
        MODEL, "none", values, vocabulary=vocabulary, head=head
    )
    run_dir.mkdir()
    write_run(weights, str(run_dir), str(run_dir))
    return weights


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_an_exported_model_predicts_as_the_model(
    kind, tiny_records, tmp_path, monkeypatch, capsys
):
    weights = write_model(HEADS[kind], tiny_records, tmp_path / "run")
    saved_model = str(tmp_path / "runs" / "sst2" / "export")
    export(ExportConfig(run_dir=str(tmp_path / "run"), export_dir=saved_model))
    if kind == "classification":
        monkeypatch.chdir(tmp_path)
        run_example(TaskPredictor)
    predictor = TaskPredictor(saved_model)
    for pair in ("", "It lies on a river."):
        found = predictor.predict("The town, in 1905.", pair)

        inputs = encode(
            Tokenizer(weights.vocabulary),
            ["The town, in 1905."],
            [pair] if pair else None,
            32,
        )
        batch = {n: tf.constant(v) for n, v in inputs._asdict().items()}
        logits = make_model(weights)(batch)["logits"].numpy()[0]
        if kind == "regression":
            assert found["value"] == pytest.approx(logits[0], abs=1e-5)
            continue
        probabilities = np.exp(logits) / np.exp(logits).sum()
        assert list(found["probabilities"]) == ["no", "yes", "maybe"]
        assert list(found["probabilities"].values()) == pytest.approx(
            probabilities.tolist(), abs=1e-5
        )
        assert found["label"] == ("no", "yes", "maybe")[logits.argmax()]
    print_predictions(
        PredictConfig(saved_model_dir=saved_model, text=("a", "b"))
    )
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_other_kinds_are_refused(tiny_records, tmp_path):
    write_model(HEADS["multiple_choice"], tiny_records, tmp_path / "run")
    config = ExportConfig(
        run_dir=str(tmp_path / "run"), export_dir=str(tmp_path / "export")
    )
    with pytest.raises(UserError, match=r"for multiple choice\. Convert it"):
        export(config)
    assert not (tmp_path / "export").exists()
