"""Checkpoints of TensorFlow 1 are read."""

import json
import pathlib

import numpy as np
import pytest

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError
from albert_tf.interop import google_albert
from albert_tf.interop.weight_names import list_weights
from tests.helpers import google_albert_graph
from tests.helpers.conversion import (
    assert_same,
    save_tensors,
    write_published,
)
from tests.helpers.google_albert_graph import CONFIG, GROUPS
from tests.helpers.tiny_albert import outputs_of, random_weights


@pytest.mark.parametrize(
    "config",
    [CONFIG, GROUPS, {**CONFIG, "embedding_size": 6}],
    ids=["shared", "groups", "unfactorized"],
)
def test_a_model_computes_what_its_graph_computes(tmp_path, config):
    prefix = tmp_path / "model.ckpt-best"
    written = google_albert_graph.write(prefix, config)

    weights = google_albert.read(str(prefix))

    assert weights.config == ModelConfig.from_dict(config)
    assert weights.num_parameters == sum(
        v.size for v in written.values.values()
    )
    assert not weights.slots
    assert weights.step == 0
    batch = google_albert_graph.random_batch(config)
    outputs = outputs_of(weights, batch)
    assert outputs.keys() == written.outputs.keys()
    for name, value in written.outputs.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5, rtol=1e-5)


def test_each_weight_has_its_own_moments(tmp_path):
    written = google_albert_graph.write(
        tmp_path / "model.ckpt-7000", CONFIG, step=7000, slots=True
    )
    read = google_albert.read(str(tmp_path))
    name = "bert/encoder/transformer/group_0/inner_group_0/ffn_1/intermediate"
    path = "albert/encoder/group_0_inner_group_0_ffn/intermediate/kernel"
    for slot in "mv":
        np.testing.assert_array_equal(
            read.slots[f"{path}/{slot}"],
            written.values[f"{name}/dense/kernel/adam_{slot}"],
        )
    assert len(read.slots) * 3 == 2 * len(written.values)
    assert read.step == 7000


def test_a_model_without_sentence_objective_is_read(tmp_path):
    weights = random_weights(ModelConfig.from_dict(CONFIG), "none")
    write_published(weights, tmp_path / "out")
    assert_same(google_albert.read(str(tmp_path / "out")), weights)


def test_the_state_file_names_the_newest_checkpoint(tmp_path):
    """Even if the directory was moved since."""
    for step in (8, 9, 10):
        google_albert_graph.write(
            tmp_path / f"model.ckpt-{step}", CONFIG, step=step
        )
    state = tmp_path / "checkpoint"
    state.write_text('model_checkpoint_path: "/elsewhere/model.ckpt-9"\n')
    assert google_albert.read(str(tmp_path)).step == 9
    index = tmp_path / "model.ckpt-8.index"
    assert google_albert.read(str(index)).step == 8

    state.unlink()
    with pytest.raises(UserError, match=r"names the newest.*ckpt-10, .*ckpt-8"):
        google_albert.read(str(tmp_path))


