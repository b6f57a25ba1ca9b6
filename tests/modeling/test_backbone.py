import dataclasses
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.modeling.backbone import AlbertBackbone
from albert_tf.modeling.dropout import NO_DROPOUT
from albert_tf.modeling.models import AlbertPretrainer
from tests.helpers import tiny_model

CONFIG = tiny_model.CONFIG


def build():
    backbone = AlbertBackbone(CONFIG)
    backbone.build()
    return backbone


def inputs():
    batch = tiny_model.make_batch()
    return [batch[k] for k in ("input_ids", "input_mask", "segment_ids")]


def test_a_backbone_has_the_paths_that_it_has_in_a_pretrainer():
    alone = {v.path: v.shape for v in build().variables}
    pretrainer = AlbertPretrainer(CONFIG)
    pretrainer.build()
    joined = {v.path: v.shape for v in pretrainer.variables}
    heads = {path for path in joined if path not in alone}
    assert alone.items() <= joined.items()
    assert {path.split("/")[1] for path in heads} == {"masked_lm", "sentence"}


def test_initial_weights_are_drawn_in_an_order_that_does_not_change():
    """By hand: the seeds of all variables, in the order of earlier releases."""
    keras.utils.set_random_seed(7)
    pretrainer = AlbertPretrainer(CONFIG)
    pretrainer.build()
    found = {v.path: v.numpy() for v in pretrainer.variables}

    keras.utils.set_random_seed(7)
    block = "albert/encoder/group_0_inner_group_0"
    for path in (
        "albert/encoder/embedding_hidden_mapping_in/kernel",
        f"{block}_attention/query/kernel",
        f"{block}_attention/key/kernel",
        f"{block}_attention/value/kernel",
        f"{block}_attention/output/kernel",
        f"{block}_ffn/intermediate/kernel",
        f"{block}_ffn/output/kernel",
        "albert/masked_lm/transform/kernel",
        "albert/pooler/kernel",
        "albert/embeddings/word_embeddings",
        "albert/embeddings/token_type_embeddings",
        "albert/embeddings/position_embeddings",
        "albert/sentence/output_weights",
    ):
        draw = keras.initializers.TruncatedNormal(stddev=0.02)
        value = found.pop(path)
        np.testing.assert_array_equal(value, draw(value.shape), err_msg=path)
    # All others are constants: biases, and the scales of LayerNorm.
    assert {x for value in found.values() for x in value.flat} == {0.0, 1.0}


def test_a_backbone_is_made_again_from_its_config():
    backbone = AlbertBackbone(
        CONFIG, "mixed_bfloat16", remat=True, has_pooler=False, name="other"
    )
    settings = json.loads(json.dumps(backbone.get_config()))
    copy = AlbertBackbone.from_config(settings)
    assert copy.get_config() == backbone.get_config()
    copy.build()
    assert {v.path.split("/")[0] for v in copy.variables} == {"other"}
    assert copy(*inputs()).pooled_output is None
    assert copy(*inputs()).sequence_output.dtype == tf.bfloat16


@pytest.mark.parametrize("model", [AlbertBackbone, AlbertPretrainer])
def test_other_precisions_are_refused(model):
    with pytest.raises(UserError, match="float32 or mixed_bfloat16"):
        model(CONFIG, dtype="bfloat16")


def keras_model(backbone):
    columns = [keras.Input((None,), dtype="int32") for _ in range(3)]
    pooled = backbone(*columns).pooled_output
    return keras.Model(columns, keras.layers.Dense(1)(pooled))


def test_keras_trains_with_dropout_and_predicts_without():
    """By its argument `training`; no dropout where the trainer says so."""
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.5)
    backbone = AlbertBackbone(config)
    backbone.build()
    model = keras_model(backbone)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    targets = np.ones((len(inputs()[0]), 1))
    losses = {float(model.train_on_batch(inputs(), targets)) for _ in range(3)}
    assert len(losses) == 3
    tested = {float(model.test_on_batch(inputs(), targets)) for _ in range(3)}
    assert len(tested) == 1

    pretrainer = AlbertPretrainer(config)
    pretrainer.build()
    batch = tiny_model.make_batch()
    plain, again, explicit, dropped = (
        pretrainer(batch, **more)["mlm_logits"].numpy()
        for more in (
            {},
            {"training": False},
            {"training": True, "dropout": NO_DROPOUT},
            {"training": True},
        )
    )
    np.testing.assert_array_equal(plain, again)
    np.testing.assert_array_equal(plain, explicit)
    assert (plain != dropped).any()


def test_keras_saves_and_loads_a_model_on_the_backbone(tmp_path):
    model = keras_model(build())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict_on_batch(inputs()), model.predict_on_batch(inputs())
    )


def test_other_backends_of_keras_are_refused_at_import():
    done = subprocess.run(
        [sys.executable, "-c", "import albert_tf"],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "KERAS_BACKEND=jax. Unset it." in done.stderr
