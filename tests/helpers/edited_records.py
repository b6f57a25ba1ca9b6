"""Shards with a record whose values a test has changed."""

import tensorflow as tf

from albert_tf.io.tfrecord import read_records


def change(shard, number, feature, edit):
    """Edits the values of a feature of a record."""
    with shard.open("rb") as file:
        records = [record.content for record in read_records(file)]
    example = tf.train.Example.FromString(records[number])
    stored_values = example.features.feature[feature]
    values = (
        stored_values.float_list.value
        if feature.endswith("weights")
        else stored_values.int64_list.value
    )
    changed = edit(list(values))
    assert changed != list(values)
    del values[:]
    values.extend(changed)
    records[number] = example.SerializeToString()
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for record in records:
            writer.write(record)
