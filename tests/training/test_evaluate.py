import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import run_pretraining
from albert_tf.cluster.host import Host
from albert_tf.cluster.strategy import make_strategy
from albert_tf.errors import UserError
from albert_tf.input import record_sets as training_records
from albert_tf.input.record_format import parse_records
from albert_tf.records.features import SENTENCE_LABEL, features_to_read
from albert_tf.runs.log import read_metrics
from albert_tf.training import evaluate
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train_step import make_state
from tests.helpers import tiny_run
from tests.helpers.pretended_devices import pretend


def evaluate_with(config):
    strategy = make_strategy(config.distribution)
    objective = Pretraining(config)
    with strategy.scope():
        pretrainer = make_state(config, objective).model
    held_out = training_records.find_held_out(config)
    evaluator = evaluate.Evaluator(
        Host(strategy), pretrainer, objective, held_out, config
    )
    return evaluator.run_and_log(0, None), pretrainer, held_out


def records_in_one_batch(files, config):
    serialized = next(iter(tf.data.TFRecordDataset(files).batch(10**6)))
    return parse_records(serialized, features_to_read("static"), config.data)


@pytest.mark.slow
def test_the_mean_is_over_masked_tokens_without_padding(
    tiny_records, tmp_path, monkeypatch
):
    """The metrics are those of a single batch, which has no padding; also on
    replicas, and by the program for GPUs, which runs on two CPUs here."""
    config = tiny_run.make_config(
        tiny_records, tmp_path, eval_batch_size=10, max_eval_steps=0
    )
    figures, pretrainer, held_out = evaluate_with(config)
    assert held_out.num_records % 10

    batch = records_in_one_batch(list(held_out.files), config)
    outputs = pretrainer(batch)
    weights = batch["masked_lm_weights"].numpy()
    labels = batch["masked_lm_ids"].numpy()[..., np.newaxis]
    logits = outputs["mlm_logits"].numpy().astype(np.float64)
    scores = np.take_along_axis(logits, labels, -1)[..., 0]
    losses = np.log(np.exp(logits).sum(axis=-1)) - scores
    is_correct = scores == logits.max(axis=-1)
    assert figures["masked_lm_loss"] == pytest.approx(
        np.average(losses, weights=weights), rel=1e-5
    )
    assert figures["masked_lm_accuracy"] == pytest.approx(
        np.average(is_correct, weights=weights)
    )
    orders = outputs["sentence_logits"].numpy().argmax(axis=-1)
    assert figures["sentence_order_accuracy"] == pytest.approx(
        np.mean(orders == batch[SENTENCE_LABEL].numpy()[:, 0])
    )
    assert figures["loss"] == pytest.approx(
        figures["masked_lm_loss"] + figures["sentence_order_loss"]
    )

    config = config.replace(strategy="mirrored", num_logical_cpus=2)
    assert evaluate_with(config)[0] == pytest.approx(figures, rel=1e-5)
    pretend(monkeypatch, "GPU")
    config = config.replace(jit_compile=True)
    compiled = []
    function = tf.function

    def count(*arguments, **options):
        compiled.append(options.get("jit_compile"))
        return function(*arguments, **options)

    monkeypatch.setattr(tf, "function", count)
    on_gpus, _, _ = evaluate_with(config)
    assert compiled.count(True) == 1
    assert on_gpus == pytest.approx(figures, rel=1e-4)


def test_an_empty_shard_is_named(tiny_records, tmp_path):
    """Even if the other shard holds enough records for `max_eval_steps`."""
    for name in ("one", "two"):
        shutil.copytree(tiny_records / "eval", tmp_path / name)
    (shard,) = (tmp_path / "one").glob("*.tfrecord")
    shard.write_bytes(b"")
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "run",
        eval_input_file=(f"{tmp_path}/*/*.tfrecord",),
    )
    with pytest.raises(UserError, match=f"{shard} has another SHA-256"):
        evaluate_with(config)


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_mode_eval_repeats_the_last_evaluation_of_the_run(
    source, tiny_records, capsys
):
    *_, expected = read_metrics(str(source))
    assert expected.pop("split") == "eval"
    assert expected.pop("evaluation_seconds") > 0
    config = tiny_run.make_config(tiny_records, source, mode="eval")
    found = run_command(config, capsys)
    assert found == pytest.approx(expected, rel=1e-5)

    first = run_command(config.replace(checkpoint_step=4), capsys)
    assert first["step"] == 4
    assert first["loss"] != expected["loss"]
    with pytest.raises(
        UserError, match=r"best/config.json must exist.* --checkpoint_step"
    ):
        evaluate.evaluate_run(config.replace(output_dir=f"{source}/best"))


def run_command(config, capsys):
    """Runs the command with these settings; returns what it prints."""
    capsys.readouterr()
    assert run_pretraining.main(config) == 0
    return json.loads(capsys.readouterr().out)
