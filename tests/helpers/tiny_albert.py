"""A tiny architecture, models with random weights, and their outputs."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert_tf.config import ModelConfig, TaskHeadConfig
from albert_tf.interop.weight_names import ModelWeights, list_weights
from albert_tf.modeling.models import AlbertPretrainer

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"
VOCABULARY = TESTDATA / "30k-clean.model"

# Sizes differ in every dimension.
TINY = ModelConfig(
    vocab_size=11,
    embedding_size=4,
    hidden_size=6,
    num_hidden_layers=4,
    num_hidden_groups=2,
    inner_group_num=2,
    num_attention_heads=2,
    intermediate_size=10,
    max_position_embeddings=7,
)

HEADS = {
    "classification": TaskHeadConfig("classification", ("no", "yes", "maybe")),
    "regression": TaskHeadConfig("regression"),
    "multiple_choice": TaskHeadConfig("multiple_choice", num_choices=3),
    "question_answering": TaskHeadConfig("question_answering"),
    "beam": TaskHeadConfig("question_answering", squad_head="beam"),
    "token_classification": TaskHeadConfig(
        "token_classification", ("B-LOC", "I-LOC", "O")
    ),
    "multi_label_classification": TaskHeadConfig(
        "multi_label_classification", ("joy", "fear")
    ),
}


def random_weights(
    config: ModelConfig = TINY,
    objective: str = "sop",
    seed: int = 3,
    **more: Any,
) -> ModelWeights:
    """A model whose weights are so large that GELU's two forms differ."""
    generator = np.random.default_rng(seed)
    values = {
        weight.path: generator.normal(size=weight.shape).astype(np.float32)
        for weight in list_weights(config, objective, more.get("head"))
    }
    return ModelWeights(config, objective, values, **more)


def outputs_of(
    weights: ModelWeights, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Outputs of `AlbertPretrainer`, at all and at masked positions."""
    pretrainer = AlbertPretrainer(weights.config, weights.sentence_objective)
    pretrainer.build()
    for variable in pretrainer.variables:
        variable.assign(weights.values[variable.path])
    outputs = pretrainer.encode(batch) | pretrainer(batch)
    return {name: output.numpy() for name, output in outputs.items()}
