"""Runs that continue, and copies of their records."""

import json
import shutil

import tensorflow as tf

from albert_tf.input.record_sets import find_training_data
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import CheckpointStore

# The shards of `tiny_records`.
FIRST, SECOND, THIRD = (f"train-{i:05}-of-00003.tfrecord" for i in range(3))


def save_checkpoint(run_dir):
    store = CheckpointStore(str(run_dir), {"kernel": tf.Variable([1.0])})
    store.save(2, {"totals": {}})
    store.wait()


def begin(config):
    """Creates a run of this config with a checkpoint."""
    run_directory.write(config, find_training_data(config))
    save_checkpoint(config.training.output_dir)


def check(config):
    run_directory.check(config, find_training_data(config))


def copy_records(tiny_records, directory, **metadata):
    """A copy of train/, with other values in its metadata."""
    shutil.copytree(tiny_records / "train", directory)
    path = directory / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | metadata))
    return f"{directory}/*.tfrecord"


def copy_without_metadata(tiny_records, directory):
    """Copies records without metadata, as google-research/albert has them."""
    pattern = copy_records(tiny_records, directory)
    (directory / "metadata.json").unlink()
    return pattern
