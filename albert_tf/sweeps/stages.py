"""Runs that start from the weights of another run of the same sweep.

The flags of such a variant have `--init_checkpoint={run:NAME}`, where NAME is
an earlier variant of the sweep. The run starts from the last checkpoint of
NAME's run with the same seed. In this way a sweep compares curricula, e.g.
short examples before long ones, or two layers before four.
"""

import re
from collections.abc import Mapping, Sequence

from albert_tf.config import PretrainingConfig, flatten
from albert_tf.errors import UserError

_SETTING = "initialization.init_checkpoint"
_RUN = re.compile(r"\{run:([^}]*)\}")

# Added to the seed for each stage before a run, so that stages of the same
# length read different batches.
_SEEDS_PER_STAGE = 1000


def find_start(
    source: str, config: PretrainingConfig, earlier: Sequence[str]
) -> str:
    """Returns the variant that a variant starts from; "" without one.

    Args:
        source: What the settings belong to, for errors, e.g. "variant wide".
        config: The settings.
        earlier: The variants before it.

    Raises:
        UserError: If init_checkpoint names no earlier variant, or another
            setting holds `{run:NAME}`.

    Example:
        >>> from albert_tf.config import InitializationConfig
        >>> config = PretrainingConfig(
        ...     initialization=InitializationConfig("{run:two_layers}")
        ... )
        >>> find_start("variant four_layers", config, ["two_layers"])
        'two_layers'
    """
    for name, value in flatten(config.to_dict()).items():
        if name != _SETTING and _RUN.search(str(value)):
            raise UserError(
                "{run:NAME} must be the value of init_checkpoint",
                received=f"{name.split('.')[-1]}={value} in {source}",
            )
    value = config.initialization.init_checkpoint
    if not _RUN.search(value):
        return ""
    found = _RUN.fullmatch(value)
    if not found or found[1] not in earlier:
        names = ", ".join(earlier) or "none; list the variant before this one"
        raise UserError(
            f"init_checkpoint of {source} must be a path or "
            "{run:NAME}, where NAME is an earlier variant",
            received=value,
            remedy=f"Earlier variants: {names}.",
        )
    return found[1]


def seed_of_stage(seed: int, variant: str, starts: Mapping[str, str]) -> int:
    """Returns the seed of a run whose variant has a listed seed.

    Args:
        seed: The seed, as listed in `--seeds`.
        variant: Name of the variant.
        starts: The variant that each variant starts from, or "".

    Example:
        >>> starts = {"one": "", "two": "one", "three": "two"}
        >>> [seed_of_stage(7, variant, starts) for variant in starts]
        [7, 1007, 2007]
    """
    while starts[variant]:
        seed += _SEEDS_PER_STAGE
        variant = starts[variant]
    return seed
