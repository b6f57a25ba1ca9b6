"""Fingerprints of training steps, which show whether an estimate is outdated.

Compiling all recipes for TPUs takes an hour or more. Therefore
`tpu/compiled.json` stores two fingerprints with each estimate: one of the
settings that determine the program, and one of the program of a small model
with the same structure. Tests compute them again, in half a minute of CPU time,
and fail if they differ.

Fingerprints of programs depend on the release of TensorFlow.
"""

import dataclasses
import hashlib
import re

from albert_tf.config import DataConfig, PretrainingConfig
from albert_tf.training import train_state
from albert_tf.training.pretraining import Pretraining
from tpu import replica_program

_LENGTH = 16  # hexadecimal digits
_NUM_REPLICAS = 2

# Names, values of constants, and origins of operations in an HLO module.
_NAME = re.compile(r"%[\w.\-]+")
_CONSTANT = re.compile(r" constant\(.*")
_METADATA = re.compile(r", metadata=\{[^}]*\}")


def of_text(text: str) -> str:
    """The fingerprint of a text, e.g. of `compile_recipes.program_key`.

    Example:
        >>> of_text("a recipe")
        '5aff6649d4648da2'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def of_program(config: PretrainingConfig) -> str:
    """The fingerprint of the training step of `small(config)`.

    It depends on the operations with their types, shapes and attributes. It
    does not depend on their order, names or operands, nor on the values of
    constants.
    """
    config = small(config)
    program, arguments = replica_program.make_program(
        train_state.make_state(config, Pretraining(config)),
        config,
        _NUM_REPLICAS,
    )
    hlo = program.experimental_get_compiler_ir(*arguments)(
        stage="hlo", platform_name="CPU"
    )
    return of_text("\n".join(sorted(map(_normalized, hlo.splitlines()[1:]))))


def small(config: PretrainingConfig) -> PretrainingConfig:
    """A configuration whose program has the structure of a recipe's program.

    It keeps the lengths of rows, and whether layers are shared, but has two
    layers, two heads, and at most two micro-batches of two rows.
    """
    model, data = config.model, config.data
    micro_batches = min(2, data.gradient_accumulation_steps)
    hidden_size = 32
    same_size = model.embedding_size == model.hidden_size
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            model,
            vocab_size=512,
            embedding_size=hidden_size if same_size else 16,
            hidden_size=hidden_size,
            intermediate_size=64,
            num_attention_heads=2,
            num_hidden_layers=2,
            num_hidden_groups=min(2, model.num_hidden_groups),
        ),
        data=dataclasses.replace(
            data,
            global_batch_size=2 * micro_batches * _NUM_REPLICAS,
            gradient_accumulation_steps=micro_batches,
            input_lanes=DataConfig().input_lanes,
        ),
    )


def _normalized(line: str) -> str:
    """A line of an HLO module without names, constants and origins."""
    for pattern, replacement in (
        (_METADATA, ""),
        (_CONSTANT, " constant"),
        (_NAME, "%"),
    ):
        line = pattern.sub(replacement, line)
    return line.strip().removeprefix("ROOT ")
