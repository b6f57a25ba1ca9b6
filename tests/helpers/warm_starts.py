"""Runs that start from another model, and their values."""

import dataclasses
import json

import numpy as np
import sentencepiece
import tensorflow as tf

from albert_tf.input.record_sets import find_records
from albert_tf.interop.weight_names import MOMENTS, ModelWeights, list_weights
from albert_tf.runs.checkpoint_files import list_checkpoints
from tests.helpers import tiny_run

PIECES = "albert/embeddings/word_embeddings"
PIECE_BIAS = "albert/masked_lm/output_bias"
POSITIONS = "albert/embeddings/position_embeddings"

# A run with these learns nothing: its evaluation is of the initial weights.
WITHOUT_EFFECT = {
    "num_train_steps": 1,
    "num_warmup_steps": 0,
    "learning_rate": 0.0,
    "dropout_schedule": "0:0.0",
}


def values_of(run_dir, step):
    """All values of a checkpoint, by path."""
    (checkpoint,) = (
        c for c in list_checkpoints(f"{run_dir}/checkpoints") if c.step == step
    )
    reader = tf.train.load_checkpoint(f"{checkpoint.path}/variables")
    names = reader.get_variable_to_shape_map()
    return {n: reader.get_tensor(n) for n in names if not n.startswith("_")}


def is_moment(path):
    return path.endswith(("/m", "/v"))


def assert_same_values(some, others, paths):
    assert paths
    for path in paths:
        np.testing.assert_array_equal(some[path], others[path], path)


def weights_in(values):
    return {path for path in values if not is_moment(path)} - {"step"}


def report_of(run_dir):
    return json.loads((run_dir / "warm_start.json").read_text())


def pieces_of(directory):
    model = sentencepiece.SentencePieceProcessor(
        model_file=str(directory / "spiece.model")
    )
    return [model.id_to_piece(i) for i in range(model.vocab_size())]


def other_config(other_records, run_dir, **changes):
    """Settings of a run on `other_records`."""
    settings = {"vocab_size": 300, "eval_input_file": (), **WITHOUT_EFFECT}
    return tiny_run.make_config(
        other_records, run_dir, **{**settings, **changes}
    )


def moments_and(path):
    return [path, *(f"{path}/{moment}" for moment in MOMENTS)]


def find_train_records(records, config):
    return find_records({"input_file": [f"{records}/train/*.tfrecord"]}, config)


def weights_of(config, vocabulary="", objective="sop", slots=False):
    """A model whose values are all different."""
    generator = np.random.default_rng(7)

    def draw(shape):
        return generator.normal(size=shape).astype(np.float32)

    listed = list_weights(config, objective)
    return ModelWeights(
        config,
        objective,
        {w.path: draw(w.shape) for w in listed},
        slots={
            f"{w.path}/{moment}": draw(w.shape)
            for w in listed
            for moment in MOMENTS
            if slots
        },
        vocabulary=str(vocabulary),
        source="elsewhere",
    )


def model_of(layers, groups=1, sharing="all", **changes):
    return dataclasses.replace(
        tiny_run.MODEL,
        num_hidden_layers=layers,
        num_hidden_groups=groups,
        parameter_sharing=sharing,
        **changes,
    )
