"""Runs that start from the weights of another run of the same sweep.

The flags of such a variant have `--init_checkpoint={run:NAME}`, where NAME is
an earlier variant of the sweep. The run starts from the last checkpoint of
NAME's run with the same seed. In this way a sweep compares curricula, e.g.
short examples before long ones, or two layers before four.
"""

import re
from collections.abc import Mapping, Sequence

from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError

_RUN = re.compile(r"\{run:([^}]*)\}")

# Added to the seed for each stage before a run, so that stages of the same
# length read different batches.
_SEEDS_PER_STAGE = 1000


def find_start(
    variant: str, config: PretrainingConfig, earlier: Sequence[str]
) -> str:
    """Returns the variant that a variant starts from; "" without one.

    Args:
        variant: Name of the variant, for errors.
        config: Its settings.
        earlier: The variants before it.

    Raises:
        UserError: If init_checkpoint names no earlier variant.

    Example:
        >>> from albert_tf.config import InitializationConfig
        >>> config = PretrainingConfig(
        ...     initialization=InitializationConfig("{run:two_layers}")
        ... )
        >>> find_start("four_layers", config, ["two_layers"])
        'two_layers'
    """
    found = _RUN.search(config.initialization.init_checkpoint)
    if not found:
        return ""
    if found[1] not in earlier:
        raise UserError(
            f"variant {variant} must start from an earlier variant",
            received=found[0],
            remedy=f"Variants before it: {', '.join(earlier) or 'none'}.",
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


def fill_in(flags: Sequence[str], run_dirs: Mapping[str, str]) -> list[str]:
    """Replaces `{run:NAME}` in flags by a directory.

    Args:
        run_dirs: Directory by variant.

    Example:
        >>> fill_in(["--init_checkpoint={run:a}"], {"a": "sweep/runs/a-seed1"})
        ['--init_checkpoint=sweep/runs/a-seed1']
    """
    return [_RUN.sub(lambda found: run_dirs[found[1]], f) for f in flags]
