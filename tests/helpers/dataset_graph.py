"""The operations that a `tf.data` pipeline runs."""

import tensorflow as tf


def operations_of(dataset):
    """Names of the operations in the functions of a dataset; a set."""
    graph = tf.compat.v1.GraphDef.FromString(
        dataset._as_serialized_graph().numpy()
    )
    return {node.op for f in graph.library.function for node in f.node_def}
