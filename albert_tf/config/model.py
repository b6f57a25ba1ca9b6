"""The architecture, in the schema of the published `albert_config.json`."""

import dataclasses
from collections.abc import Sequence
from typing import Self

from albert_tf.config.settings import Config, fields_with_types, setting
from albert_tf.errors import UserError
from albert_tf.io import shipped
from albert_tf.io.files import load_json

PARAMETER_SHARING = ("all", "attention", "ffn", "none")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config, affects="model"):
    """The architecture, in the schema of the published `albert_config.json`.

    `parameter_sharing` is not in that schema (paper, section 3.1 and Table 4).
    Five keys of published files, which the released code of
    google-research/albert does not use, are ignored.

    Example:
        >>> model = ModelConfig(num_hidden_layers=4, num_hidden_groups=2)
        >>> [model.group_of_layer(layer) for layer in range(4)]
        [0, 0, 1, 1]
        >>> ModelConfig(hidden_size=100, num_attention_heads=7)
        Traceback (most recent call last):
        albert_tf.errors.UserError: num_attention_heads must divide
        hidden_size. Received: 7 and 100.
    """

    vocab_size: int = setting(
        30000, "Number of pieces in the vocabulary.", at_least=8
    )
    embedding_size: int = setting(
        128, "E, width of the factorized embeddings.", at_least=1
    )
    hidden_size: int = setting(768, "H, width of the encoder.", at_least=1)
    num_hidden_layers: int = setting(
        12,
        "Number of layers that the encoder applies.",
        at_least=1,
        at_most=1000,  # `check` takes time for each layer
    )
    num_hidden_groups: int = setting(
        1,
        "Number of groups of consecutive layers; the layers of a group share "
        "what parameter_sharing says.",
        at_least=1,
        at_most="num_hidden_layers",
    )
    inner_group_num: int = setting(
        1,
        "Number of blocks in each layer, each with its own parameters.",
        at_least=1,
    )
    num_attention_heads: int = setting(
        12, "Number of attention heads.", at_least=1, divides="hidden_size"
    )
    intermediate_size: int = setting(
        3072, "Width of the feed-forward layer.", at_least=1
    )
    hidden_act: str = setting(
        "gelu",
        "Activation of the feed-forward layer and of the masked-LM head; "
        "gelu is the tanh approximation, as in google-research/albert.",
        choices=("gelu", "relu", "tanh", "linear"),
    )
    hidden_dropout_prob: float = setting(
        0.1,
        "Dropout rate of embeddings and sublayer outputs.",
        at_least=0,
        below=1,
        affects="result",
    )
    attention_probs_dropout_prob: float = setting(
        0.1,
        "Dropout rate of the attention probabilities.",
        at_least=0,
        below=1,
        affects="result",
    )
    max_position_embeddings: int = setting(
        512, "Length of the longest sequence, in tokens.", at_least=4
    )
    type_vocab_size: int = setting(2, "Number of segment types.", at_least=2)
    initializer_range: float = setting(
        0.02,
        "Standard deviation of the truncated normal initializer.",
        at_least=0,
    )
    parameter_sharing: str = setting(
        "all",
        "What layers share: all parameters, those of attention only, those of "
        "the feed-forward layer only (ffn), or none (BERT).",
        choices=PARAMETER_SHARING,
    )

    def check(self) -> None:
        # google-research/albert and transformers round fractions of layers.
        layers, groups = self.num_hidden_layers, self.num_hidden_groups
        for layer in range(layers):
            google = int(layer / layers * groups)
            transformers = int(layer / (layers / groups))
            if not google == transformers == self.group_of_layer(layer):
                raise UserError(
                    "num_hidden_groups must give each layer the group that it "
                    "has in google-research/albert and transformers",
                    received=f"{groups} groups of {layers} layers, where layer "
                    f"{layer} differs",
                )

    def group_of_layer(self, layer: int) -> int:
        """The group of a layer; a group consists of consecutive layers."""
        return layer * self.num_hidden_groups // self.num_hidden_layers

    @classmethod
    def from_json_file(cls, path: str) -> Self:
        """Loads an `albert_config.json`, by path or name.

        Raises:
            UserError: For a missing file, invalid JSON or invalid values.
        """
        path = shipped.find(path, shipped.ARCHITECTURE)
        return cls.from_dict(load_json(path), source=path)

    def with_overrides(self, overrides: Sequence[str]) -> Self:
        """This architecture with some values replaced.

        Args:
            overrides: Each is `NAME=VALUE,...`; the last value of a name
                counts.

        Raises:
            UserError: For an unknown name, a value of the wrong type, or
                values that contradict each other.
        """
        types, values = override_types(), self.to_dict()
        assignments = ",".join(overrides).split(",") if overrides else ()
        for text in assignments:
            name, _, value = text.partition("=")
            if not value:
                raise UserError(
                    "--model must be NAME=VALUE,...",
                    received=repr(text),
                    remedy="Example: "
                    "--model=embedding_size=64,parameter_sharing=attention",
                )
            try:
                values[name] = types.get(name, str)(value)
            except ValueError:
                raise UserError(
                    f"--model: {name} must be of type {types[name].__name__}",
                    received=repr(value),
                ) from None
        return self.from_dict(values, "--model")


def override_types() -> dict[str, type]:
    """The types of the settings that `--model` can replace, by name."""
    return {f.name: t for f, t in fields_with_types(ModelConfig)}
