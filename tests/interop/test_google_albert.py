"""Checkpoints of TensorFlow 1 are read."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError
from albert_tf.interop import google_albert
from albert_tf.interop.weight_names import list_weights
from tests.helpers import google_albert_graph
from tests.helpers.conversion import write_published
from tests.helpers.google_albert_graph import CONFIG, GROUPS
from tests.helpers.tiny_albert import VOCABULARY, outputs_of, random_weights

ARCHITECTURES = {
    "shared": CONFIG,
    "groups": GROUPS,
    "unfactorized": {**CONFIG, "embedding_size": 6},
}


def all_outputs(weights, config):
    """The model's outputs for the graph's batch, at all positions."""
    return outputs_of(weights, google_albert_graph.random_batch(config))


def assert_close(outputs, expected):
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_computes_what_its_graph_computes(tmp_path, name):
    config = ARCHITECTURES[name]
    prefix = tmp_path / "model.ckpt-best"
    written = google_albert_graph.write(prefix, config)

    weights = google_albert.read(str(prefix))

    assert weights.config == ModelConfig.from_dict(config)
    assert weights.num_parameters == sum(
        v.size for v in written.values.values()
    )
    assert not weights.slots
    assert weights.step == 0
    assert_close(all_outputs(weights, config), written.outputs)


def test_each_weight_has_its_own_moments(tmp_path):
    written = google_albert_graph.write(
        tmp_path / "model.ckpt-7000", CONFIG, step=7000, slots=True
    )
    slots = google_albert.read(str(tmp_path)).slots
    name = "bert/encoder/transformer/group_0/inner_group_0/ffn_1/intermediate"
    path = "albert/encoder/group_0_inner_group_0_ffn/intermediate/kernel"
    for slot in "mv":
        np.testing.assert_array_equal(
            slots[f"{path}/{slot}"],
            written.values[f"{name}/dense/kernel/adam_{slot}"],
        )
    assert len(slots) * 3 == 2 * len(written.values)
    assert google_albert.read(str(tmp_path)).step == 7000


def test_a_tf_hub_module_is_read(tmp_path):
    """Its files are in two directories, and it has no sentence head."""
    written = google_albert_graph.write(
        tmp_path / "variables" / "variables",
        CONFIG,
        slots=True,
        scope="module",
        sentence_head=False,
        config_file=tmp_path / "assets" / "albert_config.json",
    )
    shutil.copy(VOCABULARY, tmp_path / "assets")

    weights = google_albert.read(str(tmp_path))

    assert weights.vocabulary == str(tmp_path / "assets" / "30k-clean.model")
    outputs = all_outputs(weights, CONFIG)
    assert not outputs.pop("sentence_logits").any()
    assert len(weights.slots) == 2 * len(weights.values)
    assert_close(outputs, written.outputs)


def test_a_model_without_sentence_objective_is_read(tmp_path):
    weights = random_weights(ModelConfig.from_dict(CONFIG), "none")
    write_published(weights, tmp_path / "out")
    back = google_albert.read(str(tmp_path / "out"))
    assert back.sentence_objective == "none"
    for path, value in weights.values.items():
        np.testing.assert_array_equal(back.values[path], value)


@pytest.fixture
def three_checkpoints(tmp_path):
    for step in (8, 9, 10):
        google_albert_graph.write(
            tmp_path / f"model.ckpt-{step}", CONFIG, step=step
        )
    return tmp_path


def test_the_state_file_names_the_newest_checkpoint(three_checkpoints):
    """Even if the directory was moved since."""
    state = three_checkpoints / "checkpoint"
    state.write_text('model_checkpoint_path: "/elsewhere/model.ckpt-9"\n')
    assert google_albert.read(str(three_checkpoints)).step == 9
    for asked in (8, 10):
        found = google_albert.read(str(three_checkpoints), asked)
        assert found.step == asked
    index = three_checkpoints / "model.ckpt-8.index"
    assert google_albert.read(str(index)).step == 8

    with pytest.raises(
        UserError, match=r"Received: model\.ckpt-10, .*without 'model.ckpt-7'"
    ):
        google_albert.read(str(three_checkpoints), 7)
    state.unlink()
    with pytest.raises(UserError, match=r"names the newest.*ckpt-10, .*ckpt-8"):
        google_albert.read(str(three_checkpoints))


def test_variables_that_do_not_match_the_architecture_are_named(tmp_path):
    """The error has the shapes in the checkpoint and in the config."""
    prefix = tmp_path / "model.ckpt-best"
    google_albert_graph.write(prefix, CONFIG)
    file = tmp_path / "albert_config.json"
    inner = "group_0_inner_group_1_attention/query/kernel is missing"
    for change, message in (
        (
            {"vocab_size": 12},
            r"word_embeddings has shape \[11, 4\], not \[12, 4\]; "
            r"albert/masked_lm/output_bias",
        ),
        ({"inner_group_num": 2}, f"{inner}; .*and 11 more"),
        ({"embedding_size": 6}, "hidden_mapping_in/bias is unknown"),
        # 15 / 22 * 22 is below 15 in floating point.
        (
            {"num_hidden_layers": 22, "num_hidden_groups": 22},
            "layer 15 of 22.*group 14 in google.*group 15 in a",
        ),
    ):
        file.write_text(json.dumps({**CONFIG, **change}))
        with pytest.raises(UserError, match=message):
            google_albert.read(str(prefix))
    file.write_text(json.dumps({**CONFIG, "width": 3}))
    with pytest.raises(UserError, match="unknown key width"):
        google_albert.read(str(prefix))
    file.unlink()
    with pytest.raises(UserError, match=r"albert_config\.json must be in the"):
        google_albert.read(str(prefix))


BIAS = "cls/predictions/output_bias"
NO_STEP = "global_step in .* non-negative integer"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {f"{BIAS}/adam_m": np.zeros(11, "f4")},
            "word_embeddings/m is missing",
        ),
        ({BIAS: np.zeros(11, np.float16)}, "output_bias is float16, not"),
        ({f"module/{BIAS}": np.zeros(11, "f4")}, f"once.*{BIAS} and module/"),
        ({"global_step": np.array([5, 6])}, NO_STEP),
        ({"global_step": np.array(-3)}, NO_STEP),
        ({"global_step": np.array(5.7)}, NO_STEP),
        ({"global_step": np.array("five")}, NO_STEP),
    ],
)
def test_variables_of_no_model_are_refused(tmp_path, changes, message):
    config = ModelConfig.from_dict(CONFIG)
    weights = {
        w.google_albert: np.zeros(w.shape, "f4") for w in list_weights(config)
    }
    tensors = weights | changes
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt-1"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    (tmp_path / "albert_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(UserError, match=message):
        google_albert.read(str(tmp_path))


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_damaged_files_are_refused(tmp_path, suffix):
    """Truncated at several places, and with a flipped bit."""
    prefix = tmp_path / "model.ckpt-best"
    google_albert_graph.write(prefix, CONFIG)
    file = tmp_path / f"model.ckpt-best.{suffix}"
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = bytearray(content)
    flipped[middle] ^= 8
    for damaged in (b"", content[:middle], content[:-1], bytes(flipped)):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="must be an intact checkpoint"):
            google_albert.read(str(prefix))
    file.write_bytes(content)
    google_albert.read(str(prefix))
    file.unlink()
    with pytest.raises(UserError, match=r"must (exist|be an intact)"):
        google_albert.read(str(prefix))


def test_a_path_that_is_a_pattern_is_refused(tmp_path):
    """TensorFlow would not find the files, or would find others."""
    google_albert_graph.write(tmp_path / "a[1]" / "model.ckpt-best", CONFIG)
    with pytest.raises(UserError, match=r"none of \* .*Received: .*a\[1\]"):
        google_albert.read(str(tmp_path / "a[1]"))


def test_the_published_name_selects_one_of_several_vocabularies(tmp_path):
    prefix = tmp_path / "model.ckpt-best"
    google_albert_graph.write(prefix, CONFIG)
    assert google_albert.read(str(prefix)).vocabulary == ""
    (tmp_path / "b.model").write_bytes(b"b")
    found = google_albert.read(str(prefix)).vocabulary
    assert found == str(tmp_path / "b.model")
    (tmp_path / "a.model").write_bytes(b"a")
    with pytest.raises(UserError, match=r"Received: a\.model, b\.model"):
        google_albert.read(str(prefix))
    (tmp_path / "30k-clean.model").write_bytes(b"c")
    found = google_albert.read(str(prefix)).vocabulary
    assert found == str(tmp_path / "30k-clean.model")
