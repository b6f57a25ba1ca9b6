"""A model as any file format holds it: its architecture and its values."""

import dataclasses
from collections.abc import Mapping
from typing import Self

import numpy as np

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError
from albert_tf.interop.weight_names import list_weights

MOMENTS = ("m", "v")  # as `optimizers` names its slots
_NAMED_IN_ERRORS = 5


@dataclasses.dataclass(frozen=True)
class ModelWeights:
    """A pretrained model, apart from any file.

    Attributes:
        config: The architecture.
        sentence_objective: "sop", "nsp" or "none".
        values: float32 arrays by our variable path.
        slots: The optimizer's moments, float32 arrays by
            `"<variable path>/m"` and `"<variable path>/v"`; empty if unknown.
        step: Updates made; 0 if unknown.
        vocabulary: The SentencePiece model's file; "" if unknown.
        source: Where it was read, for messages.
    """

    config: ModelConfig
    sentence_objective: str
    values: Mapping[str, np.ndarray]
    slots: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    step: int = 0
    vocabulary: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Refuses values that are not those of the architecture.

        Raises:
            UserError: Naming values that are missing, unknown, or of another
                shape or type.
        """
        shapes = {
            weight.path: weight.shape
            for weight in list_weights(self.config, self.sentence_objective)
        }
        _check_values("weights", shapes, self.values, self.source)
        if self.slots:
            slot_shapes = {
                f"{path}/{moment}": shape
                for path, shape in shapes.items()
                for moment in MOMENTS
            }
            _check_values("moments", slot_shapes, self.slots, self.source)

    @property
    def num_parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(value.size for value in self.values.values())

    def regrouped(self) -> Self:
        """The same model with all that a layer shares in one group.

        Other projects know groups of layers alone. Where only the attention,
        the feed-forward layer or nothing is shared, each layer becomes a
        group, with copies of what was shared: it computes the same, but goes
        on to train as another model.
        """
        if self.config.parameter_sharing == "all":
            return self
        config = dataclasses.replace(
            self.config,
            parameter_sharing="all",
            num_hidden_groups=self.config.num_hidden_layers,
        )
        sources = {
            weight.path: self._path_before_regrouping(weight.path)
            for weight in list_weights(config, self.sentence_objective)
        }
        return dataclasses.replace(
            self,
            config=config,
            values={path: self.values[old] for path, old in sources.items()},
            slots={
                f"{path}/{moment}": self.slots[f"{old}/{moment}"]
                for path, old in sources.items()
                for moment in MOMENTS
                if self.slots
            },
        )

    def _path_before_regrouping(self, path: str) -> str:
        """Where `group_7_inner_group_0_ffn` stands for the eighth layer."""
        parts = path.split("/")
        if not parts[2].startswith("group_"):
            return path
        _, layer, rest = parts[2].split("_", 2)
        if self.config.parameter_sharing == rest.rsplit("_", 1)[1]:
            group = self.config.group_of_layer(int(layer))
            parts[2] = f"group_{group}_{rest}"
        else:
            parts[2] = f"layer_{layer}_{rest}"
        return "/".join(parts)


def _check_values(
    kind: str,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, np.ndarray],
    source: str,
) -> None:
    faults = [f"{path} is missing" for path in shapes if path not in values]
    faults += [f"{path} is unknown" for path in values if path not in shapes]
    for path, shape in shapes.items():
        value = values.get(path)
        if value is None:
            continue
        if value.shape != shape:
            faults.append(
                f"{path} has shape {list(value.shape)}, not {list(shape)}"
            )
        elif value.dtype != np.float32:
            faults.append(f"{path} is {value.dtype}, not float32")
    if faults:
        where = f"{source}: " if source else ""
        more = len(faults) - _NAMED_IN_ERRORS
        raise UserError(
            f"{where}the {kind} must be those of the architecture",
            received="; ".join(faults[:_NAMED_IN_ERRORS])
            + (f"; and {more} more" if more > 0 else ""),
        )
