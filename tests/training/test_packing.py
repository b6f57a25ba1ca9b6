"""Packed rows train like the same examples in separate rows.

Dropout is off, since its masks depend on the position in a row.
"""

import collections
import dataclasses
import functools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import (
    DataConfig,
    DistributionConfig,
    ExportConfig,
    OptimizerConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.input.pipeline import evaluation_dataset
from albert_tf.input.record_sets import find_records, find_training_data
from albert_tf.io.files import load_json, write_text
from albert_tf.modeling import backbone
from albert_tf.modeling.attention_bias import attention_bias
from albert_tf.modeling.target import ProgramTarget
from albert_tf.runs.checkpoint_files import list_checkpoints
from albert_tf.runs.log import read_metrics
from albert_tf.serving.export import export
from albert_tf.training import (
    pretraining,
    train_step,
    warm_start,
)
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train import train as train_run
from data_prep import build_tfrecords
from tests.helpers import exportable_run, packed_rows, tiny_model, tiny_run
from tests.helpers.conversion import assert_same as assert_same_weights
from tests.helpers.conversion import converted
from tests.helpers.run_processes import lines_without_timing

# In float32, relative: to the loss, and to the largest entry of a gradient.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-6, 5e-6

MODEL = dataclasses.replace(tiny_model.SPREAD, max_position_embeddings=29)
EXAMPLES = packed_rows.make_examples()
PACKED = packed_rows.pack(EXAMPLES)


def make_config(
    num_rows=8, num_micro_batches=1, sentence_objective="sop", **distribution
):
    return PretrainingConfig(
        model=MODEL,
        data=DataConfig(
            global_batch_size=num_rows,
            gradient_accumulation_steps=num_micro_batches,
            max_seq_length=packed_rows.LENGTH,
            max_predictions_per_seq=packed_rows.NUM_PREDICTIONS,
        ),
        # Without clipping and bias correction, the first moment after one
        # step is a tenth of the gradient.
        optimizer=OptimizerConfig(optimizer="adamw", clip_norm=0),
        distribution=DistributionConfig(**distribution),
        training=TrainingConfig(sentence_objective=sentence_objective),
    )


def compute(batch, **settings):
    """The loss of a batch and its gradients by path, in a single pass."""
    config = make_config(**settings)
    target = ProgramTarget.from_config(config.distribution, "CPU")
    target = dataclasses.replace(target, fuse=False)
    objective = Pretraining(config)
    model = train_step.make_state(config, objective).model
    batch = {name: tf.constant(value) for name, value in batch.items()}
    with tf.GradientTape() as tape:
        sums = objective.sums(model(batch, target=target), batch)
        loss = objective.loss(sums, objective.weights(batch))
    variables = {v.path: v.value for v in model.trainable_variables}
    gradients = tape.gradient(loss, list(variables.values()))
    dense = [tf.convert_to_tensor(g).numpy() for g in gradients]
    return loss.numpy(), dict(zip(variables, dense, strict=True))


@functools.cache
def unpacked(**settings):
    return compute(EXAMPLES, **settings)


def train(batch, **settings):
    """The loss of a batch and its gradients by path, of the trainer's step."""
    num_rows = len(batch["input_ids"])
    config = make_config(num_rows, **settings)
    strategy = make_strategy(config.distribution)
    num_replicas = strategy.num_replicas_in_sync
    objective = Pretraining(config)
    with strategy.scope():
        state = train_step.make_state(config, objective)
        train_steps = train_step.make_train_steps(strategy, state, config)
    batches = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices(batch).batch(
            num_rows // num_replicas, drop_remainder=True
        )
    )
    names = train_step.metric_names(config, objective)
    steps = train_steps(
        iter(batches),
        {name: tf.constant(0.0) for name in names},
        tf.constant(1),
        DropoutRates(0.0, 0.0),
    )
    gradients = {
        variable.path: 10 * state.variables()[f"{variable.path}/m"].numpy()
        for variable in state.model.trainable_variables
    }
    return steps.totals["loss"].numpy(), gradients


