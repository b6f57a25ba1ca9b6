"""A model in memory: its architecture and its arrays."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from absl import logging

from albert_tf.config import ModelConfig, TaskHeadConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.interop.weight_names import Weight, list_weights

MOMENTS = ("m", "v")  # the optimizers' names of their slots


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
            `hugging_face_config.TASK_SETTINGS`; empty if unknown.
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

    def __post_init__(self) -> None:
        """Checks values and slots against the architecture.

        Raises:
            UserError: Naming values that are missing or unknown, or that have
                the wrong shape or dtype.
        """
        shapes = {weight.path: weight.shape for weight in self.list_weights()}
        _check_values("weights", shapes, self.values, self.source)
        if self.slots:
            slot_shapes = {
                f"{path}/{moment}": shape
                for path, shape in shapes.items()
                for moment in MOMENTS
            }
            _check_values("moments", slot_shapes, self.slots, self.source)

    def list_weights(self) -> list[Weight]:
        """The variables of the model; see `weight_names.list_weights`."""
        return list_weights(self.config, self.sentence_objective, self.head)

    @property
    def num_parameters(self) -> int:
        """Number of parameters, heads included."""
        return sum(value.size for value in self.values.values())

    def rounded(self, dtype: str) -> Self:
        """Returns the model with weights that `dtype` can represent.

        They remain float32 arrays. If `dtype` is float16, the result has no
        moments.

        Args:
            dtype: "float32" or "float16".

        Raises:
            UserError: If a weight is too large for `dtype`.
        """
        if dtype == "float32":
            return self
        largest = float(np.finfo(dtype).max)
        values = {}
        for path, value in self.values.items():
            if np.abs(value).max(initial=0) > largest:
                raise UserError(
                    f"{path} in {self.source} must be at most {largest:g} to "
                    f"be written as {dtype}",
                    received=f"{np.abs(value).max():g}",
                )
            values[path] = value.astype(dtype).astype(np.float32)
        return dataclasses.replace(self, values=values, slots={})

    def regrouped(self) -> Self:
        """Returns the same model with `parameter_sharing="all"`.

        Other projects support only groups of layers that share all weights.
        If layers share only the attention, only the feed-forward layer, or
        nothing, each layer becomes a group with its own copy of the shared
        weights. The outputs stay the same, but the copies diverge if the
        model is trained further.
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
            for weight in list_weights(
                config, self.sentence_objective, self.head
            )
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
        """The path in this model; group N of the regrouped one is layer N."""
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


def warn_of_zero_sentence_head(source: str) -> None:
    """Logs that a model lacks the sentence head, which is filled with zeros."""
    logging.warning(
        "%s has no sentence head: it is filled with zeros, which give both "
        "classes the same probability",
        source,
    )


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
        raise UserError(
            f"{where}the {kind} must match the architecture",
            received=name_faults(faults),
        )
