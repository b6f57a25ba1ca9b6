"""ALBERT as Keras 3 layers.

The modules state the model by plain formulas. `kernels` holds faster forms of
some of them, which `ProgramTarget` selects.
"""