BIAS = "cls/predictions/output_bias"
GROUP = "bert/encoder/transformer/group_1/inner_group_0/LayerNorm/gamma"
NO_STEP = "global_step in .* non-negative integer"


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        (
            {"vocab_size": 12},
            {},
            r"word_embeddings has shape \[11, 4\], not \[12, 4\]; "
            r"albert/masked_lm/output_bias",
        ),
        (
            {"inner_group_num": 2},
            {},
            "inner_group_1_attention/query/kernel is missing; .*and 11 more",
        ),
        ({"embedding_size": 6}, {}, "hidden_mapping_in/.* is unknown"),
        ({"num_hidden_groups": 1}, {GROUP: np.zeros(6, "f4")}, f"{GROUP} is u"),
        ({"width": 3}, {}, "unknown key width"),
        (None, {}, r"albert_config\.json must be in the"),
        ({}, {BIAS: np.zeros(11, np.int32)}, "output_bias is int32, not"),
        ({}, {BIAS: np.full(11, np.nan, "f4")}, "finite .*NaN.*output_bias"),
        ({}, {BIAS: np.full(11, -np.inf, "f4")}, "infinity in .*output_bias"),
        ({}, {"global_step": np.array([5, 6])}, NO_STEP),
        ({}, {"global_step": np.array(-3)}, NO_STEP),
        ({}, {"global_step": np.array("five")}, NO_STEP),
    ],
)
def test_a_checkpoint_of_no_model_is_refused(
    tmp_path, config, tensors, message
):
    weights = {
        w.google_albert: np.zeros(w.shape, "f4")
        for w in list_weights(ModelConfig.from_dict(CONFIG))
    }
    save_tensors(tmp_path / "model.ckpt-1", weights | tensors)
    if config is not None:
        file = tmp_path / "albert_config.json"
        file.write_text(json.dumps({**CONFIG, **config}))
    with pytest.raises(UserError, match=message):
        google_albert.read(str(tmp_path))


def as_fine_tuned(values):
    body = {n: v for n, v in values.items() if not n.startswith("cls/")}
    moments = {f"{name}/adam_m": value for name, value in body.items()}
    head = {"output_weights": np.zeros((3, 6), "f4"), "output_bias/adam_v": 0.0}
    return body | moments | head


@pytest.mark.parametrize(
    ("change", "left_out", "missing"),
    [
        (as_fine_tuned, 27, ["masked-LM", "sentence"]),
        (
            lambda values: (
                {
                    name: value
                    for name, value in as_fine_tuned(values).items()
                    if "pooler" not in name and "adam" not in name
                }
                | {"cls/squad/output_bias": np.zeros(2, "f4")}
            ),
            2,
            ["masked-LM"],
        ),
        (
            lambda values: (
                values
                | {"beta1_power": 0.9, "loss_scale/current_loss_scale": 1.0}
                | {f"{BIAS}/Adam_1": np.zeros(11, "f4")}
            ),
            3,
            [],
        ),
        (lambda values: {n: v.astype("f2") for n, v in values.items()}, 0, []),
    ],
    ids=["classifier", "squad", "mixed precision", "float16"],
)
def test_a_sound_checkpoint_with_other_variables_is_read(
    tmp_path, caplog, change, left_out, missing
):
    """Missing heads are filled, as for any model."""
    caplog.set_level("INFO")
    written = google_albert_graph.write(tmp_path / "model.ckpt-best", CONFIG)
    values = change(written.values)
    save_tensors(tmp_path / "model.ckpt-best", values)
    read = google_albert.read(str(tmp_path))
    for weight in read.list_weights():
        if weight.google_albert in values:
            np.testing.assert_array_equal(
                read.values[weight.path],
                np.float32(values[weight.google_albert]),
            )
    has_pooler = any("pooler" in name for name in values)
    assert read.sentence_objective == ("sop" if has_pooler else "none")
    assert not read.slots
    assert (f"left out {left_out} variables" in caplog.text) == (left_out > 0)
    for head in "masked-LM", "sentence":
        assert (f"has no {head} head" in caplog.text) == (head in missing)


def test_the_published_name_selects_one_of_several_vocabularies(tmp_path):
    prefix = tmp_path / "model.ckpt-best"
    google_albert_graph.write(prefix, CONFIG)

    def vocabulary():
        return pathlib.Path(google_albert.read(str(prefix)).vocabulary).name

    assert vocabulary() == ""
    (tmp_path / "b.model").write_bytes(b"b")
    assert vocabulary() == "b.model"
    (tmp_path / "a.model").write_bytes(b"a")
    with pytest.raises(UserError, match=r"Received: a\.model, b\.model"):
        vocabulary()
    (tmp_path / "30k-clean.model").write_bytes(b"c")
    assert vocabulary() == "30k-clean.model"
