import math
import re

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.target import ProgramTarget

SEED = tf.constant([3, 4])

# Masks from TensorFlow's generator, and masks that a TPU computes.
on_both = pytest.mark.parametrize(
    "target", [ProgramTarget("CPU"), ProgramTarget("TPU")], ids=["CPU", "TPU"]
)


def attention_masks(rate, target):
    return Dropout(0.15, rate, SEED).attention_masks(0, target)


@on_both
def test_dropout_drops_its_rate_and_keeps_the_expected_value(target):
    """Within 4 deviations; bfloat16 uniforms would drop 13/128."""
    shape, rate = (1001, 10, 100), 0.1
    n = math.prod(shape)
    masks = Dropout(rate, 0.4, SEED).hidden_masks(2, target)
    dropped = masks.apply(tf.ones(shape)).numpy()

    zeros = np.mean(dropped == 0)
    deviation = math.sqrt(rate * (1 - rate) / n)
    assert abs(zeros - rate) < 4 * deviation
    # The rate is a multiple of 2^-16, and the factor is exactly of that rate.
    assert dropped.max() == np.float32(65536 / (65536 - 6554))


@on_both
def test_neighbours_are_dropped_independently(target):
    """A table of 512 by 512 against itself, shifted by four distances."""
    shape = tf.constant([2, 3, 512, 512])
    keep = attention_masks(0.3, target).keep(shape).numpy()
    for by in (1, 2, 64, 256):
        for axis in (2, 3):
            agreement = np.mean(keep == np.roll(keep, by, axis))
            # Of 1.5 million pairs; a deviation is 0.0004.
            assert abs(agreement - 0.58) < 0.0016


@on_both
def test_examples_drop_their_attention_independently(target):
    """At the size of base, where indices of entries differ in upper bits."""
    shape, rate = tf.constant([2, 12, 512, 512]), 6554 / 2**16
    keep = attention_masks(0.1, target).keep(shape).numpy()
    both = np.mean(~keep[0] & ~keep[1])
    deviation = math.sqrt(rate**2 * (1 - rate**2) / keep[0].size)
    assert abs(both - rate**2) < 4 * deviation


@on_both
def test_a_dropout_mask_is_a_function_of_seed_and_site(target):
    """A second draw gives the same mask; other sites are independent."""

    def kept(seed, site):
        dropout = Dropout(0.3, 0.3, tf.constant(seed))
        masks = dropout.hidden_masks(site, target)
        return masks.keep(tf.constant([20_000])).numpy()

    first = kept([3, 4], 0)
    np.testing.assert_array_equal(kept([3, 4], 0), first)
    for other in kept([3, 4], 1), kept([3, 5], 0), kept([4, 4], 0):
        # Independent masks agree with probability .7 * .7 + .3 * .3 = .58.
        assert abs(np.mean(other == first) - 0.58) < 0.015


def test_masks_that_would_repeat_are_refused():
    """A TPU counts the entries of a site in 32 bits."""

    @tf.function(autograph=False)
    def drop(scores):
        return attention_masks(0.1, ProgramTarget("TPU")).apply(scores)

    def trace(rows):
        specification = tf.TensorSpec([rows, 12, 512, 512])
        return drop.get_concrete_function(specification)

    trace(1365)
    with pytest.raises(UserError, match=r"at most 2\^32.*1366.*accumulation"):
        trace(1366)


def test_the_indices_of_all_entries_are_not_a_constant():
    """XLA makes a constant of whatever depends on no argument."""

    @tf.function(jit_compile=True)
    def keep(seed):
        dropout = Dropout(0.1, 0.1, seed)
        masks = dropout.attention_masks(0, ProgramTarget("TPU"))
        return masks.keep(tf.constant([2, 3, 64, 64]))

    program = keep.experimental_get_compiler_ir(SEED)("optimized_hlo")
    constants = re.findall(r"\w+\[([\d,]*)\]\S* constant\(", program)
    assert "" in constants  # factors of the hash function
    sizes = [math.prod(map(int, c.split(",") if c else [])) for c in constants]
    assert max(sizes) <= 64 * 64  # of one table in six
