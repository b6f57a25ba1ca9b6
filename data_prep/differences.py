"""Describes how a stored result differs from that of the current command."""

from collections.abc import Mapping
from typing import Any

from albert_tf.config import flatten
from albert_tf.errors import name_faults

# What each digest identifies. Messages name this instead of the digest.
_DIGESTS = {
    "inputs_sha256": "the text",
    "model_sha256": "the model file",
    "vocabulary_sha256": "the vocabulary",
}


def describe_differences(
    stored: Mapping[str, Any], new: Mapping[str, Any]
) -> str:
    """Names the values that differ from those stored with a result.

    Args:
        stored: Stored values by name; may be nested.
        new: Values of the current command. Stored values of other names are
            ignored.

    Returns:
        Part of an error message; an empty string if no value differs.

    Example:
        >>> describe_differences(
        ...     {"settings": {"seed": 1}, "inputs_sha256": "ab"},
        ...     {"settings": {"seed": 2}, "inputs_sha256": "cd"},
        ... )
        'seed was 1 and is 2; the text'
    """
    old = flatten(stored)
    return name_faults(
        [
            _DIGESTS.get(name)
            or f"{name.split('.')[-1]} was {old.get(name)} and is {value}"
            for name, value in flatten(new).items()
            if old.get(name) != value
        ]
    )
