"""A TensorFlow 1 graph of ALBERT that writes checkpoints.

It follows the description of google-research/albert (names and shapes of
variables, and the computation) and uses nothing of `albert_tf`. A model read
from such a checkpoint must compute the outputs of this graph.
"""

import json
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

# An albert_config.json. Sizes differ in every dimension.
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "embedding_size": 4,
    "hidden_size": 6,
    "initializer_range": 0.02,
    "intermediate_size": 10,
    "max_position_embeddings": 9,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "num_hidden_groups": 1,
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "inner_group_num": 1,
    "down_scale_factor": 1,
    "type_vocab_size": 2,
    "vocab_size": 11,
}
GROUPS = {**CONFIG, "num_hidden_groups": 2, "inner_group_num": 2}


class Written(NamedTuple):
    """The variables of a checkpoint and the outputs of its graph.

    Attributes:
        values: Arrays by TF1 name, without `global_step`.
        outputs: Arrays by name, for `random_batch`.
    """

    values: dict
    outputs: dict


def random_batch(config, seed=5):
    """int32 arrays by name; the second row ends in padding."""
    generator = np.random.default_rng(seed)
    length = config["max_position_embeddings"] - 1
    mask = np.ones((2, length), np.int32)
    mask[1, length - 3 :] = 0
    return {
        "input_ids": generator.integers(
            0, config["vocab_size"], (2, length), np.int32
        ),
        "input_mask": mask,
        "segment_ids": np.tile(np.arange(length) > 2, (2, 1)).astype(np.int32),
        "masked_lm_positions": np.array([[1, 3], [2, 0]], np.int32),
    }


def write(prefix, config, *, step=None, slots=False):
    """Builds the graph with random values and saves it by a Saver.

    Args:
        prefix: The checkpoint's, e.g. `directory / "model.ckpt-best"`.
        config: The keys of an `albert_config.json`, written next to it.
        step: `global_step`; None writes a checkpoint without it.
        slots: Whether to save the optimizer's moments.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    (prefix.parent / "albert_config.json").write_text(json.dumps(config))
    with v1.Graph().as_default(), v1.Session() as session:
        outputs = _model(config)
        if slots:
            for variable in v1.global_variables():
                for slot in ("adam_m", "adam_v"):
                    name = f"{variable.op.name}/{slot}"
                    v1.get_variable(name, variable.shape, trainable=False)
        generator = np.random.default_rng(7)
        values = {
            variable: generator.normal(size=variable.shape) * 0.5
            for variable in v1.global_variables()
        }
        if step is not None:
            values[v1.train.get_or_create_global_step()] = step
        # In one run, since the time of a run grows with the graph.
        session.run(
            [variable.initializer for variable in values],
            {v.initializer.inputs[1]: value for v, value in values.items()},
        )
        outputs, values = session.run(
            [outputs, {v.op.name: v.read_value() for v in values}]
        )
        v1.train.Saver(v1.global_variables()).save(
            session, str(prefix), write_meta_graph=False
        )
    values.pop("global_step", None)
    return Written(values, outputs)


def _model(config):
    batch = {
        name: tf.constant(value) for name, value in random_batch(config).items()
    }
    width, hidden_size = config["embedding_size"], config["hidden_size"]
    length = batch["input_ids"].shape[1]
    with v1.variable_scope("bert"):
        with v1.variable_scope("embeddings"):
            words = v1.get_variable(
                "word_embeddings", [config["vocab_size"], width]
            )
            types = v1.get_variable(
                "token_type_embeddings", [config["type_vocab_size"], width]
            )
            positions = v1.get_variable(
                "position_embeddings",
                [config["max_position_embeddings"], width],
            )
            hidden = tf.gather(words, batch["input_ids"])
            hidden += tf.gather(types, batch["segment_ids"])
            hidden = _layer_norm(hidden + positions[:length], "LayerNorm")
        with v1.variable_scope("encoder"):
            if width != hidden_size:
                hidden = _dense(
                    hidden, hidden_size, "embedding_hidden_mapping_in"
                )
            with v1.variable_scope("transformer", reuse=v1.AUTO_REUSE):
                for layer in range(config["num_hidden_layers"]):
                    fraction = layer / config["num_hidden_layers"]
                    group = int(fraction * config["num_hidden_groups"])
                    for inner in range(config["inner_group_num"]):
                        with v1.variable_scope(
                            f"group_{group}/inner_group_{inner}"
                        ):
                            hidden = _block(config, hidden, batch["input_mask"])
        with v1.variable_scope("pooler"):
            pooled = tf.tanh(_dense(hidden[:, 0], hidden_size, "dense"))
    outputs = {"sequence_output": hidden, "pooled_output": pooled}
    with v1.variable_scope("cls/predictions"):
        with v1.variable_scope("transform"):
            masked = tf.gather(
                hidden, batch["masked_lm_positions"], batch_dims=1
            )
            masked = _gelu(_dense(masked, width, "dense"))
            masked = _layer_norm(masked, "LayerNorm")
        bias = v1.get_variable("output_bias", [config["vocab_size"]])
        scores = tf.matmul(
            masked, tf.tile(words[None], [2, 1, 1]), transpose_b=True
        )
        outputs["mlm_logits"] = scores + bias
    with v1.variable_scope("cls/seq_relationship"):
        weights = v1.get_variable("output_weights", [2, hidden_size])
        bias = v1.get_variable("output_bias", [2])
        logits = tf.matmul(pooled, weights, transpose_b=True) + bias
        outputs["sentence_logits"] = logits
    return outputs


def _block(config, hidden, mask):
    """Attention, then a feed-forward layer, each normalised after its sum."""
    heads, size = config["num_attention_heads"], config["hidden_size"]
    batch, length = hidden.shape[:2]

    def split_heads(name):
        projected = _dense(hidden, size, name)
        split = tf.reshape(projected, [batch, length, heads, size // heads])
        return tf.transpose(split, [0, 2, 1, 3])

    with v1.variable_scope("attention_1"):
        with v1.variable_scope("self"):
            scores = tf.matmul(
                split_heads("query"), split_heads("key"), transpose_b=True
            ) / math.sqrt(size // heads)
            hidden_keys = 1.0 - tf.cast(mask[:, None, None, :], tf.float32)
            weights = tf.nn.softmax(scores - 10000.0 * hidden_keys)
            context = tf.transpose(
                tf.matmul(weights, split_heads("value")), [0, 2, 1, 3]
            )
            context = tf.reshape(context, [batch, length, size])
        with v1.variable_scope("output"):
            attended = _dense(context, size, "dense")
    attended = _layer_norm(attended + hidden, "LayerNorm")
    with v1.variable_scope("ffn_1/intermediate"):
        wide = _gelu(_dense(attended, config["intermediate_size"], "dense"))
        with v1.variable_scope("output"):
            narrow = _dense(wide, size, "dense")
    return _layer_norm(narrow + attended, "LayerNorm_1")


def _dense(x, outputs, name):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[-1], outputs])
        bias = v1.get_variable("bias", [outputs])
        return tf.tensordot(x, kernel, 1) + bias


def _layer_norm(x, name):
    with v1.variable_scope(name):
        beta = v1.get_variable("beta", [x.shape[-1]])
        gamma = v1.get_variable("gamma", [x.shape[-1]])
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * gamma / tf.sqrt(variance + 1e-12) + beta


def _gelu(x):
    cubic = x + 0.044715 * x**3
    return x * 0.5 * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * cubic))
