import tensorflow as tf

from tests.helpers import tiny_model


def compiled_functions(target, **settings):
    """The functions that XLA compiles within a program."""
    program = tiny_model.gradients_program(target, **settings)
    graph = program.get_concrete_function(tf.constant([1, 2])).graph
    library = graph.as_graph_def().library.function
    return [f for f in library if f.attr["_XlaMustCompile"].b]


def test_products_are_left_to_tensorflow():
    """XLA compiles elementwise operations, and sums over a row."""
    compiled = compiled_functions(tiny_model.FUSED)
    operations = {node.op for f in compiled for node in f.node_def}
    assert {"Exp", "Sigmoid", "Rsqrt"} <= operations
    assert not {op for op in operations if "MatMul" in op or "Einsum" in op}


def test_layers_of_the_same_shape_are_compiled_once():
    """Seeds of dropout sites differ between layers, and are arguments."""
    two, three = (
        compiled_functions(tiny_model.FUSED, num_hidden_layers=layers)
        for layers in (2, 3)
    )
    assert len(three) == len(two) > 0


def test_without_fusing_xla_compiles_no_function():
    assert not compiled_functions(tiny_model.CPU)
