import pytest
import tensorflow as tf

from albert_tf.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.training.schedules import (
    describe_learning_rate,
    dropout_rates,
    learning_rate,
    next_dropout_change,
    scaled_learning_rate,
)


def rate_at(step, num_train_steps=125_000, **settings):
    config = OptimizerConfig(**settings)
    rate = learning_rate(tf.constant(step, tf.int64), config, num_train_steps)
    assert rate.dtype == tf.float32
    return float(rate)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (1, 0.00176 / 3125),
        (3124, 0.00176 * 3124 / 3125),
        # The decay counts from 0, so it has passed 3125 / 125000 = 1/40.
        (3125, 0.00176 * 39 / 40),
        (62_500, 0.00088),
        (124_999, 0.00176 / 125_000),
        (125_000, 0.0),
        (130_000, 0.0),
    ],
)
def test_paper_recipe_warms_up_then_decays_from_step_0(step, rate):
    assert rate_at(step) == pytest.approx(rate, rel=1e-6)


def test_long_run_decays_in_single_steps():
    """float32 must not swallow one step in ten million."""
    assert rate_at(9_999_999, 10_000_000) == pytest.approx(1.76e-10, rel=1e-6)


def test_without_warmup_the_first_rate_is_the_peak():
    """A power shapes the decay."""
    settings = {"num_warmup_steps": 0, "learning_rate": 0.5}
    assert rate_at(0, 8, **settings) == 0.5
    assert rate_at(2, 8, **settings) == 0.375
    assert rate_at(2, 8, **settings, poly_power=2.0) == 0.28125


def test_rate_stays_at_its_peak_until_the_last_steps():
    settings = {
        "num_warmup_steps": 2,
        "learning_rate": 1.0,
        "num_decay_steps": 4,
    }
    rates = [rate_at(step, 8, **settings) for step in range(10)]
    assert rates == [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    of_square_root = rate_at(7, 8, **settings, poly_power=0.5)
    assert of_square_root == 0.5


def config_of(dropout_schedule):
    return PretrainingConfig(
        model=ModelConfig(
            hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3
        ),
        training=TrainingConfig(dropout_schedule=dropout_schedule),
    )


def test_schedule_sets_both_rates_from_its_steps_on():
    """Without one, they are those of the model."""
    assert dropout_rates(7, config_of("")) == (0.2, 0.3)
    assert next_dropout_change(7, config_of("")) is None
    config = config_of("0:0.1,1000000:0.0")
    assert dropout_rates(0, config) == (0.1, 0.1)
    assert dropout_rates(999_999, config) == (0.1, 0.1)
    assert dropout_rates(1_000_000, config) == (0.0, 0.0)


def test_next_change_is_a_later_step_with_other_rates():
    config = config_of("0:0.1,10:0.1,20:0.05,30:0.1")
    assert next_dropout_change(0, config) == 20
    assert next_dropout_change(19, config) == 20
    assert next_dropout_change(20, config) == 30
    assert next_dropout_change(30, config) is None


@pytest.mark.parametrize(
    ("batch_size", "power"),
    [(512, 3), (1024, 2.5), (2048, 2), (4096, 1.5), (8192, 1), (32768, 0)],
)
def test_the_rate_scales_with_the_root_of_the_batch_size(batch_size, power):
    """You et al., 2020, Table 4, has 5 / (2^power 10^3) for these batches."""
    assert scaled_learning_rate(batch_size) == pytest.approx(
        5 / (2**power * 1000), rel=0.005
    )


# Batch size, settings and the beginning of the warning, "" for none.
ADVICE = [
    # sqrt(4096 / 512) is 2.83; see issue 29 of google-research/albert.
    (512, {}, "learning_rate is 2.83 times that of the paper scaled"),
    (4096, {"learning_rate": 2.1 * 0.00176}, "learning_rate is 2.1 times"),
    (2048, {}, ""),  # 1.41 times
    (512, {"learning_rate": 0.0006}, ""),
    (512, {"optimizer": "adamw"}, ""),
    (32, {"num_train_steps": 9_999, "num_warmup_steps": 100}, ""),
]


@pytest.mark.parametrize(("batch_size", "settings", "expected"), ADVICE)
def test_a_rate_far_from_the_papers_gives_a_warning(
    batch_size, settings, expected
):
    """Not in short runs, nor with AdamW."""
    config = PretrainingConfig(data=DataConfig(global_batch_size=batch_size))
    _, warning = describe_learning_rate(config.replace(**settings))
    assert warning.startswith(expected)
    assert bool(warning) == bool(expected)


def test_the_papers_rate_is_named_for_the_batch():
    """A batch of packed rows counts their examples."""
    config = PretrainingConfig(data=DataConfig(global_batch_size=512))
    line, warning = describe_learning_rate(config)
    assert line == (
        "learning rate 0.00176 after 3125 warm-up steps; the paper's for a "
        "batch of 512 examples: 0.000622 after 3125"
    )
    assert "--learning_rate=0.000622" in warning
    line, warning = describe_learning_rate(config, examples_per_row=8.0)
    assert "for a batch of 4096 examples: 0.00176 after 3125" in line
    assert warning == ""
    line, _ = describe_learning_rate(config.replace(num_decay_steps=600))
    assert "decaying in the last 600" in line
