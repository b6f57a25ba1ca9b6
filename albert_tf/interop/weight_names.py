"""The weights of a model, and their names in each project.

The tests compare the table `_LAYERS` with models of all three projects:
albert_tf, google-research/albert (modeling.py), and Hugging Face transformers.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from absl import logging

from albert_tf.config import ModelConfig, TaskHeadConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.runs.directory import check_finite

MODEL_NAME = "albert"  # the first part of every path
MOMENTS = ("m", "v")  # the optimizers' names of their slots


class Weight(NamedTuple):
    """A variable of the model, by its path in albert_tf."""

    path: str
    shape: tuple[int, ...]  # also in google-research/albert
    google_albert: str  # its name in their checkpoints
    hugging_face: str  # its name in `AlbertForPreTraining`
    transposed: bool = False  # in Hugging Face: (outputs, inputs)


# The variables of a kind of layer: names in TensorFlow and in Hugging Face. A
# kernel is transposed, and a bias has the last dimension of its kernel.
_DENSE = (("/kernel", ".weight"), ("/bias", ".bias"))
_LAYER_NORM = (("/gamma", ".weight"), ("/beta", ".bias"))
_TABLE = (("", ".weight"),)
_BIAS = (("", ".bias"),)

# Part of the model -> its layers: kind; a letter for each dimension, see
# `list_weights`; names in albert_tf, google-research/albert and Hugging Face.
# Sublayers of a block follow the name of the block. google-research/albert
# names heads of fine-tuned models by script, so none is listed.
# fmt: off
_LAYERS = {
    "embeddings": (
        *((_TABLE, size, f"embeddings/{name}", f"bert/embeddings/{name}",
           f"albert.embeddings.{name}")
          for size, name in (("VE", "word_embeddings"),
                             ("TE", "token_type_embeddings"),
                             ("PE", "position_embeddings"))),
        (_LAYER_NORM, "E", "embeddings/layer_norm",
         "bert/embeddings/LayerNorm", "albert.embeddings.LayerNorm"),
    ),
    "projection": (  # only where embedding_size differs from hidden_size
        (_DENSE, "EH", "encoder/embedding_hidden_mapping_in",
         "bert/encoder/embedding_hidden_mapping_in",
         "albert.encoder.embedding_hidden_mapping_in"),
    ),
    "attention": (
        (_DENSE, "HH", "query", "attention_1/self/query", "attention.query"),
        (_DENSE, "HH", "key", "attention_1/self/key", "attention.key"),
        (_DENSE, "HH", "value", "attention_1/self/value", "attention.value"),
        (_DENSE, "HH", "output", "attention_1/output/dense", "attention.dense"),
        (_LAYER_NORM, "H", "layer_norm", "LayerNorm", "attention.LayerNorm"),
    ),
    "ffn": (
        (_DENSE, "HF", "intermediate", "ffn_1/intermediate/dense", "ffn"),
        (_DENSE, "FH", "output", "ffn_1/intermediate/output/dense",
         "ffn_output"),
        (_LAYER_NORM, "H", "layer_norm", "LayerNorm_1",
         "full_layer_layer_norm"),
    ),
    "masked_lm": (
        (_DENSE, "HE", "masked_lm/transform",
         "cls/predictions/transform/dense", "predictions.dense"),
        (_LAYER_NORM, "E", "masked_lm/layer_norm",
         "cls/predictions/transform/LayerNorm", "predictions.LayerNorm"),
        (_BIAS, "V", "masked_lm/output_bias",
         "cls/predictions/output_bias", "predictions"),
    ),
    # Only with a sentence objective, or a task that labels a text or a pair.
    "pooler": (
        (_DENSE, "HH", "pooler", "bert/pooler/dense", "albert.pooler"),
    ),
    "sentence": (
        (_TABLE, "2H", "sentence/output_weights",
         "cls/seq_relationship/output_weights", "sop_classifier.classifier"),
        (_BIAS, "2", "sentence/output_bias",
         "cls/seq_relationship/output_bias", "sop_classifier.classifier"),
    ),
    "classifier": ((_DENSE, "HC", "classifier", "", "classifier"),),
    "span": ((_DENSE, "H2", "span", "", "qa_outputs"),),
    "beam_span": (  # transformers has no such head
        (_DENSE, "H1", "beam_span/start", "", ""),
        (_DENSE, "DH", "beam_span/end_transform", "", ""),
        (_LAYER_NORM, "H", "beam_span/end_layer_norm", "", ""),
        (_DENSE, "H1", "beam_span/end", "", ""),
        (_DENSE, "DH", "beam_span/null_transform", "", ""),
        (_TABLE, "H1", "beam_span/null_weights", "", ""),
    ),
}
# fmt: on


def list_weights(
    config: ModelConfig,
    sentence_objective: str = "sop",
    head: TaskHeadConfig | None = None,
) -> list[Weight]:
    """Lists all variables of a model; their order has no meaning.

    If the layers share only some weights, the other names of their weights are
    empty: other projects have no such models.
    The objective "none" has neither pooler nor sentence head; a model with
    `head` has no pretraining heads.
    """
    if head is None:
        heads = ["masked_lm"]
        if sentence_objective != "none":
            heads += ["pooler", "sentence"]
    else:
        heads = [*head.layers]
    layers = list(_LAYERS["embeddings"])
    if config.embedding_size != config.hidden_size:
        layers += _LAYERS["projection"]
    layers += _block_layers(config)
    for name in heads:
        layers += _LAYERS[name]
    sizes = {
        "V": config.vocab_size,
        "T": config.type_vocab_size,
        "P": config.max_position_embeddings,
        "E": config.embedding_size,
        "H": config.hidden_size,
        "F": config.intermediate_size,
        "D": 2 * config.hidden_size,
        "C": head.num_outputs if head else 0,
        "1": 1,
        "2": 2,  # classes of the sentence objective; start and end of a span
    }
    return [
        weight for layer in layers for weight in _variables_of(layer, sizes)
    ]


def _block_layers(config: ModelConfig) -> Iterator[tuple[Any, ...]]:
    """Layers of the encoder's blocks: for each group, or for each layer."""
    for inner, part in itertools.product(
        range(config.inner_group_num), ("attention", "ffn")
    ):
        owner, count = "layer", config.num_hidden_layers
        if config.parameter_sharing in ("all", part):
            owner, count = "group", config.num_hidden_groups
        for number, layer in itertools.product(range(count), _LAYERS[part]):
            kind, shape, *names = layer
            prefixes = (
                f"encoder/{owner}_{number}_inner_group_{inner}_{part}/",
                f"bert/encoder/transformer/group_{number}/inner_group_{inner}/",
                f"albert.encoder.albert_layer_groups.{number}."
                f"albert_layers.{inner}.",
            )
            if config.parameter_sharing != "all":
                names[1:], prefixes = ["", ""], (prefixes[0], "", "")
            yield kind, shape, *map(str.__add__, prefixes, names)


