"""Exports with `precision`: constant weights."""

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ExportConfig, ModelConfig
from albert_tf.io import cpu
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.serving import predict
from albert_tf.serving.constant_weights import make_constant
from albert_tf.serving.export import export
from tests.helpers.exports import answer_as_served, write_task_run

pytestmark = pytest.mark.text

MODEL = {
    "vocab_size": 700,
    "embedding_size": 12,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 180,
    "max_position_embeddings": 400,
}
# Replaced settings of the model.
MODELS = {
    "shared": {},
    "not shared": {"parameter_sharing": "none", "hidden_act": "relu"},
    "groups": {"num_hidden_groups": 3, "inner_group_num": 2},
    "without projection": {"embedding_size": 24, "num_hidden_layers": 1},
}
# Precision, and the largest relative difference to float32.
PRECISIONS = [("float32", 1e-5), ("mixed_bfloat16", 0.1)]


def make_pretrainer(settings):
    pretrainer = AlbertPretrainer(ModelConfig(**MODEL | settings))
    pretrainer.build()
    rng = np.random.default_rng(0)
    for variable in pretrainer.variables:
        noise = rng.normal(0, 0.3, variable.shape)
        variable.assign(noise + ("gamma" in variable.path))
    return pretrainer


def make_batch():
    """Rows of 11, 1, 0 and 6 tokens."""
    mask = np.arange(11) < np.array([11, 1, 0, 6])[:, np.newaxis]
    ids = np.random.default_rng(1).integers(5, 700, mask.shape) * mask
    inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": ids % 2}
    inputs["masked_lm_positions"] = [[9, 0, 4], [0, 0, 0], [0, 0, 0], [5, 2, 2]]
    return {name: tf.constant(v, tf.int32) for name, v in inputs.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_constant_weights_give_the_same_outputs(name, precision, tolerance):
    """At tokens; the last block at positions only, and at all of them."""
    pretrainer, batch = make_pretrainer(MODELS[name]), make_batch()
    rows = [0, 1, 3]
    is_token = batch["input_mask"].numpy()[rows] > 0

    def outputs():
        both = [pretrainer.encode(batch), pretrainer(batch)]
        values = {k: v.numpy()[rows] for out in both for k, v in out.items()}
        values["sequence_output"] = values["sequence_output"][is_token]
        return {k: v.astype(np.float32) for k, v in values.items()}

    expected = outputs()
    paths = {v.path for v in pretrainer.backbone.encoder.variables}
    variables = make_constant(pretrainer, precision)
    found = outputs()
    difference = max(
        np.abs(found[key] - values).max() / np.abs(values).max()
        for key, values in expected.items()
    )
    assert 0 < difference < tolerance
    assert not paths & variables.keys()


@pytest.mark.slow
def test_text_signatures_answer_alike(run_dir, served, tmp_path):
    from albert_tf.export_saved_model import main

    config = ExportConfig(
        run_dir=str(run_dir),
        export_dir=str(tmp_path / "export"),
        top_k=4,
        precision="float32",
    )
    main(config)
    model = tf.saved_model.load(config.export_dir)
    assert sorted(model.signatures) == sorted(served.signatures)
    texts = {"text": ["the cat [MASK] on", "", "a"]}
    pairs = texts | {"text_pair": ["the dog", "sat on the mat", "b"]}
    for name in served.signatures:
        if "_text" in name:
            inputs = pairs if name.endswith("_pair") else texts
            expected = answer_as_served(served, name, inputs)
            answer = answer_as_served(model, name, inputs)
            for key, values in expected.items():
                if values.dtype.kind == "f":
                    np.testing.assert_allclose(answer[key], values, atol=1e-5)
                else:
                    np.testing.assert_array_equal(answer[key], values)
    path = tmp_path / "export" / predict.ASSETS_DIR / predict.SERVING_FILE
    serving = json.loads(path.read_text())
    assert serving["precision"] == "float32"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["multiple_choice", "beam", "token_classification"]
)
def test_fine_tuned_models_answer_alike(name, tmp_path):
    write_task_run(name, tmp_path / "run")
    answers = []
    for precision in "", "mixed_bfloat16":
        directory = str(tmp_path / f"export{precision}")
        config = {"run_dir": str(tmp_path / "run"), "export_dir": directory}
        export(ExportConfig(**config, precision=precision))
        model = tf.saved_model.load(directory).signatures["serving_default"]
        specs = model.structured_input_signature[1]
        rng = np.random.default_rng(0)
        inputs = {
            name: tf.constant(
                rng.integers(0, high, [2, *specs[name].shape[1:-1], 9]),
                tf.int32,
            )
            for name, high in (
                ("input_ids", 30),
                *(("input_mask", 2), ("segment_ids", 2), ("p_mask", 2)),
            )
            if name in specs
        }
        answers.append(model(**inputs))
    plain, constant = answers
    numbers = [n for n, v in plain.items() if v.dtype == tf.float32]
    difference = max(
        np.abs(plain[name] - constant[name]).max() for name in numbers
    )
    assert 0 < difference < 0.1


def test_cpus_without_bfloat16_are_named(tmp_path, monkeypatch, caplog):
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(cpu, "_INFORMATION", path)
    for flags, precision, is_warned in [
        ("flags : avx2 avx512f", "mixed_bfloat16", True),
        ("flags : avx2 avx512f", "float32", False),
        ("flags : avx512_bf16 avx2", "mixed_bfloat16", False),
    ]:
        path.write_text(flags)
        caplog.clear()
        predict.warn_of_slow_products(precision)
        assert ("is slower on it than" in caplog.text) == is_warned
