"""The name of each weight in albert_tf, google-research/albert, Hugging Face.

`_LAYERS` is the table. It depends on the architecture alone, so TensorFlow is
not imported.

Reference:
    The graph of google-research/albert (modeling.py) and `AlbertForPreTraining`
    of Hugging Face transformers. The tests compare the table with models of
    all three projects.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from albert_tf.config import ModelConfig, TaskHeadConfig
from albert_tf.errors import UserError

MODEL_NAME = "albert"  # the first part of every path


class Weight(NamedTuple):
    """A variable of the model.

    Attributes:
        path: The variable's path in albert_tf.
        shape: Its shape.
        google_albert: Its name in checkpoints of google-research/albert,
            where it has the same shape.
        hugging_face: Its name in `AlbertForPreTraining`.
        transposed: Whether Hugging Face holds it as `(outputs, inputs)`.
    """

    path: str
    shape: tuple[int, ...]
    google_albert: str
    hugging_face: str
    transposed: bool = False


class _Variable(NamedTuple):
    """A variable of a kind of layer: its name here, and in Hugging Face."""

    name: str
    hugging_face: str
    is_kernel: bool = False


_DENSE = (
    _Variable("/kernel", ".weight", is_kernel=True),
    _Variable("/bias", ".bias"),
)
_LAYER_NORM = (_Variable("/gamma", ".weight"), _Variable("/beta", ".bias"))
_PLAIN = (_Variable("", ""),)


class _Layer(NamedTuple):
    """A row of the table.

    Attributes:
        kind: The variables of the layer.
        shape: A letter for each dimension; see `_sizes`.
        path: The layer's path in albert_tf.
        google_albert: Its name in google-research/albert.
        hugging_face: Its name in Hugging Face.
    """

    kind: tuple[_Variable, ...]
    shape: str
    path: str
    google_albert: str
    hugging_face: str


# fmt: off
_LAYERS = {
    "embeddings": (
        _Layer(_PLAIN, "VE", "embeddings/word_embeddings",
               "bert/embeddings/word_embeddings",
               "albert.embeddings.word_embeddings.weight"),
        _Layer(_PLAIN, "TE", "embeddings/token_type_embeddings",
               "bert/embeddings/token_type_embeddings",
               "albert.embeddings.token_type_embeddings.weight"),
        _Layer(_PLAIN, "PE", "embeddings/position_embeddings",
               "bert/embeddings/position_embeddings",
               "albert.embeddings.position_embeddings.weight"),
        _Layer(_LAYER_NORM, "E", "embeddings/layer_norm",
               "bert/embeddings/LayerNorm",
               "albert.embeddings.LayerNorm"),
    ),
    # Only where embedding_size differs from hidden_size.
    "projection": (
        _Layer(_DENSE, "EH", "encoder/embedding_hidden_mapping_in",
               "bert/encoder/embedding_hidden_mapping_in",
               "albert.encoder.embedding_hidden_mapping_in"),
    ),
    # Sublayers of a block; their names follow that of the block.
    "attention": (
        _Layer(_DENSE, "HH", "query",
               "attention_1/self/query", "attention.query"),
        _Layer(_DENSE, "HH", "key",
               "attention_1/self/key", "attention.key"),
        _Layer(_DENSE, "HH", "value",
               "attention_1/self/value", "attention.value"),
        _Layer(_DENSE, "HH", "output",
               "attention_1/output/dense", "attention.dense"),
        _Layer(_LAYER_NORM, "H", "layer_norm",
               "LayerNorm", "attention.LayerNorm"),
    ),
    "ffn": (
        _Layer(_DENSE, "HF", "intermediate",
               "ffn_1/intermediate/dense", "ffn"),
        _Layer(_DENSE, "FH", "output",
               "ffn_1/intermediate/output/dense", "ffn_output"),
        _Layer(_LAYER_NORM, "H", "layer_norm",
               "LayerNorm_1", "full_layer_layer_norm"),
    ),
    "masked_lm": (
        _Layer(_DENSE, "HE", "masked_lm/transform",
               "cls/predictions/transform/dense",
               "predictions.dense"),
        _Layer(_LAYER_NORM, "E", "masked_lm/layer_norm",
               "cls/predictions/transform/LayerNorm",
               "predictions.LayerNorm"),
        _Layer(_PLAIN, "V", "masked_lm/output_bias",
               "cls/predictions/output_bias",
               "predictions.bias"),
    ),
    # Only with a sentence objective, or a task other than question answering.
    "pooler": (
        _Layer(_DENSE, "HH", "pooler",
               "bert/pooler/dense",
               "albert.pooler"),
    ),
    "sentence": (
        _Layer(_PLAIN, "2H", "sentence/output_weights",
               "cls/seq_relationship/output_weights",
               "sop_classifier.classifier.weight"),
        _Layer(_PLAIN, "2", "sentence/output_bias",
               "cls/seq_relationship/output_bias",
               "sop_classifier.classifier.bias"),
    ),
    # Heads of fine-tuned models. In google-research/albert, their names depend
    # on the script, so fine-tuned models are not written in its format.
    "classifier": (
        _Layer(_DENSE, "HC", "classifier", "", "classifier"),
    ),
    "span": (
        _Layer(_DENSE, "H2", "span", "", "qa_outputs"),
    ),
    # transformers has no such head.
    "beam_span": (
        _Layer(_DENSE, "H1", "beam_span/start", "", ""),
        _Layer(_DENSE, "DH", "beam_span/end_transform", "", ""),
        _Layer(_LAYER_NORM, "H", "beam_span/end_layer_norm", "", ""),
        _Layer(_DENSE, "H1", "beam_span/end", "", ""),
        _Layer(_DENSE, "DH", "beam_span/null_transform", "", ""),
        _Layer(_PLAIN, "H1", "beam_span/null_weights", "", ""),
    ),
}
# fmt: on


def list_weights(
    config: ModelConfig,
    sentence_objective: str = "sop",
    head: TaskHeadConfig | None = None,
) -> list[Weight]:
    """Lists all variables of a model; their order has no meaning.

    Args:
        config: The architecture. If its layers share only some weights, the
            other names of their weights are empty: other projects have no such
            models. See `model_weights.ModelWeights.regrouped`.
        sentence_objective: "none" is a model without pooler and sentence
            head.
        head: The head of a fine-tuned model, which has no pretraining heads.
    """
    heads: list[_Layer] = []
    for name in _head_layers(sentence_objective, head):
        heads += _LAYERS[name]
    layers = list(_LAYERS["embeddings"])
    if config.embedding_size != config.hidden_size:
        layers += _LAYERS["projection"]
    sizes = _sizes(config) | {"C": head.num_outputs if head else 0}
    return [
        weight
        for layer in (*layers, *_block_layers(config), *heads)
        for weight in _variables_of(layer, sizes)
    ]


def _head_layers(
    sentence_objective: str, head: TaskHeadConfig | None
) -> tuple[str, ...]:
    if head is None:
        sentence = ("pooler", "sentence")
        return (
            "masked_lm",
            *(sentence if sentence_objective != "none" else ()),
        )
    if head.has_pooler:
        return ("pooler", "classifier")
    return ("beam_span",) if head.is_beam else ("span",)


def _sizes(config: ModelConfig) -> dict[str, int]:
    """Sizes by the letters in `_Layer.shape`."""
    return {
        "V": config.vocab_size,
        "T": config.type_vocab_size,
        "P": config.max_position_embeddings,
        "E": config.embedding_size,
        "H": config.hidden_size,
        "F": config.intermediate_size,
        "D": 2 * config.hidden_size,
        "1": 1,
        "2": 2,  # classes of the sentence objective; start and end of a span
    }


def _block_layers(config: ModelConfig) -> Iterator[_Layer]:
    """Layers of the encoder's blocks: for each group, or for each layer."""
    for inner, kind in itertools.product(
        range(config.inner_group_num), ("attention", "ffn")
    ):
        owner, count = "layer", config.num_hidden_layers
        if config.parameter_sharing in ("all", kind):
            owner, count = "group", config.num_hidden_groups
        for number, layer in itertools.product(range(count), _LAYERS[kind]):
            google_albert = hugging_face = ""
            if config.parameter_sharing == "all":
                google_albert = (
                    f"bert/encoder/transformer/group_{number}/"
                    f"inner_group_{inner}/{layer.google_albert}"
                )
                hugging_face = (
                    f"albert.encoder.albert_layer_groups.{number}."
                    f"albert_layers.{inner}.{layer.hugging_face}"
                )
            yield layer._replace(
                path=f"encoder/{owner}_{number}_inner_group_{inner}_{kind}/"
                f"{layer.path}",
                google_albert=google_albert,
                hugging_face=hugging_face,
            )