def _variables_of(
    layer: tuple[Any, ...], sizes: Mapping[str, int]
) -> Iterator[Weight]:
    kind, letters, path, google_albert, hugging_face = layer
    shape = tuple(sizes[letter] for letter in letters)
    for ours, theirs in kind:
        is_bias_of_dense = kind is _DENSE and ours == "/bias"
        yield Weight(
            f"{MODEL_NAME}/{path}{ours}",
            shape[1:] if is_bias_of_dense else shape,
            google_albert and google_albert + ours,
            hugging_face and hugging_face + theirs,
            transposed=ours == "/kernel",
        )


def has_sentence_head(paths: Iterable[str]) -> bool:
    """Whether a pretrained model with these variables has an objective."""
    parts = (f"{MODEL_NAME}/sentence/", f"{MODEL_NAME}/pooler/")
    return any(path.startswith(parts) for path in paths)


_FILLINGS = {
    "masked_lm/": "masked-LM head: it is initialized as in a new run",
    "sentence/": "sentence head: it is filled with zeros, which give both "
    "classes the same probability",
}


def fill_heads(
    arrays: dict[str, np.ndarray],
    weights: Sequence[Weight],
    config: ModelConfig,
    source: str,
) -> None:
    """Gives pretraining heads without any variable initial values.

    Logs a warning for each, which names `source`.
    """
    generator = np.random.default_rng(0)
    for name, filling in _FILLINGS.items():
        head = [w for w in weights if w.path.startswith(f"{MODEL_NAME}/{name}")]
        if not head or any(weight.path in arrays for weight in head):
            continue
        logging.warning("%s has no %s", source, filling)
        for weight in head:
            values = np.full(weight.shape, weight.path.endswith("gamma"), float)
            if weight.transposed:  # a kernel: truncated at two deviations
                values = generator.normal(size=weight.shape)
                while (far := np.abs(values) > 2).any():
                    values[far] = generator.normal(size=far.sum())
                values *= config.initializer_range
            arrays[weight.path] = values.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class ModelWeights:
    """A pretrained or fine-tuned model, independent of any file format.

    Attributes:
        config: The architecture.
        sentence_objective: "sop", "nsp" or "none".
        values: float32 arrays by variable path.
        slots: The optimizer's moments, float32 arrays by
            `"<variable path>/m"` and `"<variable path>/v"`; empty if unknown.
        step: Training steps completed; 0 if unknown.
        vocabulary: Path of the SentencePiece model; "" if unknown.
        source: Path that the model was read from, for messages.
        head: The head of a fine-tuned model, which has no pretraining heads
            and the sentence objective "none"; None for a pretrained model.
        settings: How a fine-tuned model reads text and answers, as in
            `hugging_face.TASKS`; of a pretrained model perhaps
            `max_seq_length`; empty if unknown.
        do_lower_case: Whether it was trained on lower-cased text; None if
            unknown.
    """

    config: ModelConfig
    sentence_objective: str
    values: Mapping[str, np.ndarray]
    slots: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    step: int = 0
    vocabulary: str = ""
    source: str = ""
    head: TaskHeadConfig | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    do_lower_case: bool | None = None

    def __post_init__(self) -> None:
        shapes = {weight.path: weight.shape for weight in self.list_weights()}
        if self.slots:  # Muon stores only the first moment of its kernels
            shapes |= {
                f"{path}/{moment}": shape
                for path, shape in shapes.items()
                for moment in MOMENTS
                if moment == "m" or f"{path}/{moment}" in self.slots
            }
        arrays = {**self.values, **self.slots}
        found = {n: (v.shape, str(v.dtype)) for n, v in arrays.items()}
        source = self.source or "the model"
        check_arrays(shapes, found, source)
        check_finite(arrays, source)

    @property
    def max_seq_length(self) -> int:
        """The length of the training, or else that of all positions."""
        positions = self.config.max_position_embeddings
        return int(self.settings.get("max_seq_length", positions))

    @classmethod
    def of_arrays(
        cls,
        config: ModelConfig,
        objective: str,
        arrays: Mapping[str, np.ndarray],
        **more: Any,
    ) -> Self:
        """The model of values and slots in a file; `more`: other attributes."""
        suffixes = tuple(f"/{moment}" for moment in MOMENTS)
        values = {n: v for n, v in arrays.items() if not n.endswith(suffixes)}
        slots = {n: v for n, v in arrays.items() if n not in values}
        return cls(config, objective, values, slots, **more)

    def list_weights(self) -> list[Weight]:
        """The variables of the model; see the function `list_weights`."""
        return list_weights(self.config, self.sentence_objective, self.head)

    @property
    def num_parameters(self) -> int:
        """Number of parameters, heads included."""
        return sum(value.size for value in self.values.values())


def check_arrays(
    shapes: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[tuple[int, ...], str]],
    source: str,
) -> None:
    """Refuses arrays that are missing, unknown, or of another form."""
    faults = [f"{name} is missing" for name in shapes if name not in found]
    faults += [f"{name} is unknown" for name in found if name not in shapes]
    for name, wanted in shapes.items():
        shape, dtype = found.get(name, (wanted, "float32"))
        if shape != wanted:
            faults.append(f"{name} has shape {[*shape]}, not {[*wanted]}")
        elif dtype != "float32":
            faults.append(f"{name} is {dtype}, not float32")
    if faults:
        raise UserError(
            f"{source} must hold the weights that match its architecture",
            received=name_faults(faults),
        )
