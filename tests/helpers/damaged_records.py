"""Damages the records of a shard on purpose."""

import tensorflow as tf

from albert_tf.io.tfrecord import read_records


def offsets_of(path):
    """The offset of each record."""
    with open(path, "rb") as file:
        return [record.offset for record in read_records(file)]


def change(path, at, mask=0x01):
    """Changes the byte at an offset."""
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(content)


def damage_content(path, number):
    """Its checksum becomes wrong."""
    change(path, offsets_of(path)[number] + 12 + 40)


def rewrite(path, change_records):
    """Replaces all records; `change_records` returns the new ones."""
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in change_records(records):
            writer.write(record)


def set_token(path, number):
    """A token id outside of any vocabulary."""
    set_value(path, number, "input_ids", 3, 10**6)


def set_value(path, number, feature, index, value):
    """Changes a value of an intact record."""

    def change_one(records):
        example = tf.train.Example.FromString(records[number])
        example.features.feature[feature].int64_list.value[index] = value
        records[number] = example.SerializeToString()
        return records

    rewrite(path, change_one)
