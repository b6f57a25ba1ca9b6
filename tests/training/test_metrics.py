import pytest

from albert_tf.training import metrics


def test_means_divide_by_the_weights_of_each_task():
    sums = {
        "mlm_loss_sum": 30.0,
        "mlm_correct_sum": 4.0,
        "mlm_weight_sum": 8.0,
        "sentence_loss_sum": 3.0,
        "sentence_correct_sum": 1.0,
        "sentence_weight_sum": 5.0,
    }
    means = {k: float(v) for k, v in metrics.means(sums).items()}
    assert set(means) == set(metrics.names("sop"))
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
    means = metrics.means(sums)
    assert float(means["masked_lm_loss"]) == 0.0
    assert tuple(means) == metrics.names("none")


def test_the_reference_accuracies_are_those_of_table_5():
    """Columns MLM and SOP of the row of SOP, MLM and NSP of that of NSP."""
    line = metrics.describe_reference
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
    lines = [metrics.describe(values, name) for name in ("sop", "nsp")]
    assert lines == [
        "mlm 4.000 (25.0%), sop 0.500 (75.0%)",
        "mlm 4.000 (25.0%), nsp 0.500 (75.0%)",
    ]
