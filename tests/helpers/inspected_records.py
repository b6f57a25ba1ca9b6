"""Records of the demo's text to inspect, and edits that damage them."""

import gzip
import hashlib
import json

import tensorflow as tf

from tests.helpers import small_builds

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"
VOCABULARY, LENGTH = small_builds.VOCABULARY, small_builds.LENGTH
SHARD = "train-00001-of-00003.tfrecord"


def build(output_dir):
    """Records of the first 200 KB of the demo, in train/."""
    text = output_dir.parent / "text.txt"
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        text.write_text(file.read(200_000), encoding="utf-8")
    settings = {"max_predictions_per_seq": 20, "holdout_fraction": 0}
    return small_builds.build(output_dir, text, **settings) / "train"


def read_contents(path):
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def write_contents(path, contents):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in contents:
            writer.write(content)


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
