"""Packed rows train like the same examples in separate rows.

Dropout is off, since its masks depend on the position in a row.
"""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import MaskingConfig
from albert_tf.modeling.target import ProgramTarget
from albert_tf.runs.log import read_metrics
from albert_tf.training import train_step
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train as train_run
from data_prep.packing import pack_rows
from tests.helpers import tiny_model, tiny_run
from tests.helpers.step_program import StepProgram

# In float32, relative: to the loss, and to the largest entry of a gradient.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-6, 5e-6

VOCAB_SIZE = 61
LENGTH, NUM_PREDICTIONS, NUM_SLOTS = 24, 5, 3
# They fill eight rows, some of them completely, with one to three examples.
LENGTHS = (24, 10, 14, 5, 6, 7, 9, 11, 8, 8, 8, 20, 12, 7, 16, 5)

MODEL = dataclasses.replace(tiny_model.SPREAD, max_position_embeddings=29)


def make_examples():
    """A batch of random examples, one per row, as NumPy arrays."""
    random = np.random.default_rng(0)
    batch = {
        name: np.zeros((len(LENGTHS), width), dtype)
        for name, width, dtype in (
            ("input_ids", LENGTH, np.int32),
            ("input_mask", LENGTH, np.int32),
            ("segment_ids", LENGTH, np.int32),
            ("token_boundary", LENGTH, np.int32),
            ("masked_lm_positions", NUM_PREDICTIONS, np.int32),
            ("masked_lm_ids", NUM_PREDICTIONS, np.int32),
            ("masked_lm_weights", NUM_PREDICTIONS, np.float32),
        )
    }
    for row, length in enumerate(LENGTHS):
        num_masked = 1 + length // 5
        positions = 1 + random.choice(length - 1, num_masked, replace=False)
        batch["input_ids"][row, :length] = random.integers(
            5, VOCAB_SIZE, length
        )
        batch["input_ids"][row, 0] = 2
        batch["input_mask"][row, :length] = 1
        batch["segment_ids"][row, length // 2 : length] = 1
        batch["masked_lm_positions"][row, :num_masked] = np.sort(positions)
        batch["masked_lm_ids"][row, :num_masked] = random.integers(
            5, VOCAB_SIZE, num_masked
        )
        batch["masked_lm_weights"][row, :num_masked] = 1
    labels = random.integers(0, 2, (len(LENGTHS), 1))
    return batch | {"next_sentence_labels": labels.astype(np.int32)}


def pack(examples):
    """The batch of `make_examples`, in packed rows."""
    shape = MaskingConfig(
        max_seq_length=LENGTH,
        max_predictions_per_seq=NUM_PREDICTIONS,
        max_examples_per_row=NUM_SLOTS,
    )
    parts = list(pack_rows([examples], shape))
    unread = {"token_boundary", "example_numbers"}
    return {
        name: np.concatenate([part[name] for part in parts]).astype(
            np.float32 if name.endswith("weights") else np.int32
        )
        for name in parts[0].keys() - unread
    }


EXAMPLES = make_examples()
PACKED = pack(EXAMPLES)


def make_config(num_rows=8, **changes):
    # Without clipping and bias correction, the first moment after one step is a
    # tenth of the gradient.
    return tiny_run.make_config(
        "no records",
        "no run",
        **dataclasses.asdict(MODEL),
        global_batch_size=num_rows,
        max_seq_length=LENGTH,
        max_predictions_per_seq=NUM_PREDICTIONS,
        optimizer="adamw",
        clip_norm=0,
        **changes,
    )


def compute(batch, **settings):
    """The loss of a batch and its gradients by path, in a single pass."""
    config = make_config(**settings)
    target = ProgramTarget.from_config(config.distribution, "CPU")
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


def train(batch, **settings):
    """The loss of a batch and its gradients by path, of the trainer's step."""
    rows = tf.data.Dataset.from_tensor_slices(batch)
    num_rows = len(batch["input_ids"])
    program = StepProgram(
        make_config(num_rows, **settings),
        make_batches=lambda context: rows.batch(
            num_rows // context.num_replicas_in_sync, drop_remainder=True
        ),
    )
    loss, state = program.run()["loss"], program.state
    slots = state.optimizer.slots
    return loss, {
        variable.path: 10 * slots[f"{variable.path}/m"].numpy()
        for variable in state.model.trainable_variables
    }


def assert_same(found, expected):
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    assert loss == pytest.approx(expected_loss, rel=LOSS_TOLERANCE)
    tiny_model.assert_same_gradients(
        gradients, expected_gradients, GRADIENT_TOLERANCE
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sentence_objective": "none"},
        # Packing adds no rounding errors to those of bfloat16, about 2e-2.
        {"precision": "mixed_bfloat16"},
    ],
    ids=str,
)
def test_packed_rows_have_the_gradients_of_their_examples(settings):
    assert_same(compute(PACKED, **settings), compute(EXAMPLES, **settings))


@pytest.mark.slow
def test_a_step_on_packed_rows_is_a_step_on_their_examples():
    """A micro-batch of a replica has at least 2 of the 16 examples."""
    found = train(
        PACKED,
        strategy="mirrored",
        num_logical_cpus=2,
        gradient_accumulation_steps=2,
        remat=True,
    )
    assert_same(found, compute(EXAMPLES))


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_a_run_on_packed_records_logs_its_examples(
    tiny_dynamic_packed_records, tmp_path, caplog
):
    """Its held-out records are not packed."""
    records = tiny_dynamic_packed_records
    config = tiny_run.make_config(records, tmp_path, **tiny_run.PACKING)
    caplog.set_level("INFO", "absl")
    assert train_run(config) == 0
    metadata = json.loads((records / "train" / "metadata.json").read_text())
    examples = metadata["num_examples"] / metadata["num_rows"]
    assert f"8 rows hold {8 * examples:.0f} examples on average" in caplog.text
    *lines, evaluation = read_metrics(str(tmp_path))
    assert evaluation["split"] == "eval"
    for line in lines:
        assert line["useful_share"] == pytest.approx(metadata["fill"], abs=1e-5)
