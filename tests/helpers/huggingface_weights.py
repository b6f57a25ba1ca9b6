"""Converts variables to the state of Hugging Face's `AlbertForPreTraining`."""

import numpy as np

from albert_tf.config import ModelConfig
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.interop.weight_names import list_weights


def num_huggingface_groups(config: ModelConfig) -> int:
    """Groups in Hugging Face, which cannot share only one kind of sublayer."""
    if config.parameter_sharing == "all":
        return config.num_hidden_groups
    return config.num_hidden_layers


def to_huggingface(
    config: ModelConfig, weights: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The state dictionary of transformers, from arrays by variable path."""
    grouped = ModelWeights(config, "sop", weights).regrouped()
    state = {
        weight.hugging_face: grouped.values[weight.path].T
        if weight.transposed
        else grouped.values[weight.path]
        for weight in list_weights(grouped.config)
    }
    projection = "albert.encoder.embedding_hidden_mapping_in"
    if config.embedding_size == config.hidden_size:
        # transformers always projects; albert_tf only if the widths differ.
        state[f"{projection}.weight"] = np.eye(
            config.hidden_size, dtype=np.float32
        )
        state[f"{projection}.bias"] = np.zeros(config.hidden_size, np.float32)
    # Tied weights are listed under both names.
    state["predictions.decoder.weight"] = state[
        "albert.embeddings.word_embeddings.weight"
    ]
    state["predictions.decoder.bias"] = state["predictions.bias"]
    return state
