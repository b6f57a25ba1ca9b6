"""The formulas of the layers, each with a gradient written out.

tests/modeling/test_kernels.py compares values and gradients with those of the
formulas as they stand in the papers.

TensorFlow runs one operation at a time, each a pass over memory. On a CPU
these passes take as long as the matrix products. XLA merges them, but its own
CPU products are slow, so only functions marked with `fused` are compiled.
For TPUs and GPUs, XLA compiles the complete program, where marking a function
has no effect.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.modeling.attention_bias import AttentionBias, add_to_scores
from albert_tf.modeling.dropout import Masks, keep_prob
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the keyword argument `fuse`: whether XLA compiles this call.

    XLA compiles the function once for all calls with tensors of the same shapes
    and equal other arguments, so arguments that differ between layers must be
    tensors. Its caller provides a gradient, through `tf.custom_gradient`.

    Args:
        function: Takes tensors, hashable Python values and named tuples of
            both; reads no variables and contains no matrix product.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*args: Any, fuse: bool) -> Any:
        return (compiled if fuse else function)(*args)

    return call


# --- Biases and GELU ----------------------------------------------------------


# (1 + tanh(y)) / 2 is sigmoid(2 y), and 2 y is this polynomial of x.
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def add_bias(
    product: tf.Tensor,
    bias: tf.Tensor,
    target: ProgramTarget = DEFAULT_TARGET,
) -> tf.Tensor:
    """`x W + b`.

    Args:
        product: Float, `(..., width)`; `x W`.
        bias: The dtype of `product`, `(width,)`.

    Returns:
        The dtype and shape of `product`.
    """

    @tf.custom_gradient
    def add(product: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return upstream, bias_gradient(upstream, target)

        return product + bias, gradient

    return add(product, bias)


def bias_gradient(d_sum: tf.Tensor, target: ProgramTarget) -> tf.Tensor:
    """The gradient of a bias: the sum over rows, accumulated in float32.

    On a CPU, it is a product with ones: TensorFlow's `reduce_sum` accumulates
    bfloat16 in bfloat16; over 1,000 rows it is 3 % off, over 8,000 rows 25 %.
    For a GPU, XLA would join these products of all layers, and copy their
    operands into one array.
    """
    rows = tf.reshape(d_sum, [-1, d_sum.shape[-1]])
    if target.device_type == "CPU":
        return tf.matmul(tf.ones([1, tf.shape(rows)[0]], rows.dtype), rows)[0]
    total = tf.reduce_sum(tf.cast(rows, tf.float32), axis=0)
    return tf.cast(total, rows.dtype)


def bias_gelu(
    product: tf.Tensor, bias: tf.Tensor, *, target: ProgramTarget
) -> tf.Tensor:
    """GELU by tanh of `x W + b`; arguments and result as in `add_bias`.

    It is computed in float32, and keeps only its arguments for the gradient.

    Reference:
        [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415).
    """

    @tf.custom_gradient
    def gelu(product: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_sum = _gelu_gradient(product, bias, upstream, fuse=target.fuse)
            return d_sum, bias_gradient(d_sum, target)

        return _gelu(product, bias, fuse=target.fuse), gradient

    return gelu(product, bias)


@fused
def _gelu(product: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    x = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    gate = tf.sigmoid(x * (_LINEAR + _CUBIC * tf.square(x)))
    return tf.cast(x * gate, product.dtype)


@fused
def _gelu_gradient(
    product: tf.Tensor, bias: tf.Tensor, upstream: tf.Tensor
) -> tf.Tensor:
    x = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    gate = tf.sigmoid(x * (_LINEAR + _CUBIC * tf.square(x)))
    slope = x * (_LINEAR + 3.0 * _CUBIC * tf.square(x))
    derivative = gate + gate * (1.0 - gate) * slope
    return tf.cast(tf.cast(upstream, tf.float32) * derivative, product.dtype)


# --- LayerNorm ----------------------------------------------------------------


def layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """LayerNorm, [Ba et al., 2016](https://arxiv.org/abs/1607.06450).

    Args:
        x: float32, `(..., width)`; each row gets mean 0 and deviation 1.
        gamma: float32, `(width,)`; the scale.
        beta: float32, `(width,)`; the shift.
        epsilon: Added to the variance.

    Returns:
        float32, with the shape of `x`.
    """

    @tf.custom_gradient
    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        normal, scale = _standardize(x, *_moments(x), epsilon)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            rows = list(range(x.shape.rank - 1))
            return (
                _standardize_gradient(upstream * gamma, normal, scale),
                tf.reduce_sum(upstream * normal, axis=rows),
                tf.reduce_sum(upstream, axis=rows),
            )

        return normal * gamma + beta, gradient

    return norm(x, gamma, beta)


def bias_dropout_add_norm(
    residual: tf.Tensor,
    product: tf.Tensor,
    bias: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    masks: Masks,
    *,
    target: ProgramTarget,
) -> tf.Tensor:
    """The end of a sublayer: `LayerNorm(residual + dropout(x W + b))`.

    All of it is float32. The backward pass draws the dropout mask a second
    time. It reads the normalised rows or, where XLA compiles, computes them a
    second time: in bfloat16, their arguments take half of the memory, and the
    residual is in memory anyway.

    Args:
        residual: Compute dtype, `(batch, length, width)`.
        product: Like `residual`; `x W` of the sublayer's last projection.
        bias: Compute dtype, `(width,)`; `b` of that projection.
        gamma: As `beta` and `epsilon`, see `layer_norm`.
        masks: Dropout of `x W + b`.

    Returns:
        The dtype and shape of `residual`.
    """

    @tf.custom_gradient
    def end(
        residual: tf.Tensor,
        product: tf.Tensor,
        bias: tf.Tensor,
        gamma: tf.Tensor,
        beta: tf.Tensor,
    ) -> Any:
        def compute(
            residual: tf.Tensor, product: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            return _add_and_norm(
                residual,
                product,
                bias,
                gamma,
                beta,
                epsilon,
                masks,
                fuse=target.fuse,
            )

        result, normal, scale = compute(residual, product)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            rows, row_scale = normal, scale
            if target.is_compiled:
                again, product_again, upstream = _optimization_barrier(
                    [residual, product, upstream]
                )
                _, rows, row_scale = compute(again, product_again)
            d_residual, d_product, d_gamma_rows = _add_and_norm_gradient(
                upstream, rows, row_scale, gamma, masks, fuse=target.fuse
            )
            return (
                d_residual,
                d_product,
                bias_gradient(d_product, target),
                tf.reduce_sum(d_gamma_rows, axis=[0, 1]),
                tf.reduce_sum(tf.cast(upstream, tf.float32), axis=[0, 1]),
            )

        return result, gradient

    return end(residual, product, bias, gamma, beta)


@fused
def _add_and_norm(
    residual: tf.Tensor,
    product: tf.Tensor,
    bias: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    masks: Masks,
) -> tuple[tf.Tensor, ...]:
    """Returns the result, the normalised rows, and the scale of each row."""
    output = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    total = tf.cast(residual, tf.float32) + masks.apply(output)
    normal, scale = _standardize(total, *_moments(total), epsilon)
    return tf.cast(normal * gamma + beta, residual.dtype), normal, scale


@fused
def _add_and_norm_gradient(
    upstream: tf.Tensor,
    normal: tf.Tensor,
    scale: tf.Tensor,
    gamma: tf.Tensor,
    masks: Masks,
) -> tuple[tf.Tensor, ...]:
    """Gradients of the residual and of the product, and of gamma by row."""
    dtype, upstream = upstream.dtype, tf.cast(upstream, tf.float32)
    d_total = _standardize_gradient(upstream * gamma, normal, scale)
    return (
        tf.cast(d_total, dtype),
        tf.cast(masks.apply(d_total), dtype),
        upstream * normal,
    )


def _moments(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean of each row, and the mean of its squares."""
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    return mean, tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)


