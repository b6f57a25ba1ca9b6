"""Dropout whose masks are a function of a seed and a place."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from albert_tf.modeling.fusion import is_fusing


class Masks(NamedTuple):
    """Masks of one place.

    Attributes:
        rate: Share dropped.
        seed: int32, `(2,)`, of this place; None where the rate is 0.
        computed: Whether masks are computed from the entries' numbers; else
            the bits are TensorFlow's. Other masks of the same kind.
    """

    rate: float = 0.0
    seed: tf.Tensor | None = None
    computed: bool = False

    def keep(self, shape: tf.Tensor) -> tf.Tensor:
        """Which entries are kept.

        Args:
            shape: int32, theirs.

        Returns:
            bool, of that shape; `kept_share(rate)` of it is true.
        """
        bits = _computed_bits if self.computed else _generated_bits
        least = round(self.rate * 2**16) << 16
        return bits(shape, self.seed) >= tf.constant(least, tf.uint32)

    def applied(self, x: tf.Tensor) -> tf.Tensor:
        """Drops entries; a rate of 0 puts no operation into the program.

        Args:
            x: float32, any shape. In bfloat16 the factor would be rounded.

        Returns:
            float32, of its shape, its expected value the same.
        """
        if not self.rate:
            return x
        kept = x / kept_share(self.rate)
        return tf.where(self.keep(tf.shape(x)), kept, 0.0)


@dataclasses.dataclass(frozen=True)
class Dropout:
    """The masks of one forward pass, and of its gradient.

    Nothing is stateful, so that a block that is computed a second time in
    the backward pass sees the same masks, and each replica can be given
    its own.

    Attributes:
        hidden_rate: Share of embeddings and of sublayer outputs dropped.
        attention_rate: Share of attention probabilities dropped.
        seed: int32, `(2,)`; differs by step and replica. Unused, and may be
            None, where both rates are 0.
        on_tpu: Whether the program is one for a TPU, whose compiler computes
            masks as it goes along, wants tables laid out otherwise, and must
            be told what to keep: see `mix_positions`.
    """

    hidden_rate: float = 0.0
    attention_rate: float = 0.0
    seed: tf.Tensor | None = None
    on_tpu: bool = False

    def of_hidden(self, place: int) -> Masks:
        """Masks of an embedding or of a sublayer's output.

        Args:
            place: Differs between all places of one forward pass.
        """
        return self._masks(self.hidden_rate, place)

    def of_attention(self, place: int) -> Masks:
        """Masks of attention probabilities; `place` as for `of_hidden`."""
        return self._masks(self.attention_rate, place)

    def _masks(self, rate: float, place: int) -> Masks:
        if not rate:
            return Masks()
        if self.on_tpu or is_fusing():
            return Masks(rate, _keys(self.seed, place), computed=True)
        # The generator is left to TensorFlow: on TPUs, Philox by name takes
        # eight times the step's time.
        return Masks(
            rate, tf.random.experimental.stateless_fold_in(self.seed, place)
        )


NO_DROPOUT = Dropout()


def kept_share(rate: float) -> float:
    """What is left at a rate of dropout: 16 bits an entry decide."""
    return 1.0 - round(rate * 2**16) / 2**16


def _generated_bits(shape: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
    """uint32 of a shape, of which the upper 16 bits are random."""
    # Random numbers are dear. Each serves one half of the batch with its
    # upper bits, the other with its lower ones.
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


def _keys(seed: tf.Tensor | None, place: int) -> tf.Tensor:
    """int32, `(2,)`: of different places, they have nothing in common."""
    first, second = tf.unstack(tf.bitcast(seed, tf.uint32))
    key = _hashed(
        first + tf.constant(place * 0x9E3779B9 & 0xFFFFFFFF, tf.uint32)
    )
    other_key = _hashed(tf.bitwise.bitwise_xor(key, _hashed(second)))
    return tf.bitcast(tf.stack([key, other_key]), tf.int32)


def _computed_bits(shape: tf.Tensor, keys: tf.Tensor | None) -> tf.Tensor:
    """As `_generated_bits`, by arithmetic on the number of each entry.

    For a compiler that joins operations: no bits are ever in memory. Entries
    are numbered from a key on. XLA makes a constant of what depends on no key,
    which is well for a table, the last two axes, but not for all of them. The
    number, with another key, goes through a hash function that changes half
    of the bits for each that differs; its last step, which changes lower bits
    alone, is left out. (Without its first, masks of examples that are some
    apart agree too often, or too seldom.) Numbers begin anew after 2^32
    entries.

    Reference:
        [Wellons, 2018](https://nullprogram.com/blog/2018/07/31/), lowbias32.
    """
    key, other_key = tf.unstack(tf.bitcast(keys, tf.uint32))
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
    bits = _times(_folded(tables + table, 16), 0x7FEB352D) + other_key
    return _times(_folded(bits, 15), 0x846CA68B)


def _hashed(x: tf.Tensor) -> tf.Tensor:
    """uint32 of uint32: lowbias32 in full."""
    x = _times(_folded(x, 16), 0x7FEB352D)
    return _folded(_times(_folded(x, 15), 0x846CA68B), 16)


def _folded(x: tf.Tensor, bits: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32))
    return tf.bitwise.bitwise_xor(x, shifted)


def _times(x: tf.Tensor, factor: int) -> tf.Tensor:
    return x * tf.constant(factor, tf.uint32)
