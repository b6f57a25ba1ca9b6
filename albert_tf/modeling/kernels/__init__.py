"""Faster forms of some formulas, each with a gradient written out.

A kernel has the signature of the formula that it replaces, and a keyword
argument `target`, the `ProgramTarget`; `target.has_kernel` joins the two. It
gives the same values and gradients except for rounding;
`tests/modeling/test_kernels.py` compares them.

The loss in `cross_entropy` needs other arguments than the formula, so
`training/pretraining.py` selects it.
"""