def assert_same(found, expected):
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    assert loss == pytest.approx(expected_loss, rel=LOSS_TOLERANCE)
    tiny_model.assert_same_gradients(
        gradients, expected_gradients, GRADIENT_TOLERANCE
    )


def loss_difference(found, expected):
    return abs(found[0] / expected[0] - 1)


def gradient_difference(found, expected):
    """The largest difference of a gradient, relative to its largest entry."""
    return max(
        np.abs(found[1][path] - gradient).max() / np.abs(gradient).max()
        for path, gradient in expected[1].items()
        if not path.endswith("key/bias")  # 0 but for rounding
    )


@pytest.mark.parametrize("sentence_objective", ["sop", "none"])
@pytest.mark.parametrize("plain_formulas", [False, True])
def test_packed_rows_have_the_gradients_of_their_examples(
    plain_formulas, sentence_objective
):
    settings = {
        "plain_formulas": plain_formulas,
        "sentence_objective": sentence_objective,
    }
    assert_same(compute(PACKED, **settings), unpacked(**settings))


def test_packed_rows_in_bfloat16_have_the_gradients_of_their_examples():
    """Packing adds no rounding errors to those of bfloat16, about 2e-2."""
    settings = {"precision": "mixed_bfloat16"}
    assert_same(compute(PACKED, **settings), unpacked(**settings))
    assert gradient_difference(unpacked(**settings), unpacked()) > 1e-3


def weigh_rows_equally(batch):
    weights = batch["next_sentence_weights"]
    return weights / tf.reduce_sum(weights, axis=1, keepdims=True)


def count_from_the_row(input_mask, cls_positions):
    del cls_positions
    return tf.zeros_like(input_mask) + tf.range(tf.shape(input_mask)[1])


BUGS = {
    "examples see each other": (
        backbone,
        "attention_bias",
        lambda input_mask, packed: attention_bias(tf.minimum(input_mask, 1)),
    ),
    "positions run on": (backbone, "restarted_positions", count_from_the_row),
    "sentence loss averaged by row": (
        pretraining,
        "example_weights",
        weigh_rows_equally,
    ),
}


@pytest.mark.parametrize(("module", "name", "bug"), BUGS.values(), ids=BUGS)
def test_a_bug_in_packing_would_show(monkeypatch, module, name, bug):
    """Otherwise the agreement above would prove little."""
    monkeypatch.setattr(module, name, bug)
    found = compute(PACKED)
    assert loss_difference(found, unpacked()) > 100 * LOSS_TOLERANCE
    assert gradient_difference(found, unpacked()) > 100 * GRADIENT_TOLERANCE


TWO_REPLICAS = {"strategy": "mirrored", "num_logical_cpus": 2}
UNFUSED = {"fuse_on_cpu": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"remat": True, **UNFUSED},
        {"num_micro_batches": 4, **UNFUSED},
        {**TWO_REPLICAS, **UNFUSED},
        {**TWO_REPLICAS, "num_micro_batches": 2, "remat": True},
    ],
    ids=str,
)
def test_a_step_on_packed_rows_is_a_step_on_their_examples(settings):
    """A replica or micro-batch has at least 3 of the 16 examples."""
    assert_same(train(PACKED, **settings), unpacked())


def add_up(objective, model, batches):
    """Sums losses, correct predictions and weights over batches."""
    totals = collections.Counter()
    for batch in batches:
        batch = {name: tf.constant(value) for name, value in batch.items()}
        sums = objective.sums(model(batch), batch)
        totals.update({name: float(value) for name, value in sums.items()})
    return totals


