"""Our variables' names in Hugging Face's `AlbertForPreTraining`."""

import numpy as np

from albert_tf.config import ModelConfig

# Our path, without the model's name, and theirs. Ours is kernel, bias, gamma
# or beta where theirs is weight or bias; a kernel is their weight transposed.
OUTSIDE_BLOCKS = {
    "embeddings/word_embeddings": "albert.embeddings.word_embeddings.weight",
    "embeddings/token_type_embeddings": (
        "albert.embeddings.token_type_embeddings.weight"
    ),
    "embeddings/position_embeddings": (
        "albert.embeddings.position_embeddings.weight"
    ),
    "embeddings/layer_norm": "albert.embeddings.LayerNorm",
    "encoder/embedding_hidden_mapping_in": (
        "albert.encoder.embedding_hidden_mapping_in"
    ),
    "pooler": "albert.pooler",
    "masked_lm/transform": "predictions.dense",
    "masked_lm/layer_norm": "predictions.LayerNorm",
    "masked_lm/output_bias": "predictions.bias",
    "sentence/output_weights": "sop_classifier.classifier.weight",
    "sentence/output_bias": "sop_classifier.classifier.bias",
}
IN_ATTENTION = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "output": "attention.dense",
    "layer_norm": "attention.LayerNorm",
}
IN_FFN = {
    "intermediate": "ffn",
    "output": "ffn_output",
    "layer_norm": "full_layer_layer_norm",
}
LEAVES = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
}


def num_huggingface_groups(config: ModelConfig) -> int:
    """Their groups: they cannot share one sublayer alone, so copies do it."""
    if config.parameter_sharing == "all":
        return config.num_hidden_groups
    return config.num_hidden_layers


def name_pairs(config: ModelConfig) -> list[tuple[str, str]]:
    """Our layers and theirs; one of ours may stand for several of theirs."""
    pairs = list(OUTSIDE_BLOCKS.items())
    for group in range(num_huggingface_groups(config)):
        for inner in range(config.inner_group_num):
            theirs = (
                f"albert.encoder.albert_layer_groups.{group}"
                f".albert_layers.{inner}."
            )
            for kind, names in ("attention", IN_ATTENTION), ("ffn", IN_FFN):
                if config.parameter_sharing == "all":
                    owner = f"group_{group}"
                elif config.parameter_sharing == kind:
                    owner = f"group_{config.group_of_layer(group)}"
                else:
                    owner = f"layer_{group}"
                ours = f"encoder/{owner}_inner_group_{inner}_{kind}/"
                pairs += [(ours + a, theirs + b) for a, b in names.items()]
    return pairs


def to_huggingface(
    config: ModelConfig, weights: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Their state dictionary, from ours by variable path."""
    state = {}
    for ours, theirs in name_pairs(config):
        path = f"albert/{ours}"
        if path in weights:
            state[theirs] = weights[path]
        for our_leaf, their_leaf in LEAVES.items():
            if f"{path}/{our_leaf}" in weights:
                value = weights[f"{path}/{our_leaf}"]
                state[f"{theirs}.{their_leaf}"] = (
                    value.T if our_leaf == "kernel" else value
                )
    projection = "albert.encoder.embedding_hidden_mapping_in"
    if config.embedding_size == config.hidden_size:
        # They always project, we only where the widths differ.
        state[f"{projection}.weight"] = np.eye(
            config.hidden_size, dtype=np.float32
        )
        state[f"{projection}.bias"] = np.zeros(config.hidden_size, np.float32)
    # Tied, but listed.
    state["predictions.decoder.weight"] = state[
        "albert.embeddings.word_embeddings.weight"
    ]
    state["predictions.decoder.bias"] = state["predictions.bias"]
    return state
