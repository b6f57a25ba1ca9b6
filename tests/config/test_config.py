import dataclasses
import json
import math

import pytest

from albert_tf.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.errors import UserError
from data_prep.config import (
    RecordsConfig,
)

# A setting, or several, that are refused, and what the message says.
REFUSED = [
    (ModelConfig, {"hidden_size": "768"}, "hidden_size must be of type int"),
    # True is an int to Python.
    (ModelConfig, {"hidden_size": True}, "hidden_size must be of type int"),
    (ModelConfig, {"hidden_act": 3}, "hidden_act must be of type str"),
    (ModelConfig, {"initializer_range": "x"}, "must be of type float"),
    (DataConfig, {"input_file": (1,)}, "input_file must be a list of strings"),
    (
        ModelConfig,
        {"hidden_size": 0},
        "hidden_size must be at least 1. Received: 0.",
    ),
    (ModelConfig, {"hidden_dropout_prob": 1.0}, "must be below 1"),
    (ModelConfig, {"initializer_range": math.nan}, "must be a finite number"),
    (ModelConfig, {"hidden_act": "silu"}, "must be one of gelu, relu"),
    (
        ModelConfig,
        {"hidden_size": 100, "num_attention_heads": 7},
        "num_attention_heads must divide hidden_size. Received: 7 and 100.",
    ),
    (
        ModelConfig,
        {"num_hidden_groups": 5, "num_hidden_layers": 3},
        "num_hidden_groups must be at most num_hidden_layers. "
        "Received: 5 and 3.",
    ),
    (  # int(15 / 22 * 22) is 14 in google-research/albert
        ModelConfig,
        {"num_hidden_groups": 22, "num_hidden_layers": 22},
        "22 groups of 22 layers, where layer 15 differs",
    ),
    (  # int(9 / (18 / 14)) is 6 in transformers
        ModelConfig,
        {"num_hidden_groups": 14, "num_hidden_layers": 18},
        "14 groups of 18 layers, where layer 9 differs",
    ),
    (
        RecordsConfig,
        {"max_seq_length": 16, "max_predictions_per_seq": 20},
        "max_predictions_per_seq must be below max_seq_length. "
        "Received: 20 and 16.",
    ),
    (
        PretrainingConfig().replace,
        {"eval_every_n_steps": 10},
        "eval_every_n_steps needs --eval_input_file",
    ),
    (
        PretrainingConfig().replace,
        {"max_seq_length": 600},
        "max_seq_length must be at most max_position_embeddings. "
        "Received: 600 and 512.",
    ),
    (
        PretrainingConfig().replace,
        {"num_warmup_steps": 20, "num_decay_steps": 21, "num_train_steps": 40},
        "num_warmup_steps + num_decay_steps must be at most "
        "num_train_steps. Received: 20 + 21 and 40.",
    ),
    *(
        (
            TrainingConfig,
            {"dropout_schedule": schedule},
            f"Received: {schedule!r}. Example: 0:0.1,1000000:0.0",
        )
        for schedule in (
            *("0.1", "5:0.1", "0:1.0", "0:nan", "0:0.1,ten:0.0"),
            "0:0.1,10:0.2,10:0.3",
        )
    ),
    (
        lambda **values: ModelConfig.from_dict(values, "my.json"),
        {"hiden_size": 4, "vocab": 3, "num_hidden_layers": 2},
        "my.json: unknown key hiden_size, vocab. Known keys: ",
    ),
    (
        lambda **values: ModelConfig.from_dict(values, "my.json"),
        {"hidden_size": "4"},
        "my.json: hidden_size must be",
    ),
]


@pytest.mark.parametrize(("make", "settings", "said"), REFUSED)
def test_impossible_settings_are_refused_by_name(make, settings, said):
    with pytest.raises(UserError) as refused:
        make(**settings)
    assert said in str(refused.value)


def test_an_integer_is_accepted_for_a_float():
    model = ModelConfig(hidden_dropout_prob=0)
    assert type(model.hidden_dropout_prob) is float


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