def _variables_of(layer: _Layer, sizes: dict[str, int]) -> Iterator[Weight]:
    shape = tuple(sizes[letter] for letter in layer.shape)
    for variable in layer.kind:
        is_bias_of_dense = layer.kind is _DENSE and not variable.is_kernel
        yield Weight(
            f"{MODEL_NAME}/{layer.path}{variable.name}",
            shape[1:] if is_bias_of_dense else shape,
            layer.google_albert and f"{layer.google_albert}{variable.name}",
            layer.hugging_face
            and f"{layer.hugging_face}{variable.hugging_face}",
            transposed=variable.is_kernel,
        )


def check_layer_groups(
    config: ModelConfig,
    project: str,
    group_of_layer: Callable[[int], int],
    source: str,
    remedy: str = "",
) -> None:
    """Refuses an architecture that another project would build differently.

    Other projects compute the group of a layer in floating point. For some
    numbers of layers and groups the result is rounded down to one group too
    low, so the layer would use other weights.

    Args:
        config: The architecture, with groups of layers.
        project: Name of the other project.
        group_of_layer: The group that the project computes for a layer.
        source: The model, for the error message.
        remedy: What the user can do.

    Raises:
        UserError: If a group differs; the error names the first such layer.
    """
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    for layer in range(layers):
        here, there = config.group_of_layer(layer), group_of_layer(layer)
        if here != there:
            raise UserError(
                f"{source}: {project} must assign each layer to the same "
                "group as albert_tf",
                received=f"layer {layer} of {layers}, with {groups} groups, "
                f"is in group {there} in {project}, because of a rounding "
                f"error, and in group {here} in albert_tf",
                remedy=remedy,
            )
