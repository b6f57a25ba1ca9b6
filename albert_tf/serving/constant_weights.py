"""A model as CPUs run it fastest: its weights are constants of the graph.

oneDNN merges a matrix product with its bias, its residual and GELU, and keeps
the kernel in the layout of the processor, if the kernel is a constant of the
graph. Layers that share their weights are a loop, so that it is kept once.
"""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.modeling import layers
from albert_tf.modeling.attention import SelfAttention
from albert_tf.modeling.backbone import Encoder
from albert_tf.modeling.layers import LAYER_NORM_EPSILON
from albert_tf.modeling.models import AlbertForTask, AlbertPretrainer


def make_constant(
    model: AlbertPretrainer | AlbertForTask, precision: str
) -> dict[str, tf.Variable]:
    """Replaces the encoder of a model that is built and restored.

    Args:
        precision: "float32" or "mixed_bfloat16": that of the encoder.

    Returns:
        The variables that the model still reads, by path.
    """
    backbone = model.backbone
    constant = {id(variable) for variable in backbone.encoder.variables}
    dtype = tf.float32 if precision == "float32" else tf.bfloat16
    encoder: Any = ConstantEncoder(backbone.encoder, dtype)
    variables = {
        v.path: v.value for v in model.variables if id(v) not in constant
    }
    backbone.encoder = encoder
    return variables


class ConstantEncoder:
    """`backbone.Encoder`, built and restored, with constant weights.

    Arguments and result are the same, without dropout. Products, GELU, softmax
    and residuals are rounded to `dtype`; LayerNorm is float32.
    """

    def __init__(self, encoder: Encoder, dtype: tf.DType) -> None:
        self._encoder = encoder
        self._dtype = dtype

    def __call__(
        self,
        embedded: tf.Tensor,
        attention_bias: tf.Tensor,
        output_positions: tf.Tensor | None = None,
        **_: Any,
    ) -> tf.Tensor:
        batch, length, _ = tf.unstack(tf.shape(embedded))
        # oneDNN merges products of two dimensions.
        tokens = tf.reshape(embedded, [-1, embedded.shape[-1]])
        tokens = tf.cast(tokens, self._dtype)
        if self._encoder.projection is not None:
            tokens = self._product(tokens, self._encoder.projection)
        bias = tf.cast(attention_bias, self._dtype)
        blocks = self._encoder.blocks
        if all(block == blocks[0] for block in blocks):
            _, tokens = tf.while_loop(
                lambda layer, _: layer < len(blocks),
                # A constant must be made in the loop to be one there.
                lambda layer, x: (layer + 1, self._apply(*blocks[0], x, bias)),
                [0, tokens],
            )
        else:
            for block in blocks:
                tokens = self._apply(*block, tokens, bias)
        hidden = tf.reshape(tokens, [batch, length, tokens.shape[-1]])
        if output_positions is None:
            return hidden
        return tf.gather(hidden, output_positions, batch_dims=1)

    def _apply(
        self,
        attention: SelfAttention,
        feed_forward: layers.FeedForward,
        tokens: tf.Tensor,
        bias: tf.Tensor,
    ) -> tf.Tensor:
        """A block, of `(batch * length, H)` to the same."""
        config, width = self._encoder.config, tokens.shape[-1]
        num_heads = config.num_attention_heads
        product = self._product(
            tokens, attention.query, attention.key, attention.value
        )
        batch, _, _, length = tf.unstack(tf.shape(bias))
        shape = [batch, length, 3, num_heads, width // num_heads]
        heads = tf.transpose(tf.reshape(product, shape), [2, 0, 3, 1, 4])
        query, key, value = tf.unstack(heads, num=3)
        scores = tf.matmul(query, key, transpose_b=True)
        scale = tf.constant(query.shape[-1] ** -0.5, self._dtype)
        weights = tf.nn.softmax(scores * scale + bias)
        context = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
        context = self._product(
            tf.reshape(context, [-1, width]), attention.output_projection
        )
        attended = self._norm(tokens + context, attention.layer_norm)
        inner = self._product(attended, feed_forward.intermediate)
        activate = keras.activations.get(config.hidden_act)
        if config.hidden_act == "gelu":
            activate = functools.partial(tf.nn.gelu, approximate=True)
        outer = self._product(activate(inner), feed_forward.output_projection)
        return self._norm(attended + outer, feed_forward.layer_norm)

    def _product(
        self, tokens: tf.Tensor, *parts: layers.Projection
    ) -> tf.Tensor:
        """`x W + b` of projections, side by side: `(tokens, widths)`."""
        kernel = np.concatenate([_value(p.kernel) for p in parts], 1)
        bias = np.concatenate([_value(p.bias) for p in parts])
        product = tf.matmul(tokens, tf.constant(kernel, self._dtype))
        return tf.nn.bias_add(product, tf.constant(bias, self._dtype))

    def _norm(self, tokens: tf.Tensor, layer: layers.AddAndNorm) -> tf.Tensor:
        x = tf.cast(tokens, tf.float32)
        moments = tf.nn.moments(x, [-1], keepdims=True)
        beta, gamma = _value(layer.beta), _value(layer.gamma)
        normed = tf.nn.batch_normalization(
            x, *moments, beta, gamma, LAYER_NORM_EPSILON
        )
        return tf.cast(normed, self._dtype)


def _value(variable: keras.Variable) -> np.ndarray:
    with tf.init_scope():  # called while a graph is made
        return variable.numpy()
