import math

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.training import pretraining
from albert_tf.training.pretraining import pretraining_sums

VOCAB = 11


def example_batch():
    return {
        "input_mask": np.ones((2, 7), np.int32),
        "masked_lm_ids": np.array([[3, 7, 1, 0, 0], [2, 9, 4, 8, 0]]),
        "masked_lm_weights": np.array(
            [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.float32
        ),
        "next_sentence_labels": np.array([[0], [1]]),
    }


def random_outputs(batch=2):
    rng = np.random.default_rng(0)
    return {
        "mlm_logits": rng.normal(size=(batch, 5, VOCAB)).astype(np.float32),
        "sentence_logits": rng.normal(size=(batch, 2)).astype(np.float32),
    }


def sums_of(outputs, batch):
    outputs = {name: tf.constant(value) for name, value in outputs.items()}
    batch = {
        name: tf.constant(
            value, tf.float32 if value.dtype.kind == "f" else tf.int32
        )
        for name, value in batch.items()
    }
    return {k: float(v) for k, v in pretraining_sums(outputs, batch).items()}


def test_equal_logits_give_the_logarithm_of_the_number_of_classes():
    """7 masked tokens of 11 classes and 2 sentences of 2 classes."""
    outputs = {
        "mlm_logits": np.zeros((2, 5, VOCAB), np.float32),
        "sentence_logits": np.zeros((2, 2), np.float32),
    }
    sums = sums_of(outputs, example_batch())
    assert sums["mlm_weight_sum"] == 7
    assert sums["sentence_weight_sum"] == 2
    assert sums["mlm_loss_sum"] == pytest.approx(7 * math.log(11), rel=1e-6)
    assert sums["sentence_loss_sum"] == pytest.approx(2 * math.log(2))


def test_losses_are_minus_the_logarithm_of_the_label_s_probability():
    outputs, batch = random_outputs(), example_batch()
    expected = 0.0
    for example in range(2):
        for slot in range(5):
            odds = np.exp(outputs["mlm_logits"][example, slot].astype(float))
            label = batch["masked_lm_ids"][example, slot]
            weight = batch["masked_lm_weights"][example, slot]
            expected -= weight * math.log(odds[label] / odds.sum())
    assert sums_of(outputs, batch)["mlm_loss_sum"] == pytest.approx(
        expected, rel=1e-6
    )


def test_the_highest_logit_is_the_answer():
    outputs, batch = random_outputs(), example_batch()
    for example, slot in (0, 0), (1, 3), (1, 4):  # the last is padding
        label = batch["masked_lm_ids"][example, slot]
        outputs["mlm_logits"][example, slot, label] = 10
    for example, slot in (0, 1), (0, 2), (1, 0), (1, 1), (1, 2):
        label = batch["masked_lm_ids"][example, slot]
        outputs["mlm_logits"][example, slot, label] = -10
    outputs["sentence_logits"] = np.array([[2, 1], [2, 1]], np.float32)
    sums = sums_of(outputs, batch)
    assert sums["mlm_correct_sum"] == 2
    assert sums["sentence_correct_sum"] == 1


def test_padding_slots_do_not_change_the_sums():
    """A slot of weight 0 is padding; its label has no effect."""
    outputs, batch = random_outputs(), example_batch()
    plain = sums_of(outputs, batch)

    padding_changed, label_changed = dict(batch), dict(batch)
    weights, labels = batch["masked_lm_weights"], batch["masked_lm_ids"]
    padding_changed["masked_lm_ids"] = np.where(weights == 0, 10, labels)
    label_changed["masked_lm_ids"] = np.where(weights == 1, 10, labels)

    assert sums_of(outputs, padding_changed) == pytest.approx(plain)
    changed = sums_of(outputs, label_changed)
    assert abs(changed["mlm_loss_sum"] - plain["mlm_loss_sum"]) > 1e-2


def test_a_padding_example_does_not_count():
    """Its mask and weights are 0; the sums are those of the other example."""
    outputs, batch = random_outputs(), example_batch()
    batch["input_mask"][1] = 0
    batch["masked_lm_weights"][1] = 0
    alone = sums_of(
        {name: value[:1] for name, value in outputs.items()},
        {name: value[:1] for name, value in batch.items()},
    )
    assert sums_of(outputs, batch) == pytest.approx(alone, rel=1e-6)
    assert alone["sentence_weight_sum"] == 1


def test_slots_without_an_example_do_not_count():
    """Packed rows of one and two examples; the empty slot has label 1."""
    logits = np.random.default_rng(1).normal(size=(2, 2, 2)).astype(np.float32)
    outputs = random_outputs() | {"sentence_logits": logits}
    batch = example_batch() | {
        "next_sentence_labels": np.array([[0, 1], [1, 0]]),
        "next_sentence_weights": np.array([[1, 0], [1, 1]], np.float32),
    }
    expected = 0.0
    for row, slot in (0, 0), (1, 0), (1, 1):
        odds = np.exp(logits[row, slot].astype(float))
        label = batch["next_sentence_labels"][row, slot]
        expected -= math.log(odds[label] / odds.sum())
    sums = sums_of(outputs, batch)
    assert sums["sentence_weight_sum"] == 3
    assert sums["sentence_loss_sum"] == pytest.approx(expected, rel=1e-6)


def test_sums_of_two_halves_add_up_to_the_joint_batch():
    """Therefore two replicas give the sums of one."""
    outputs, batch = random_outputs(), example_batch()
    halves = [
        sums_of(
            {name: value[i : i + 1] for name, value in outputs.items()},
            {name: value[i : i + 1] for name, value in batch.items()},
        )
        for i in range(2)
    ]
    for name, total in sums_of(outputs, batch).items():
        assert halves[0][name] + halves[1][name] == pytest.approx(total)


def test_terms_of_the_logits_do_not_change_the_sums():
    outputs, batch = random_outputs(), example_batch()
    bias = np.linspace(-1, 1, VOCAB, dtype=np.float32)
    terms = {"mlm_product": outputs["mlm_logits"] - bias, "mlm_bias": bias}
    found = sums_of(outputs | terms, batch)
    assert found == pytest.approx(sums_of(outputs, batch), rel=1e-6)


def test_without_a_sentence_head_there_are_no_sentence_sums():
    outputs = {"mlm_logits": random_outputs()["mlm_logits"]}
    assert set(sums_of(outputs, example_batch())) == {
        "mlm_loss_sum",
        "mlm_correct_sum",
        "mlm_weight_sum",
    }


def test_means_divide_by_the_weights_of_each_task():
    sums = {
        "mlm_loss_sum": 30.0,
        "mlm_correct_sum": 4.0,
        "mlm_weight_sum": 8.0,
        "sentence_loss_sum": 3.0,
        "sentence_correct_sum": 1.0,
        "sentence_weight_sum": 5.0,
    }
    means = {k: float(v) for k, v in pretraining.mean_metrics(sums).items()}
    assert set(means) == set(pretraining.metric_names("sop"))
    assert means == pytest.approx(
        {
            "loss": 4.35,
            "masked_lm_loss": 3.75,
            "masked_lm_accuracy": 0.5,
            "sentence_order_loss": 0.6,
            "sentence_order_accuracy": 0.2,
        }
    )


def test_without_masked_tokens_the_loss_is_0_and_not_nan():
    sums = {
        "mlm_loss_sum": 0.0,
        "mlm_correct_sum": 0.0,
        "mlm_weight_sum": 0.0,
    }
    means = pretraining.mean_metrics(sums)
    assert float(means["masked_lm_loss"]) == 0.0
    assert tuple(means) == pretraining.metric_names("none")


def test_the_reference_accuracies_are_those_of_table_5():
    """Columns MLM and SOP of the row of SOP, MLM and NSP of that of NSP."""
    line = pretraining.describe_reference
    assert line("sop").endswith("mlm 54.0%, sop 86.5% accuracy")
    assert line("nsp").endswith("mlm 54.5%, nsp 90.5% accuracy")
    assert line("none").endswith("mlm 54.9% accuracy")
    # The second objective is that of the held-out records.
    assert line("sop", "sop") == line("sop")
    assert line("sop", "nsp").endswith("mlm 54.0%, nsp 78.9% accuracy")
    assert line("nsp", "sop").endswith("mlm 54.5%, sop 52.0% accuracy")


def test_the_sentence_objective_is_named_in_the_progress_line():
    values = {
        "masked_lm_loss": 4.0,
        "masked_lm_accuracy": 0.25,
        "sentence_order_loss": 0.5,
        "sentence_order_accuracy": 0.75,
    }
    lines = [pretraining.describe(values, name) for name in ("sop", "nsp")]
    assert lines == [
        "mlm 4.000 (25.0%), sop 0.500 (75.0%)",
        "mlm 4.000 (25.0%), nsp 0.500 (75.0%)",
    ]
