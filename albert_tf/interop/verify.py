"""Compares a written model with the model that it was made from.

For a Hugging Face folder, transformers and albert_tf also run on the same text.
This needs the extra interop: PyTorch and transformers.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.interop import formats
from albert_tf.interop.formats import HUGGING_FACE, RUN
from albert_tf.interop.hugging_face_config import class_name
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.io.files import is_remote
from albert_tf.records.features import CLS_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer

# Relative to the largest value of an output, or to 1 if that is smaller:
# rounding errors of float32 grow with the values, and differ between CPUs.
TOLERANCE = 1e-4

_MAX_LENGTH = 64

# The two halves of a line are a pair of segments.
_LINES = (
    "The parameters are shared between the layers. So the model stays small.",
    "In 2019, it was trained for 125,000 steps on 3.3 billion words.",
    "Paris is the capital of France, and Ångström was a Swede (1814-1874).",
)

# Outputs of transformers -> ours, where the names differ.
_OUR_OUTPUTS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "prediction_logits": "mlm_logits",
    "sop_logits": "sentence_logits",
}
_PER_TOKEN = ("sequence_output", "mlm_logits", "start_logits", "end_logits")

# Facts about a model, apart from its arrays, that each format stores.
_FACTS_KEPT = {
    RUN: ("config", "sentence_objective", "step", "head"),
    HUGGING_FACE: ("head",),
}


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

    Raises:
        UserError: If the models differ.
    """
    target_format = formats.find_format(directory)
    expected = weights if target_format == RUN else weights.regrouped()
    written = formats.read_weights(directory)
    arrays = {**expected.values, **expected.slots}
    found = {**written.values, **written.slots}
    if target_format == HUGGING_FACE:
        # The format has no moments, and the folder may have no sentence head.
        arrays = {
            name: arrays[name].astype(dtype).astype(np.float32)
            for name in arrays
            if name in found
        }
    differing = [
        name
        for name in _FACTS_KEPT[target_format]
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
    if target_format == HUGGING_FACE:
        lines += [
            f"largest difference of {name}: {difference:.2g}"
            for name, difference in compare(written, directory).items()
        ]
    return "\n".join(lines)


def compare(weights: ModelWeights, directory: str) -> dict[str, float]:
    """Runs transformers and albert_tf, in float32, on the same text.

    Args:
        weights: The model that albert_tf runs. If it has no vocabulary, random
            ids are the text.
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
        chosen = batch["input_mask"] > 0 if name in _PER_TOKEN else ...
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
    """`input_ids`, `input_mask` and `segment_ids`: int32, `(lines, length)`."""
    config = weights.config
    longest = min(_MAX_LENGTH, config.max_position_embeddings)
    if weights.vocabulary:
        encoded = Tokenizer(weights.vocabulary).encode_batch(_LINES)
        texts = np.split(encoded.ids, encoded.ends[:-1])
    else:
        generator = np.random.default_rng(0)
        texts = [
            generator.integers(SEP_ID + 1, config.vocab_size, length)
            for length in (longest, longest // 2)
        ]
    ids = np.zeros((len(texts), longest), np.int32)
    mask, segments = np.zeros_like(ids), np.zeros_like(ids)
    for row, text in enumerate(texts):
        tokens = [CLS_ID, *text[: longest - 2], SEP_ID]
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
        segments[row, len(tokens) // 2 : len(tokens)] = 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def _num_choices(weights: ModelWeights) -> int:
    """How often a text is repeated, as the choices of an example."""
    return weights.head.num_choices if weights.head else 1


def _run(
    weights: ModelWeights, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    model: Any = formats.make_model(weights)
    inputs = {
        name: tf.constant(np.tile(values, (1, _num_choices(weights))))
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
    model, choices = model.eval().float(), _num_choices(weights)
    if choices > 1:
        batch = {
            name: np.repeat(values[:, np.newaxis], choices, axis=1)
            for name, values in batch.items()
        }
    inputs = {
        "input_ids": torch.tensor(batch["input_ids"]).long(),
        "attention_mask": torch.tensor(batch["input_mask"]).long(),
        "token_type_ids": torch.tensor(batch["segment_ids"]).long(),
    }
    with torch.no_grad():
        outputs = dict(model(**inputs))
        if weights.head is None:
            outputs |= model.albert(**inputs)
    return {name: values.numpy() for name, values in outputs.items()}
