"""Compares the outputs of transformers with those of albert_tf.

Both models run on the same text. Needs the extra interop: PyTorch and
transformers.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.config.task import MULTIPLE_CHOICE
from albert_tf.errors import UserError
from albert_tf.interop.formats import make_model
from albert_tf.interop.hugging_face_config import CLASSES
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.io.files import is_remote
from albert_tf.modeling.task_model import AlbertForTask
from albert_tf.records.features import CLS_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer

# Relative to the largest value of an output, or to 1 if that is smaller:
# rounding errors of float32 grow with the values, and differ between CPUs.
TOLERANCE = 1e-4

_BATCH_SIZE = 8
_MAX_LENGTH = 64

_PER_TOKEN = ("hidden_states", "masked_lm_logits", "start_logits", "end_logits")

# The two halves of a line are a pair of segments.
SAMPLE_LINES = (
    "The parameters are shared between the layers. So the model stays small.",
    "In 2019, it was trained for 125,000 steps on 3.3 billion words.",
    "Paris is the capital of France, and Ångström was a Swede (1814-1874).",
)


def verify(
    weights: ModelWeights,
    directory: str,
    lines: Sequence[str] = SAMPLE_LINES,
) -> dict[str, float]:
    """Runs both models, in float32, on the same text.

    Args:
        weights: The model that albert_tf runs.
        directory: The folder that transformers loads, local.
        lines: Text; tokens beyond the 62nd of a line are ignored. If the
            model has no vocabulary, random ids are used instead.

    Returns:
        The largest absolute difference by output: `hidden_states`,
        `masked_lm_logits`, and, with a sentence head, `pooled_output` and
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
    batch = _make_batch(weights, lines)
    theirs = _run_theirs(weights, directory, batch)
    ours = _run_ours(weights, batch)
    real = batch["input_mask"].astype(bool)
    differences = {}
    for name, values in theirs.items():
        chosen = real if name in _PER_TOKEN else ...
        expected, found = values[chosen], ours[name][chosen]
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


def _make_batch(
    weights: ModelWeights, lines: Sequence[str]
) -> dict[str, np.ndarray]:
    """`input_ids`, `input_mask` and `segment_ids`: int32, `(lines, length)`."""
    config = weights.config
    longest = min(_MAX_LENGTH, config.max_position_embeddings)
    if weights.vocabulary:
        tokenizer = Tokenizer(weights.vocabulary)
        encoded = tokenizer.encode_batch(lines)
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


def _run_ours(
    weights: ModelWeights, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    model = make_model(weights)
    if isinstance(model, AlbertForTask):
        outputs = model(
            {
                name: tf.constant(_per_example(v, weights))
                for name, v in batch.items()
            }
        )
        return {name: values.numpy() for name, values in outputs.items()}
    positions = np.arange(batch["input_ids"].shape[1], dtype=np.int32)
    all_positions = np.broadcast_to(positions, batch["input_ids"].shape)
    batches = []
    for start in range(0, len(all_positions), _BATCH_SIZE):
        rows = slice(start, start + _BATCH_SIZE)
        inputs = {name: tf.constant(v[rows]) for name, v in batch.items()}
        hidden = model.encode(inputs)
        inputs["masked_lm_positions"] = tf.constant(all_positions[rows])
        batches.append(hidden | model(inputs))
    names = {
        "sequence_output": "hidden_states",
        "mlm_logits": "masked_lm_logits",
        "pooled_output": "pooled_output",
        "sentence_logits": "sentence_logits",
    }
    return {
        names[name]: np.concatenate(
            [outputs[name].numpy() for outputs in batches]
        )
        for name in batches[0]
    }


def _run_theirs(
    weights: ModelWeights, directory: str, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    torch, transformers = _import("torch"), _import("transformers")
    has_head = weights.sentence_objective != "none"
    class_name = "AlbertForPreTraining" if has_head else "AlbertForMaskedLM"
    if weights.head:
        class_name = CLASSES[weights.head.kind]
    model_class = getattr(transformers, class_name)
    model, loading = model_class.from_pretrained(
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
            names = ", ".join(sorted(map(str, loading[kind])))
            raise UserError(
                f"{directory} must hold exactly the weights of "
                f"{model_class.__name__}",
                received=f"{kind}: {names}",
            )
    model = model.eval().float()
    if weights.head:
        return _run_task(torch, model, weights, batch)
    batches = []
    for start in range(0, len(batch["input_ids"]), _BATCH_SIZE):
        ids, mask, segments = (
            torch.tensor(batch[name][start : start + _BATCH_SIZE]).long()
            for name in ("input_ids", "input_mask", "segment_ids")
        )
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": segments,
        }
        with torch.no_grad():
            encoded, found = model.albert(**inputs), model(**inputs)
        outputs = {"hidden_states": encoded.last_hidden_state}
        if has_head:
            outputs["masked_lm_logits"] = found.prediction_logits
            outputs["pooled_output"] = encoded.pooler_output
            outputs["sentence_logits"] = found.sop_logits
        else:
            outputs["masked_lm_logits"] = found.logits
        batches.append(outputs)
    return {
        name: np.concatenate([outputs[name].numpy() for outputs in batches])
        for name in batches[0]
    }


def _run_task(
    torch: Any,
    model: Any,
    weights: ModelWeights,
    batch: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The logits of a fine-tuned model of transformers."""
    ids, mask, segments = (
        torch.tensor(_per_example(batch[name], weights)).long()
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    if weights.head and weights.head.kind == MULTIPLE_CHOICE:
        shape = (len(ids), weights.head.num_choices, -1)
        ids, mask, segments = (x.reshape(shape) for x in (ids, mask, segments))
    with torch.no_grad():
        found = model(
            input_ids=ids, attention_mask=mask, token_type_ids=segments
        )
    return {
        name: found[name].numpy()
        for name in ("logits", "start_logits", "end_logits")
        if name in found
    }


def _per_example(values: np.ndarray, weights: ModelWeights) -> np.ndarray:
    """Repeats each sequence, as the choices of an example."""
    assert weights.head is not None
    return np.tile(values, (1, weights.head.num_choices))


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            "to verify a Hugging Face folder, torch and transformers must be "
            "installed",
            received=str(error),
            remedy="Install the extra: pip install -e '.[interop]'",
        ) from None
