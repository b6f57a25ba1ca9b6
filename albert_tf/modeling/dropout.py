"""Dropout whose masks are a function of a seed and a site."""

import dataclasses
import math
from typing import NamedTuple

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.modeling.target import ProgramTarget


class Masks(NamedTuple):
    """Dropout masks of one site.

    Attributes:
        rate: Probability of dropping an entry.
        seed: int32, `(2,)`, of this site; None if the rate is 0.
        computed: Whether the random bits are computed from the index of each
            entry; otherwise TensorFlow generates them. The two methods give
            different masks.
    """

    rate: float = 0.0
    seed: tf.Tensor | None = None
    computed: bool = False

    def keep(self, shape: tf.Tensor) -> tf.Tensor:
        """Draws a mask of a shape: bool, true with `keep_prob(rate)`."""
        bits = _computed_bits if self.computed else _generated_bits
        threshold = round(self.rate * 2**16) << 16
        return bits(shape, self.seed) >= tf.constant(threshold, tf.uint32)

    def apply(self, x: tf.Tensor) -> tf.Tensor:
        """Drops entries and scales the others; rate 0 adds no operation.

        Args:
            x: float32, any shape. bfloat16 would round the scale.
        """
        if not self.rate:
            return x
        kept = x / keep_prob(self.rate)
        return tf.where(self.keep(tf.shape(x)), kept, 0.0)


@dataclasses.dataclass(frozen=True)
class Dropout:
    """The dropout masks of one forward pass and its gradient.

    A site is the number of an application of dropout, unique within a forward
    pass. Nothing is stateful: a block that the backward pass computes a second
    time gets the same masks.

    Attributes:
        hidden_rate: Dropout rate of embeddings and sublayer outputs.
        attention_rate: Dropout rate of attention probabilities.
        seed: int32, `(2,)`; differs by step and replica. May be None if both
            rates are 0.
    """

    hidden_rate: float = 0.0
    attention_rate: float = 0.0
    seed: tf.Tensor | None = None

    def hidden_masks(self, site: int, target: ProgramTarget) -> Masks:
        """Masks of embeddings or of the output of a sublayer."""
        return self.masks(self.hidden_rate, site, target)

    def attention_masks(self, site: int, target: ProgramTarget) -> Masks:
        """Masks of attention probabilities."""
        return self.masks(self.attention_rate, site, target)

    def masks(self, rate: float, site: int, target: ProgramTarget) -> Masks:
        """Masks of a site; `target` decides how random bits are made."""
        if not rate:
            return Masks()
        if target.computes_masks:
            return Masks(rate, _site_seed(self.seed, site), computed=True)
        # TensorFlow chooses the algorithm: on TPUs, requesting Philox
        # multiplies the time of a step by eight.
        return Masks(
            rate, tf.random.experimental.stateless_fold_in(self.seed, site)
        )


NO_DROPOUT = Dropout()


def keep_prob(rate: float) -> float:
    """The probability of keeping an entry, quantised to 16 bits."""
    return 1.0 - round(rate * 2**16) / 2**16


def _generated_bits(shape: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
    """uint32 numbers of a shape, whose upper 16 bits are random."""
    # Random bits are expensive. Each number serves one half of the batch with
    # its upper bits and the other half with its lower bits.
    batch, *rest = tf.unstack(shape)
    bits = tf.random.stateless_uniform(
        tf.stack([(batch + 1) // 2, *rest]),
        seed,
        minval=None,
        maxval=None,
        dtype=tf.uint32,
    )
    sixteen = tf.constant(16, tf.uint32)
    both = tf.concat([bits, tf.bitwise.left_shift(bits, sixteen)], axis=0)
    return both[:batch]


def _site_seed(seed: tf.Tensor | None, site: int) -> tf.Tensor:
    """int32, `(2,)`; the seeds of different sites are independent."""
    first, second = tf.unstack(tf.bitcast(seed, tf.uint32))
    key = _hash(first + tf.constant(site * 0x9E3779B9 & 0xFFFFFFFF, tf.uint32))
    other_key = _hash(tf.bitwise.bitwise_xor(key, _hash(second)))
    return tf.bitcast(tf.stack([key, other_key]), tf.int32)


def _computed_bits(shape: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
    """Like `_generated_bits`, by arithmetic on the index of each entry.

    A compiler that merges operations never stores these bits. The index of an
    entry counts from the first half of the seed. It is the sum of a table over
    the leading axes, which includes the seed, and a table over the last two
    axes, which XLA stores as a constant. If the seed were added last, XLA would
    store a constant with an entry for every index.

    The index goes through the hash function lowbias32, without its last step,
    which changes only lower bits. The second half of the seed is added on the
    way. Without the first step, the masks of two examples would agree too often
    or too rarely if they are certain distances apart in the batch.

    Reference:
        [Wellons, 2018](https://nullprogram.com/blog/2018/07/31/), lowbias32.
    """
    static = tf.get_static_value(shape)
    if static is not None and math.prod(map(int, static)) > 2**32:
        raise UserError(
            "dropout must draw at most 2^32 numbers at a time, since they "
            "repeat",
            received=f"the shape {[*map(int, static)]}",
            remedy="Raise --gradient_accumulation_steps.",
        )
    key, other_key = tf.unstack(tf.bitcast(seed, tf.uint32))
    sizes = tf.unstack(shape)
    table = tf.zeros([1] * len(sizes), tf.uint32)
    tables = tf.reshape(key, [1] * len(sizes))
    stride = tf.constant(1, tf.uint32)
    for axis, size in reversed(list(enumerate(sizes))):
        along = [-1 if other == axis else 1 for other in range(len(sizes))]
        steps = tf.cast(tf.reshape(tf.range(size), along), tf.uint32)
        if axis < len(sizes) - 2:
            tables += steps * stride
        else:
            table += steps * stride
        stride *= tf.cast(size, tf.uint32)
    bits = _multiply(_xor_shift(tables + table, 16), 0x7FEB352D) + other_key
    return _multiply(_xor_shift(bits, 15), 0x846CA68B)


def _hash(x: tf.Tensor) -> tf.Tensor:
    """The complete lowbias32, uint32 to uint32."""
    x = _multiply(_xor_shift(x, 16), 0x7FEB352D)
    return _xor_shift(_multiply(_xor_shift(x, 15), 0x846CA68B), 16)


def _xor_shift(x: tf.Tensor, bits: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32))
    return tf.bitwise.bitwise_xor(x, shifted)


def _multiply(x: tf.Tensor, factor: int) -> tf.Tensor:
    return x * tf.constant(factor, tf.uint32)
