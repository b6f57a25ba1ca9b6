"""Checks that other projects put each layer into the same group as this one."""

from collections.abc import Callable

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError


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

    Example:
        >>> from albert_tf.config import ModelConfig
        >>> config = ModelConfig(num_hidden_layers=22, num_hidden_groups=22)
        >>> int(15 / 22 * 22)  # layer 15, as google-research/albert computes
        14
        >>> config.group_of_layer(15)
        15
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