def test_an_evaluation_of_packed_rows_is_that_of_their_examples():
    """Each batch ends with a padding row of zeros.

    Sums and metrics are equal; labels in another order change the loss.
    """
    objective = Pretraining(make_config())
    model = train_step.make_state(make_config(), objective).model

    def evaluate(rows, batch_size):
        totals = add_up(
            objective,
            model,
            (
                {
                    name: np.pad(value[i : i + batch_size], [(0, 1), (0, 0)])
                    for name, value in rows.items()
                }
                for i in range(0, len(rows["input_ids"]), batch_size)
            ),
        )
        return totals, objective.evaluate(totals, {})

    totals, metrics = evaluate(EXAMPLES, 8)
    packed_totals, packed_metrics = evaluate(PACKED, 2)
    assert totals["sentence_weight_sum"] == 16
    assert packed_totals == pytest.approx(totals, rel=LOSS_TOLERANCE)
    assert packed_metrics == pytest.approx(metrics, rel=LOSS_TOLERANCE)
    labels = PACKED["next_sentence_labels"][:, ::-1]
    swapped, _ = evaluate(PACKED | {"next_sentence_labels": labels}, 2)
    name = "sentence_loss_sum"
    assert swapped[name] != pytest.approx(totals[name], rel=1e-2)


@pytest.mark.slow
def test_a_packed_build_has_the_losses_of_an_unpacked_one(
    tiny_packed_records, tmp_path
):
    """From one text to the losses: build, shards, reader, model."""
    unpacked_build = tiny_run.records_config(tiny_packed_records.parent)
    records = tmp_path / "records"
    build_tfrecords.main(
        dataclasses.replace(unpacked_build, output_dir=str(records))
    )

    def read(records, **packing):
        """All training records, each once."""
        config = tiny_run.make_config(
            records, tmp_path, eval_batch_size=128, max_eval_steps=0, **packing
        )
        config = dataclasses.replace(
            config,
            model=dataclasses.replace(
                MODEL,
                vocab_size=config.model.vocab_size,
                max_position_embeddings=config.data.max_seq_length,
            ),
        )
        found = find_records("input_file", config.data.input_file, config)
        objective = Pretraining(config)
        make_dataset, _ = evaluation_dataset(
            found, config.data, objective.record_format(found)
        )
        return found, config, make_dataset(tf.distribute.InputContext())

    found, config, batches = read(records)
    packed_found, _, packed_batches = read(
        tiny_packed_records, **tiny_run.PACKING
    )
    num_examples = found.num_records
    assert packed_found.num_records < 0.7 * num_examples
    objective = Pretraining(config)
    model = train_step.make_state(config, objective).model
    totals = add_up(objective, model, batches)
    packed_totals = add_up(objective, model, packed_batches)
    assert totals["sentence_weight_sum"] == num_examples
    assert totals["mlm_weight_sum"] > num_examples
    assert packed_totals == pytest.approx(totals, rel=LOSS_TOLERANCE)


def packed(config):
    data = dataclasses.replace(config.data, packing="best_fit")
    return dataclasses.replace(config, data=data)


def test_packing_changes_no_variable():
    """Therefore checkpoints, warm starts and conversions are the same."""
    variables = []
    for config in make_config(), packed(make_config()):
        state = train_step.make_state(config, Pretraining(config))
        variables.append(state.variables())
    assert list(variables[0]) == list(variables[1])
    for name, value in variables[0].items():
        np.testing.assert_array_equal(variables[1][name], value, err_msg=name)


def plan_warm_start(run_dir, records, tmp_path):
    """Plans a run on packed records that starts from the weights of another."""
    config = tiny_run.make_config(
        records,
        tmp_path / "new",
        init_checkpoint=str(run_dir),
        **tiny_run.PACKING,
    )
    model = dataclasses.replace(
        exportable_run.MODEL,
        vocab_size=config.model.vocab_size,
        max_position_embeddings=config.data.max_seq_length,
    )
    config = dataclasses.replace(config, model=model)
    return warm_start.read(config, find_training_data(config))


