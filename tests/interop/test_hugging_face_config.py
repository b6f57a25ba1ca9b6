"""The architecture in config.json is read, or refused."""

import pytest

from albert_tf.errors import UserError
from albert_tf.interop import hugging_face
from albert_tf.interop.hugging_face import CONFIG_FILE
from albert_tf.interop.hugging_face_config import SHARED_SETTINGS
from tests.helpers.hugging_face_folder import (
    change_config,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "gelu_new, the tanh app.*v1 models say gelu"),
        ({"hidden_act": "swish"}, 'hidden_act .* one of .*Received: "swish"'),
        ({"hidden_act": ["tanh"]}, r'one of .*Received: \["tanh"\]'),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps .* 1e-12.*Received: 1e-05"),
        ({"model_type": "bert"}, 'model_type .* "albert".*Received: "bert"'),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"sentence_objective": "mlm"}, 'sop, nsp, none. Received: "mlm"'),
        ({"hidden_size": 7}, "divisible by num_attention_heads"),
        ({"hidden_size": 8}, r"shape \[6\], not \[8\] as in config.json"),
        ({"vocab_size": 12}, r"shape \[11, 4\], not \[12, 4\]"),
        ({"hidden_size": "6"}, "hidden_size"),
        ({"num_hidden_layers": 44, "num_hidden_groups": 20}, "layer 33 of 44"),
    ],
)
def test_an_unsupported_architecture_is_refused(folder, changes, message):
    directory, _ = folder
    change_config(directory, **changes)
    with pytest.raises(UserError, match=message):
        hugging_face.read(str(directory))


@pytest.mark.parametrize("theirs", ["gelu_pytorch_tanh", "gelu_fast"])
def test_other_names_of_gelu_by_tanh_are_read(folder, theirs):
    directory, weights = folder
    change_config(directory, hidden_act=theirs)
    assert hugging_face.read(str(directory)).config == weights.config


@pytest.mark.interop
def test_missing_settings_have_the_defaults_of_transformers():
    """Those of `AlbertConfig`, which are of an xxlarge model."""
    import transformers

    theirs = transformers.AlbertConfig().to_dict()
    assert {name: theirs[name] for name in SHARED_SETTINGS} == SHARED_SETTINGS


def test_missing_settings_do_not_have_our_defaults(folder):
    """The default of hidden_size there is 4096; ours is 768."""
    directory, _ = folder
    config = '{"model_type": "albert", "embedding_size": 4}'
    (directory / CONFIG_FILE).write_text(config)
    with pytest.raises(UserError, match=r"\[6, 4\], not \[4096, 4\] as in"):
        hugging_face.read(str(directory))
