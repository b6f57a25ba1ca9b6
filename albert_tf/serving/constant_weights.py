"""A model as CPUs run it fastest: weights in the graph, and no padding.

oneDNN merges a matrix product with its bias, its residual and GELU, and keeps
the kernel in the layout of the processor, if the kernel is a constant of the
graph. Layers that share their weights are a loop, so that it is kept once.

Products, GELU and LayerNorm are computed of the tokens of all texts, `(tokens,
H)`, and only attention of rows, `(batch, length)`: a batch costs as much as its
tokens, however different their lengths are.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.modeling.attention import SelfAttention
from albert_tf.modeling.backbone import Encoder
from albert_tf.modeling.layers import (
    LAYER_NORM_EPSILON,
    AddAndNorm,
    FeedForward,
    Projection,
)
from albert_tf.modeling.models import AlbertForTask, AlbertPretrainer

_Block = tuple[SelfAttention, FeedForward]
_Function = Callable[..., tf.Tensor]


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
    """`backbone.Encoder` with constant weights, without dropout and padding.

    Arguments and result are the same, but the result is 0 at padding, and GELU,
    residuals and softmax are rounded to `dtype`.

    Args:
        encoder: The encoder, built and restored.
        dtype: Of products and attention; LayerNorm is float32.
    """

    def __init__(self, encoder: Encoder, dtype: tf.DType) -> None:
        self._config = encoder.config
        self._blocks: list[_Block] = encoder.blocks
        self._projection: Projection | None = encoder.projection
        self._dtype = dtype

    def __call__(
        self,
        embedded: tf.Tensor,
        attention_bias: tf.Tensor,
        output_positions: tf.Tensor | None = None,
        **_: Any,
    ) -> tf.Tensor:
        rows = _Rows(attention_bias)
        hidden = tf.cast(rows.to_tokens(embedded), self._dtype)
        if self._projection is not None:
            hidden = self._product(self._projection)(hidden)
        blocks = list(self._blocks)
        last = None if output_positions is None else blocks.pop()
        if blocks and all(block == blocks[0] for block in blocks):
            hidden = self._repeat(blocks[0], len(blocks), hidden, rows)
        else:
            for block in blocks:
                hidden = self._make(block)(hidden, rows)
        if last is None:
            return rows.without_padding(rows.to_rows(hidden))
        hidden = self._make(last)(hidden, rows, output_positions)
        size = tf.shape(output_positions)
        return tf.reshape(hidden, [*tf.unstack(size), hidden.shape[-1]])

    def _repeat(
        self, block: _Block, times: int, hidden: tf.Tensor, rows: "_Rows"
    ) -> tf.Tensor:
        # A constant must be made in the loop to be one there.
        def step(layer: tf.Tensor, hidden: tf.Tensor) -> Any:
            return layer + 1, self._make(block)(hidden, rows)

        _, hidden = tf.while_loop(
            lambda layer, _: layer < times, step, [0, hidden]
        )
        return hidden

    def _make(self, block: _Block) -> _Function:
        """The function of a block: tokens, rows and positions to tokens."""
        attention, feed_forward = block
        query = self._product(attention.query)
        key_value = self._product(attention.key, attention.value)
        context = self._product(attention.output_projection)
        inner = self._product(feed_forward.intermediate)
        outer = self._product(feed_forward.output_projection)
        norms = [self._norm(part.layer_norm) for part in block]
        act = keras.activations.get(self._config.hidden_act)
        if self._config.hidden_act == "gelu":
            act = functools.partial(tf.nn.gelu, approximate=True)

        def apply(
            hidden: tf.Tensor,
            rows: "_Rows",
            positions: tf.Tensor | None = None,
        ) -> tf.Tensor:
            queried, to_rows, to_tokens = hidden, rows.to_rows, rows.to_tokens
            if positions is not None:
                queried, to_rows, to_tokens = rows.choose(hidden, positions)
            (q,) = self._heads(to_rows(query(queried)), 1)
            k, v = self._heads(rows.to_rows(key_value(hidden)), 2)
            scores = tf.matmul(q, k, transpose_b=True)
            scale = tf.constant(q.shape[-1] ** -0.5, self._dtype)
            bias = tf.cast(rows.attention_bias, self._dtype)
            weights = tf.nn.softmax(scores * scale + bias)
            joined = tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3])
            batch, length, *_ = tf.unstack(tf.shape(joined))
            joined = tf.reshape(joined, [batch, length, hidden.shape[-1]])
            attended = norms[0](queried + context(to_tokens(joined)))
            return norms[1](attended + outer(act(inner(attended))))

        return apply

    def _heads(self, x: tf.Tensor, count: int) -> list[tf.Tensor]:
        """`(batch, length, count * H)` -> `(batch, heads, length, size)`."""
        heads = self._config.num_attention_heads
        batch, length = tf.unstack(tf.shape(x)[:2])
        size = x.shape[-1] // (count * heads)
        split = tf.reshape(x, [batch, length, count, heads, size])
        return tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]), num=count)

    def _product(self, *projections: Projection) -> _Function:
        """`x W + b` of projections, side by side: `(tokens, widths)`."""
        kernel = np.concatenate([_value(p.kernel) for p in projections], 1)
        kernel = tf.constant(kernel, self._dtype)
        bias = np.concatenate([_value(p.bias) for p in projections])
        bias = tf.constant(bias, self._dtype)
        return lambda x: tf.nn.bias_add(tf.matmul(x, kernel), bias)

    def _norm(self, layer: AddAndNorm) -> _Function:
        gamma, beta = _value(layer.gamma), _value(layer.beta)

        def norm(x: tf.Tensor) -> tf.Tensor:
            x = tf.cast(x, tf.float32)
            moments = tf.nn.moments(x, [-1], keepdims=True)
            normed = tf.nn.batch_normalization(
                x, *moments, beta, gamma, LAYER_NORM_EPSILON
            )
            return tf.cast(normed, self._dtype)

        return norm


class _Rows:
    """Where the tokens of a batch are in its rows.

    Tokens are `(tokens, width)`, rows `(batch, length, width)`. The first
    position of a row is a token even if the row is padding only.

    Args:
        attention_bias: float32, `(batch, 1, 1, length)`; 0 for tokens.
    """

    def __init__(self, attention_bias: tf.Tensor) -> None:
        self.attention_bias = attention_bias
        bias = attention_bias[:, 0, 0, :]
        is_token = tf.concat(
            [tf.ones_like(bias[:, :1], tf.bool), bias[:, 1:] == 0], 1
        )
        self._shape = tf.shape(bias)
        places = tf.where(tf.reshape(is_token, [-1]))
        self._places = tf.cast(places[:, 0], tf.int32)
        self._is_token = is_token[..., tf.newaxis]
        numbers = tf.math.cumsum(tf.cast(tf.reshape(is_token, [-1]), tf.int32))
        # Padding reads the token before it.
        self._numbers = tf.reshape(numbers - 1, self._shape)

    def to_tokens(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(rows, [-1, rows.shape[-1]]), self._places)

    def to_rows(self, tokens: tf.Tensor) -> tf.Tensor:
        return tf.gather(tokens, self._numbers)

    def without_padding(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.where(self._is_token, rows, tf.zeros([], rows.dtype))

    def choose(
        self, tokens: tf.Tensor, positions: tf.Tensor
    ) -> tuple[tf.Tensor, _Function, _Function]:
        """The tokens at `(batch, positions)`, and their way there and back."""
        numbers = tf.gather(self._numbers, positions, batch_dims=1)
        width, size = tokens.shape[-1], tf.unstack(tf.shape(positions))
        return (
            tf.reshape(tf.gather(tokens, numbers), [-1, width]),
            lambda x: tf.reshape(x, [*size, x.shape[-1]]),
            lambda x: tf.reshape(x, [-1, x.shape[-1]]),
        )


def _value(variable: keras.Variable) -> np.ndarray:
    with tf.init_scope():  # called while a graph is made
        return variable.numpy()