@pytest.mark.slow
def test_a_run_on_packed_records_resumes_exactly(
    tiny_dynamic_packed_records, tmp_path, caplog
):
    """Two replicas give the same losses. Held-out records are not packed."""
    records = tiny_dynamic_packed_records

    def run(name, **changes):
        config = tiny_run.make_config(
            records,
            tmp_path / name,
            global_batch_size=8,
            dropout_schedule="0:0.0",  # its masks differ by replica
            **{**tiny_run.PACKING, **changes},
        )
        assert train_run(config) == 0

    caplog.set_level("INFO", "absl")
    run("alone")
    metadata = json.loads((records / "train" / "metadata.json").read_text())
    examples = metadata["num_examples"] / metadata["num_rows"]
    assert f"8 rows hold {8 * examples:.0f} examples on average" in caplog.text
    *lines, evaluation = read_metrics(str(tmp_path / "alone"))
    assert evaluation["split"] == "eval"
    for line in lines:
        rate = line["examples_per_second"] / line["steps_per_second"]
        assert rate == pytest.approx(8 * examples)
        assert line["useful_share"] == pytest.approx(metadata["fill"], abs=1e-5)

    # As if the checkpoints after step 4 were lost.
    shutil.copytree(tmp_path / "alone", tmp_path / "resumed")
    for checkpoint in list_checkpoints(str(tmp_path / "resumed/checkpoints")):
        if checkpoint.step > 4:
            shutil.rmtree(checkpoint.path)
    run("resumed")
    assert lines_without_timing(tmp_path / "resumed") == lines_without_timing(
        tmp_path / "alone"
    )

    run("replicas", strategy="mirrored", num_logical_cpus=2)
    np.testing.assert_allclose(
        *(
            [line["loss"] for line in read_metrics(str(tmp_path / name))]
            for name in ("replicas", "alone")
        ),
        rtol=1e-4,
    )


@pytest.mark.slow
def test_a_run_on_packed_rows_is_converted_and_exported_as_any_other(
    tiny_packed_records, tmp_path
):
    """Its settings and its metadata say that its records are packed. A run on
    packed records also starts from its weights."""
    runs = tmp_path / "unpacked", tmp_path / "packed"
    converted_models, outputs, plans = [], [], []
    exportable_run.write_run(runs[0], steps=(20,))
    exportable_run.write_records_files(runs[0])
    shutil.copytree(*runs)
    file = str(runs[1] / "config.json")
    config = packed(PretrainingConfig.from_dict(load_json(file)))
    write_text(file, json.dumps(config.to_dict()))
    file = str(runs[1] / "records_metadata.json")
    metadata = load_json(str(tiny_packed_records / "train/metadata.json"))
    write_text(file, json.dumps(metadata | load_json(file)))
    assert load_json(file)["packing"] == "best_fit"
    for run_dir in runs:
        plans.append(plan_warm_start(run_dir, tiny_packed_records, tmp_path))
        folder = tmp_path / f"{run_dir.name}_folder"
        converted_models.append(converted(run_dir, folder))
        export_dir = str(tmp_path / f"{run_dir.name}_export")
        export(
            ExportConfig(
                run_dir=str(run_dir),
                export_dir=export_dir,
                text_signatures=False,
            )
        )
        model = tf.saved_model.load(export_dir)
        ids = tf.constant([[2, 7, 9, 3, 11, 3]])
        outputs.append(
            model.signatures["encode"](
                input_ids=ids,
                input_mask=tf.ones_like(ids),
                segment_ids=tf.zeros_like(ids),
            )
        )
    assert_same_weights(*converted_models)
    assert_same_weights(plans[1].weights, plans[0].weights)
    assert plans[1].sources == plans[0].sources
    np.testing.assert_array_equal(plans[1].kept_pieces, plans[0].kept_pieces)
    for name, value in outputs[0].items():
        np.testing.assert_array_equal(outputs[1][name], value, err_msg=name)