def _standardize(
    x: tf.Tensor, mean: tf.Tensor, square: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of mean 0 and deviation 1, and the factor that scaled each row.

    The variance is the mean of squares minus the square of the mean, so both
    means can be computed while `x` is written. The difference is precise enough
    in float32 unless the mean of a row is hundreds of times its deviation.
    """
    # Rounding can make the variance of a constant row negative.
    variance = tf.maximum(square - tf.square(mean), 0.0)
    scale = tf.math.rsqrt(variance + epsilon)
    return (x - mean) * scale, scale


def _standardize_gradient(
    d_normal: tf.Tensor, normal: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    mean = tf.reduce_mean(d_normal, axis=-1, keepdims=True)
    along = tf.reduce_mean(d_normal * normal, axis=-1, keepdims=True)
    return scale * (d_normal - mean - normal * along)


# --- Attention ----------------------------------------------------------------


Projected = tuple[tf.Tensor, tf.Tensor]


def attention(
    query: Projected,
    key: Projected,
    value: Projected,
    attention_bias: AttentionBias,
    masks: Masks,
    num_heads: int,
    *,
    target: ProgramTarget,
) -> tf.Tensor:
    """`softmax(Q K^T / sqrt(size) + bias) V` of each head, joined.

    Args:
        query: Product and bias of a `Projection`: compute dtype, `(batch,
            queries, H)` and `(H,)`.
        key: Likewise, `(batch, keys, H)` and `(H,)`; `value` is like it.
        attention_bias: See `attention_bias.add_to_scores`.
        masks: Dropout of the probabilities.
        num_heads: Number of heads; divides H.

    Returns:
        The context: compute dtype, `(batch, queries, H)`.

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.
    """
    size = query[1].shape[0] // num_heads

    def heads(projected: Projected, scale: float = 1.0) -> tf.Tensor:
        return _add_bias_and_split(*projected, num_heads, scale, target)

    # Scales the queries rather than the scores, which have more entries.
    context = attend(
        heads(query, size**-0.5),
        heads(key),
        heads(value),
        attention_bias,
        masks,
        target,
    )
    return join_heads(context)


def _add_bias_and_split(
    product: tf.Tensor,
    bias: tf.Tensor,
    num_heads: int,
    scale: float,
    target: ProgramTarget,
) -> tf.Tensor:
    @tf.custom_gradient
    def split(product: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_product = _scale_and_join(upstream, scale, fuse=target.fuse)
            return d_product, bias_gradient(d_product, target)

        heads = _scale_and_split(
            product, bias, num_heads, scale, fuse=target.fuse
        )
        return heads, gradient

    return split(product, bias)


@fused
def _scale_and_split(
    product: tf.Tensor, bias: tf.Tensor, num_heads: int, scale: float
) -> tf.Tensor:
    total = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    return split_heads(tf.cast(total * scale, product.dtype), num_heads)


@fused
def _scale_and_join(upstream: tf.Tensor, scale: float) -> tf.Tensor:
    scaled = tf.cast(tf.cast(upstream, tf.float32) * scale, upstream.dtype)
    return join_heads(scaled)


def split_heads(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """`(batch, length, H)` -> `(batch, heads, length, size)`."""
    batch, length, width = tf.unstack(tf.shape(x))
    by_heads = tf.reshape(x, [batch, length, num_heads, width // num_heads])
    return tf.transpose(by_heads, [0, 2, 1, 3])


def join_heads(by_heads: tf.Tensor) -> tf.Tensor:
    """`(batch, heads, length, size)` -> `(batch, length, H)`."""
    batch, heads, length, size = tf.unstack(tf.shape(by_heads))
    by_length = tf.transpose(by_heads, [0, 2, 1, 3])
    return tf.reshape(by_length, [batch, length, heads * size])


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    attention_bias: AttentionBias,
    masks: Masks,
    target: ProgramTarget,
) -> tf.Tensor:
    """softmax(Q K^T + bias) V, with dropout of the probabilities.

    For the backward pass it keeps its arguments, its result and one number
    per score in the compute dtype: the exponential, negative where dropout
    drops it. The softmax denominator divides the context, which is smaller
    than the scores. Likewise, the backward pass computes the sum over keys of
    probabilities times their gradients from the context and its gradient. So
    it computes the gradients of the scores in one pass.

    Queries, which are scaled, keys, values and the context are `(batch, heads,
    length, size)`. `attention_bias` and `masks`: see `attention`.

    Reference:
        [Rabe and Staats, 2021](https://arxiv.org/abs/2112.05682), for
        dividing last; [Dao et al., 2022](https://arxiv.org/abs/2205.14135),
        appendix B.2, for the sum.
    """

    @tf.custom_gradient
    def attended(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        scores = tf.matmul(query, key, transpose_b=True)
        weights, kept, factor = _exponentials(
            scores, attention_bias, masks, fuse=target.fuse
        )
        # Not factor[..., tf.newaxis], which LiteRT lacks for dynamic shapes.
        factor = tf.expand_dims(factor, -1)
        context = _multiply(tf.matmul(kept, value), factor, fuse=target.fuse)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_sum, mean = _context_gradient(
                upstream,
                factor,
                context,
                masks.rate,
                fuse=target.fuse,
            )
            d_scores, kept = _scores_gradient(
                tf.matmul(d_sum, value, transpose_b=True),
                weights,
                mean,
                masks.rate,
                fuse=target.fuse,
            )
            return (
                tf.matmul(d_scores, key),
                tf.matmul(d_scores, query, transpose_a=True),
                tf.matmul(kept, d_sum, transpose_a=True),
            )

        return context, gradient

    return attended(query, key, value)


@fused
def _exponentials(
    scores: tf.Tensor, attention_bias: AttentionBias, masks: Masks
) -> tuple[tf.Tensor, ...]:
    """Exponentials of the softmax, negative where dropped; the same, 0 there.

    Third, the factor of the context: 1 / (denominator * keep probability).
    """
    dtype, scores = scores.dtype, tf.cast(scores, tf.float32)
    scores = add_to_scores(scores, attention_bias)
    largest = tf.reduce_max(scores, axis=-1, keepdims=True)
    weights = tf.exp(scores - largest)
    total = tf.reduce_sum(weights, axis=-1) * keep_prob(masks.rate)
    if masks.rate:
        keep = masks.keep(tf.shape(weights))
        weights = tf.where(keep, weights, -weights)
    weights = tf.cast(weights, dtype)
    return weights, _kept(weights, masks.rate), 1.0 / total


def _kept(weights: tf.Tensor, rate: float) -> tf.Tensor:
    return tf.nn.relu(weights) if rate else weights


@fused
def _multiply(context: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(context, tf.float32) * factor, context.dtype)


@fused
def _context_gradient(
    upstream: tf.Tensor,
    factor: tf.Tensor,
    context: tf.Tensor,
    rate: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of the context before `_multiply`, and `mean`.

    `mean` is the sum over keys of probabilities times their gradients, over the
    softmax denominator.
    """
    products = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
    mean = tf.reduce_sum(products, axis=-1, keepdims=True) * factor
    # Between the two products, so that TensorFlow's graph optimizer does not
    # multiply `factor` by the keep probability first, which rounds otherwise.
    mean = tf.expand_dims(tf.squeeze(mean, -1), -1)
    d_sum = tf.cast(upstream, tf.float32) * factor
    return tf.cast(d_sum, upstream.dtype), mean * keep_prob(rate)


@fused
def _scores_gradient(
    d_kept: tf.Tensor,
    weights: tf.Tensor,
    mean: tf.Tensor,
    rate: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of the scores; the exponentials, 0 where dropped."""
    signed = tf.cast(weights, tf.float32)
    d_scores = signed * (tf.cast(d_kept, tf.float32) - mean)
    if rate:
        d_scores = tf.where(signed < 0, signed * mean, d_scores)
    return tf.cast(d_scores, weights.dtype), _kept(weights, rate)


# --- Rematerialization --------------------------------------------------------


def remat(
    function: Callable[[tf.Tensor], tf.Tensor], *, target: ProgramTarget
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function whose activations are not kept for the backward pass.

    The backward pass computes the function a second time from its argument.
    Other tensors that it reads are constants: they get no gradient. Where XLA
    compiles, a barrier precedes the second computation: some releases detect
    that `tf.recompute_grad` computes the same values twice, and keep the first
    result. libtpu 0.0.51 does, 0.0.42 does not.

    Reference:
        [Chen et al., 2016](https://arxiv.org/abs/1604.06174).
    """
    if not target.is_compiled:
        return tf.recompute_grad(function)

    @tf.custom_gradient
    def computed(x: tf.Tensor) -> Any:
        result = function(x)

        def gradient(
            upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            # Waits for the gradient, so that nothing is computed early.
            again, upstream = _optimization_barrier([x, upstream])
            with tf.GradientTape() as tape:
                tape.watch(again)
                result = function(again)
            d_x, *d_variables = tape.gradient(
                result, [again, *variables], output_gradients=upstream
            )
            return d_x, d_variables

        return result, gradient

    return computed


def _optimization_barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors behind a barrier, which works only where XLA compiles.

    XLA neither moves nor merges operations across the barrier, and computes
    all of the tensors before any result is read.
    """
    # A private module, which programs for other devices do not need.
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_optimization_barrier(list(tensors))
