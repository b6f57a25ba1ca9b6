"""Models to write as Hugging Face folders, and changes of such folders."""

import dataclasses
import json

import numpy as np
import safetensors
import safetensors.numpy

from albert_tf.interop.hugging_face import CONFIG_FILE, WEIGHTS_FILE
from albert_tf.interop.weight_names import list_weights
from tests.helpers.tiny_albert import TINY, VOCABULARY, random_weights

# transformers 4 fails if a group has more inner groups than layers.
SIMPLER = dataclasses.replace(TINY, inner_group_num=1)


MODELS = {
    "groups": TINY,
    "unshared": dataclasses.replace(
        SIMPLER,
        parameter_sharing="none",
        num_hidden_groups=1,
        hidden_act="relu",
    ),
    "attention shared": dataclasses.replace(
        SIMPLER, parameter_sharing="attention"
    ),
    "E is H": dataclasses.replace(TINY, embedding_size=6),
    "published vocabulary": dataclasses.replace(
        TINY, vocab_size=30000, max_position_embeddings=13
    ),
}


def make_weights(config=TINY, objective="sop"):
    """Random weights, with the published vocabulary if the size fits."""
    vocabulary = str(VOCABULARY) if config.vocab_size == 30000 else ""
    return random_weights(
        config, objective, vocabulary=vocabulary, source="a/model"
    )


def change_config(folder, **changes):
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, changes):
    """Replaces tensors by name; None removes one."""
    path = folder / WEIGHTS_FILE
    tensors = safetensors.numpy.load_file(path) | changes
    kept = {name: v for name, v in tensors.items() if v is not None}
    safetensors.numpy.save_file(kept, path, {"format": "pt"})


def assert_equal(read, written):
    assert set(read.values) == set(written.values)
    for path, value in written.values.items():
        np.testing.assert_array_equal(read.values[path], value, err_msg=path)


def transformers_model(class_name, **settings):
    """A model of transformers with random weights, in evaluation mode."""
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.AlbertConfig(
        vocab_size=11,
        embedding_size=4,
        hidden_size=6,
        num_hidden_layers=4,
        num_hidden_groups=2,
        inner_group_num=2,
        num_attention_heads=2,
        intermediate_size=10,
        max_position_embeddings=7,
        initializer_range=0.5,
        **settings,
    )
    model = getattr(transformers, class_name)(config).eval()
    for parameter in model.parameters():
        # Initial biases are all 0 and gammas all 1: swaps would not show.
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def assert_state(weights, state):
    """Asserts that all weights equal those of a model of transformers."""
    for weight in list_weights(weights.config, weights.sentence_objective):
        value = weights.values[weight.path]
        np.testing.assert_array_equal(
            value.T if weight.transposed else value,
            state[weight.hugging_face].float().numpy(),
            err_msg=weight.path,
        )
