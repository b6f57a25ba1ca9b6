import dataclasses
import json
import math

import pytest

from albert_tf.config import (
    DataConfig,
    FinetuningConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.errors import UserError
from data_prep.config import (
    RecordsConfig,
)


def refusal(make, *arguments, **settings):
    with pytest.raises(UserError) as refused:
        make(*arguments, **settings)
    return str(refused.value)


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (
            ModelConfig,
            {"hidden_size": 100, "num_attention_heads": 7},
            "num_attention_heads must divide hidden_size. Received: 7 and 100.",
        ),
        (
            PretrainingConfig,
            {"training": TrainingConfig(eval_every_n_steps=10)},
            "eval_every_n_steps needs --eval_input_file",
        ),
        (
            DataConfig,
            {"global_batch_size": 10, "input_lanes": 4},
            "input_lanes must divide global_batch_size. Received: 4 and 10.",
        ),
        (
            ModelConfig,
            {"num_hidden_groups": 5, "num_hidden_layers": 3},
            "num_hidden_groups must be at most num_hidden_layers. "
            "Received: 5 and 3.",
        ),
        (
            ModelConfig,
            {"num_hidden_groups": 2, "parameter_sharing": "none"},
            "num_hidden_groups must be 1 if parameter_sharing is none. "
            "Received: 2.",
        ),
        (
            RecordsConfig,
            {"max_seq_length": 16, "max_predictions_per_seq": 20},
            "max_predictions_per_seq must be below max_seq_length. "
            "Received: 20 and 16.",
        ),
        (
            PretrainingConfig,
            {
                "data": DataConfig(max_seq_length=300),
                "model": ModelConfig(max_position_embeddings=200),
            },
            "max_seq_length must be at most max_position_embeddings. "
            "Received: 300 and 200.",
        ),
        (
            PretrainingConfig,
            {
                "optimizer": OptimizerConfig(num_warmup_steps=50),
                "training": TrainingConfig(num_train_steps=40),
            },
            "num_warmup_steps + num_decay_steps must be at most "
            "num_train_steps. Received: 50 + 0 and 40.",
        ),
        (
            PretrainingConfig,
            {
                "optimizer": OptimizerConfig(
                    num_warmup_steps=20, num_decay_steps=21
                ),
                "training": TrainingConfig(num_train_steps=40),
            },
            "num_warmup_steps + num_decay_steps must be at most "
            "num_train_steps. Received: 20 + 21 and 40.",
        ),
    ],
)
def test_impossible_combinations_are_refused_with_both_values(
    make, settings, said
):
    assert said in refusal(make, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden_size": "768"}, "hidden_size must be of type int"),
        # True is an int to Python.
        ({"hidden_size": True}, "hidden_size must be of type int"),
        ({"hidden_act": 3}, "hidden_act must be of type str"),
        ({"initializer_range": "x"}, "initializer_range must be of type float"),
        ({"hidden_size": 0}, "hidden_size must be at least 1. Received: 0."),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be below 1"),
        (
            {"initializer_range": math.nan},
            "initializer_range must be a finite number. Received: nan.",
        ),
        ({"hidden_act": "silu"}, "hidden_act must be one of gelu, relu"),
    ],
)
def test_wrong_types_and_values_are_refused_by_name(settings, said):
    assert said in refusal(ModelConfig, **settings)


def test_an_integer_is_accepted_for_a_float():
    model = ModelConfig(hidden_dropout_prob=0)
    assert type(model.hidden_dropout_prob) is float


@pytest.mark.parametrize(
    "schedule",
    [
        "0.1",
        "5:0.1",
        "0:1.0",
        "0:nan",
        "0:0.1,10:0.2,10:0.3",
        "0:0.1,ten:0.0",
    ],
)
def test_a_malformed_schedule_is_refused_with_an_example(schedule):
    said = refusal(TrainingConfig, dropout_schedule=schedule)
    assert repr(schedule) in said
    assert "Example: 0:0.1,1000000:0.0" in said


def test_refusals_name_the_file_and_the_known_keys():
    values = {"hiden_size": 4, "vocab": 3, "num_hidden_layers": 2}
    said = refusal(ModelConfig.from_dict, values, "my.json")
    assert said.startswith("my.json: unknown key hiden_size, vocab.")
    assert "hidden_size, initializer_range" in said
    said = refusal(ModelConfig.from_dict, {"hidden_size": "4"}, "my.json")
    assert said.startswith("my.json: hidden_size must be")


def test_settings_survive_json():
    config = PretrainingConfig(
        model=ModelConfig(hidden_size=36, num_attention_heads=3),
        data=DataConfig(input_file=("a", "b"), max_seq_length=99),
        optimizer=OptimizerConfig(learning_rate=0.5),
        training=TrainingConfig(dropout_schedule="0:0.1,7:0.0"),
    )
    text = json.dumps(config.to_dict())
    assert PretrainingConfig.from_dict(json.loads(text)) == config
    assert PretrainingConfig() != config


def test_replace_changes_settings_in_nested_configs():
    config = PretrainingConfig()
    changed = config.replace(seed=7, ngram=1, model=ModelConfig(11))
    assert changed.training.seed == 7
    assert changed.data == dataclasses.replace(config.data, ngram=1)
    assert changed.model == ModelConfig(11)
    assert config == PretrainingConfig()
    with pytest.raises(TypeError, match="seeds"):
        config.replace(seeds=7)


def test_a_holdout_for_the_null_threshold_needs_a_task_with_null_answers():
    config = FinetuningConfig().replace(null_holdout_fraction=0.0)
    config.replace(task="squad_v2", null_holdout_fraction=0.05)
    said = refusal(config.replace, task="rte", null_holdout_fraction=0.05)
    assert "0.05 and --task=rte" in said
