import re

from albert_tf.input.record_format import serialize
from albert_tf.records.features import Feature


def test_records_of_equal_values_have_equal_bytes_in_all_processes():
    """The features are in the order of their names. Without it, each process
    has an order of its own."""
    names = ["b", "h", "a", "g", "c", "f", "d", "e"]
    features = [Feature(f"name_{name}", "int64") for name in names]

    serialized = serialize(features, {f.name: [1] for f in features})

    found = re.findall(rb"name_(.)", serialized)
    assert found == [name.encode() for name in sorted(names)]
