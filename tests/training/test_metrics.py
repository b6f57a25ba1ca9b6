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
    figures = {k: float(v) for k, v in metrics.means(sums).items()}
    assert set(figures) == set(metrics.names("sop"))
    assert figures == pytest.approx(
        {
            "loss": 4.35,
            "masked_lm_loss": 3.75,
            "masked_lm_accuracy": 0.5,
            "sentence_order_loss": 0.6,
            "sentence_order_accuracy": 0.2,
        }
    )


def test_nothing_masked_is_no_loss_rather_than_nan():
    sums = {
        "mlm_loss_sum": 0.0,
        "mlm_correct_sum": 0.0,
        "mlm_weight_sum": 0.0,
    }
    figures = metrics.means(sums)
    assert float(figures["masked_lm_loss"]) == 0.0
    assert tuple(figures) == metrics.names("none")


def test_the_paper_s_figures_are_those_of_table_5():
    """Columns MLM and, for SOP, SOP; for NSP, NSP."""
    line = metrics.describe_reference
    assert line("sop").endswith("mlm 54.0%, sop 86.5% accuracy")
    assert line("nsp").endswith("mlm 54.5%, nsp 90.5% accuracy")
    assert line("none").endswith("mlm 54.9% accuracy")
