"""Records of the demo's text to inspect, and edits that damage them."""

import gzip
import hashlib
import json
import re

import tensorflow as tf

from tests.helpers import small_builds

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"
VOCABULARY, LENGTH = small_builds.VOCABULARY, small_builds.LENGTH
PREDICTIONS = 20
SHARD = "train-00001-of-00003.tfrecord"


def build(output_dir):
    """Records of the first 200 KB of the demo, in train/."""
    text = output_dir.parent / "text.txt"
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        text.write_text(file.read(200_000), encoding="utf-8")
    settings = {"max_predictions_per_seq": PREDICTIONS, "holdout_fraction": 0}
    return small_builds.build(output_dir, text, **settings) / "train"


def read_contents(path):
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def write_contents(path, contents):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in contents:
            writer.write(content)


def offset_of(contents, number):
    """Where a record begins; each record before it has 16 bytes of framing."""
    return sum(len(content) + 16 for content in contents[:number])


def read_features(content):
    example = tf.train.Example.FromString(content)
    return {
        name: list(feature.float_list.value or feature.int64_list.value)
        for name, feature in example.features.feature.items()
    }


def make_example(features):
    example = tf.train.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return example.SerializeToString()


def edit_all(directory, edit):
    """Applies `edit(features)` to all records, and updates the checksums."""
    for path in sorted(directory.glob("*.tfrecord")):
        contents = []
        for content in read_contents(path):
            features = read_features(content)
            edit(features)
            contents.append(make_example(features))
        write_contents(path, contents)
    edit_metadata(directory, checksums=digest_shards(directory))


def digest_shards(directory):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.glob("*.tfrecord"))
    }


def edit_metadata(directory, **changes):
    path = directory / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata.update(changes)
    path.write_text(json.dumps(metadata))


def line_of(name, output):
    """The verdict of a check, and its line of the table."""
    (line,) = re.findall(rf"^(?:pass|FAIL|note|WARN)  {name}.*$", output, re.M)
    return line[:4], line


def set_value(name, position, value):
    """An edit that sets a value, or a slice, of a feature; None removes it.

    Position and value may be functions.
    """

    def edit(features):
        i = position(features) if callable(position) else position
        v = value(features, i) if callable(value) else value
        if v is None:
            del features[name]
        else:
            features.setdefault(name, [])[i] = v

    return edit
