"""Pretraining with a label for each token: loss, runs, and what leaves it."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input.record_sets import find_records
from albert_tf.interop import formats
from albert_tf.records.features import read_metadata
from albert_tf.runs.directory import load_run
from albert_tf.runs.log import read_metrics
from albert_tf.training.evaluate import evaluate_run
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train
from tests.helpers import labelled_text, tiny_run
from tests.helpers.run_processes import read_variables

WEIGHT = 0.5


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    directory = tmp_path_factory.mktemp("labelled")
    labelled_text.write_text(directory)
    return labelled_text.build(
        directory, packing="best_fit", max_examples_per_row=4
    )


def settings(records, run_dir, **changes):
    config = tiny_run.make_config(
        records,
        run_dir,
        sentence_objective="none",
        label_vocab_size=labelled_text.LABEL_VOCAB_SIZE,
        token_label_loss_weight=WEIGHT,
        packing="best_fit",
        max_examples_per_row=4,
        num_train_steps=8,
        eval_every_n_steps=8,
        dropout_schedule="0:0.0",
        strategy="auto",
        num_hidden_layers=1,
        max_position_embeddings=64,
        vocab_size=read_metadata(str(records / "train")).vocab_size,
        **labelled_text.LENGTHS,
    )
    return config.replace(**changes)


def test_the_loss_is_over_all_symbols_masked_or_not(records, tmp_path):
    config = settings(records, tmp_path)
    objective = Pretraining(config)
    rng = np.random.default_rng(0)
    labels = np.array([[0, 2, 2, 0, 4], [1, 0, 0, 0, 0]], np.int32)
    logits = rng.normal(size=(2, 5, 5)).astype(np.float32)
    batch = {
        "masked_lm_ids": tf.zeros([2, 1], tf.int32),
        "masked_lm_weights": tf.zeros([2, 1]),
        "next_sentence_weights": tf.zeros([2, 1]),
        "token_labels": tf.constant(labels),
    }
    outputs = {
        "mlm_logits": tf.zeros([2, 1, 7]),
        "token_label_logits": tf.constant(logits),
    }
    weights = objective.weights(batch)
    sums = objective.sums(outputs, batch)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, labels[..., None], 2)[..., 0]
    mean = -chosen[labels > 0].mean()
    assert float(weights["token_label"]) == 4
    loss = objective.loss(sums, weights)
    np.testing.assert_allclose(loss, WEIGHT * mean, 1e-6)
    metrics = objective.metrics(sums)
    np.testing.assert_allclose(metrics["token_label_loss"], mean, 1e-6)
    right = (logits.argmax(axis=2) == labels)[labels > 0].mean()
    np.testing.assert_allclose(metrics["token_label_accuracy"], right, 1e-6)


@pytest.mark.jax
@pytest.mark.slow
def test_a_run_continues_with_either_runtime_and_leaves_the_head_out(
    records, tmp_path, capsys
):
    runs = {name: tmp_path / name for name in ("tensorflow", "pjrt")}
    config = settings(records, tmp_path, jit_compile=True)
    for name, run_dir in runs.items():
        changed = config.replace(runtime=name, output_dir=str(run_dir))
        with tiny_run.eagerly(name == "tensorflow"):
            assert train(changed) == 0
    lines = read_metrics(str(runs["tensorflow"]))
    values = read_variables(runs["tensorflow"])
    assert values["albert/token_labels/kernel"].shape == (16, 5)
    first = next(line for line in lines if "token_label_loss" in line)
    assert first["token_label_loss"] == pytest.approx(np.log(5), abs=0.1)
    logged = {n["split"] for n in lines if "token_label_accuracy" in n}
    assert logged == {"train", "eval"}
    # JAX's runtime, and the run continued from its middle by it.
    run_dir = runs["tensorflow"]
    shutil.copytree(run_dir, tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/step-00000008")
    shutil.rmtree(tmp_path / "again/best", ignore_errors=True)
    again = config.replace(runtime="pjrt", output_dir=str(tmp_path / "again"))
    assert train(again) == 0
    for other in (runs["pjrt"], tmp_path / "again"):
        for name, value in read_variables(other).items():
            np.testing.assert_allclose(values[name], value, atol=1e-6)

    capsys.readouterr()
    with tiny_run.eagerly():
        evaluate_run(config.replace(mode="eval", output_dir=str(run_dir)))
    assert '"token_label_accuracy"' in capsys.readouterr().out
    weights = formats.read_weights(str(run_dir))
    assert not [path for path in weights.values if "token_labels" in path]
    _, model, _ = load_run(str(run_dir))
    assert model.token_labels is None


def test_the_labels_must_be_those_of_the_records(records, tmp_path):
    with pytest.raises(UserError, match="label_vocab_size 5 and 6"):
        config = settings(records, tmp_path, label_vocab_size=6)
        find_records("input_file", config.data.input_file, config)
    with pytest.raises(UserError, match="needs --label_vocab_size"):
        settings(records, tmp_path, label_vocab_size=0)
