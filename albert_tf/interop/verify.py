"""Compares a written model with the model that it was made from.

For a Hugging Face folder, transformers and albert_tf also run on the same
tokens. This needs the extra interop: PyTorch and transformers.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.interop import formats
from albert_tf.interop.formats import RUN
from albert_tf.interop.hugging_face_config import class_name
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.io.files import is_remote
from albert_tf.records.features import CLS_ID, SEP_ID

# Relative to the largest value of an output, or to 1 if that is smaller:
# rounding errors of float32 grow with the values, and differ between CPUs.
TOLERANCE = 1e-4

_MAX_LENGTH = 64

# Outputs of transformers -> ours, where the names differ.
_OUR_OUTPUTS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "prediction_logits": "mlm_logits",
    "sop_logits": "sentence_logits",
}
_PER_TOKEN = ("sequence_output", "mlm_logits", "start_logits", "end_logits")


def verify(
    weights: ModelWeights, directory: str, dtype: str = "float32"
) -> str:
    """Reads a written model and compares it with the model it was made from.

    Args:
        weights: The model that was read.
        directory: The model that was written.
        dtype: Type of the weights in a Hugging Face folder.

    Returns:
        The result, as lines of text.
    """
    is_run = formats.find_format(directory) == RUN
    expected = weights if is_run else weights.regrouped()
    written = formats.read_weights(directory)
    arrays = {**expected.values, **expected.slots}
    found = {**written.values, **written.slots}
    facts = ["config", "sentence_objective", "step", "head"]
    if not is_run:
        # The format has no moments, and the folder may have no sentence head.
        facts = ["head"]
        arrays = {
            name: arrays[name].astype(dtype).astype(np.float32)
            for name in arrays
            if name in found
        }
    differing = [
        name
        for name in facts
        if getattr(expected, name) != getattr(written, name)
    ]
    # A run has all settings, also those that are unknown here.
    differing += [
        name
        for name, value in expected.settings.items()
        if written.settings.get(name) != value
    ]
    differing += [
        name
        for name in arrays.keys() | found.keys()
        if name not in arrays
        or name not in found
        or arrays[name].tobytes() != found[name].tobytes()
    ]
    if differing:
        raise UserError(
            f"the model written to {directory} must equal the model read",
            received=f"differences in {', '.join(sorted(differing)[:5])}",
        )
    lines = [f"all {len(arrays)} arrays are equal, bit for bit"]
    if not is_run:
        lines += [
            f"largest difference of {name}: {difference:.2g}"
            for name, difference in compare(written, directory).items()
        ]
    return "\n".join(lines)


def compare(weights: ModelWeights, directory: str) -> dict[str, float]:
    """Runs transformers and albert_tf, in float32, on the same tokens.

    Args:
        weights: The model that albert_tf runs.
        directory: The folder that transformers loads, local.

    Returns:
        The largest absolute difference by output: `sequence_output`,
        `mlm_logits`, and, with a sentence head, `pooled_output` and
        `sentence_logits`. For a fine-tuned model: `logits`, or `start_logits`
        and `end_logits`.

    Raises:
        UserError: If a package is missing, if the folder is not local, if
            transformers finds weights missing or unknown, or if a difference
            exceeds `TOLERANCE`, relative to the largest value of its output.
    """
    if is_remote(directory):
        raise UserError(
            "the folder that transformers loads must be local",
            received=directory,
        )
    batch = _make_batch(weights)
    theirs, ours = _run_theirs(weights, directory, batch), _run(weights, batch)
    differences = {}
    for name, expected in theirs.items():
        name = _OUR_OUTPUTS.get(name, name)
        if name == "logits" and weights.head is None:
            name = "mlm_logits"  # of AlbertForMaskedLM
        real = batch["input_mask"][:, 0] > 0
        chosen = real if name in _PER_TOKEN else ...
        expected, found = expected[chosen], ours[name][chosen]
        differences[name] = float(np.abs(expected - found).max())
        limit = TOLERANCE * max(1.0, float(np.abs(expected).max()))
        # Negated, so that NaN fails.
        if not differences[name] <= limit:
            raise UserError(
                f"{directory}: outputs of transformers and albert_tf must "
                f"agree to {limit:.2g}",
                received=f"{name}, which differ by up to "
                f"{differences[name]:.2g}",
            )
    return differences


def _make_batch(weights: ModelWeights) -> dict[str, np.ndarray]:
    """Two pairs of random segments, repeated as the choices of an example.

    Returns:
        `input_ids`, `input_mask` and `segment_ids`: int32, `(2, choices,
        length)`.
    """
    config = weights.config
    choices = weights.head.num_choices if weights.head else 1
    length = min(_MAX_LENGTH, config.max_position_embeddings)
    ids = np.random.default_rng(0).integers(
        SEP_ID + 1, config.vocab_size, (2, 1, length), np.int32
    )
    ids[..., 0], ids[..., -1] = CLS_ID, SEP_ID
    position = np.arange(length, dtype=np.int32)
    mask = (position < [[[length]], [[length - length // 2]]]).astype(np.int32)
    segments = mask * (position >= length // 4)
    return {
        "input_ids": np.repeat(ids * mask, choices, 1),
        "input_mask": np.repeat(mask, choices, 1),
        "segment_ids": np.repeat(segments, choices, 1),
    }


def _run(
    weights: ModelWeights, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    model: Any = formats.make_model(weights)
    inputs = {
        name: tf.constant(values.reshape(len(values), -1))
        for name, values in batch.items()
    }
    outputs = {}
    if weights.head is None:
        outputs = model.encode(inputs)
        positions = tf.range(inputs["input_ids"].shape[1])
        inputs["masked_lm_positions"] = (
            tf.zeros_like(inputs["input_ids"]) + positions
        )
    return {k: v.numpy() for k, v in {**outputs, **model(inputs)}.items()}


def _run_theirs(
    weights: ModelWeights, directory: str, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    try:
        torch = importlib.import_module("torch")
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise UserError(
            "to verify a Hugging Face folder, torch and transformers must be "
            "installed",
            received=str(error),
            remedy="Install the extra: pip install -e '.[interop]'",
        ) from None
    name = class_name(weights)
    model, loading = getattr(transformers, name).from_pretrained(
        directory,
        # Not the fused kernels: in some processes, their outputs differ by
        # more than rounding errors.
        attn_implementation="eager",
        output_loading_info=True,
        local_files_only=True,
        use_safetensors=True,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading[kind]:
            found = ", ".join(sorted(map(str, loading[kind])))
            raise UserError(
                f"{directory} must hold exactly the weights of {name}",
                received=f"{kind}: {found}",
            )
    model = model.eval().float()
    ids, mask, segments = (
        torch.tensor(values if values.shape[1] > 1 else values[:, 0]).long()
        for values in batch.values()
    )
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": segments,
    }
    with torch.no_grad():
        outputs = dict(model(**inputs))
        if weights.head is None:
            outputs |= model.albert(**inputs)
    return {name: values.numpy() for name, values in outputs.items()}
