"""Faster forms of some formulas, each with a gradient written out.

A kernel has the name and the signature of the formula that it replaces, and a
keyword argument `target`, the `ProgramTarget`. It gives the same values and
gradients except for rounding; `tests/modeling/test_kernels.py` compares them.

The loss in `cross_entropy` needs other arguments than the formula, so it is not
in `KERNELS`, and `training/pretraining.py` selects it.
"""

from albert_tf.modeling.kernels.attention import attention
from albert_tf.modeling.kernels.bias import add_bias, bias_gelu
from albert_tf.modeling.kernels.layer_norm import (
    bias_dropout_add_norm,
    layer_norm,
)
from albert_tf.modeling.kernels.remat import remat
from albert_tf.modeling.target import KERNELS

KERNELS |= {
    kernel.__name__: kernel
    for kernel in (
        add_bias,
        attention,
        bias_dropout_add_norm,
        bias_gelu,
        layer_norm,
        remat,
    )
}
