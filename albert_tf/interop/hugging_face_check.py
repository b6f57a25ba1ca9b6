"""Whether transformers answers as this project does: both models, one text.

Needs the extra interop: PyTorch and transformers.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.io.files import is_remote
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.records.features import CLS_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer

TOLERANCE = 1e-4

_BATCH_SIZE = 8
_MAX_LENGTH = 64

# Text for who has none at hand: two halves of a passage are a pair.
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
        weights: The model, as this project has it.
        directory: The folder of `hugging_face.write`, local.
        lines: Text; pieces beyond the 62nd of a line are left out. Without
            a vocabulary, random pieces are taken instead.

    Returns:
        The largest absolute difference by output: `hidden_states`,
        `masked_lm_logits`, and, with a sentence head, `pooled_output` and
        `sentence_logits`.

    Raises:
        UserError: If a package is missing, if the folder is not local, if
            transformers finds weights missing or unknown, or if a difference
            exceeds `TOLERANCE`.
    """
    if is_remote(directory):
        raise UserError(
            "a folder that transformers is to load must be local",
            received=directory,
        )
    batch = _make_batch(weights, lines)
    theirs = _run_theirs(weights, directory, batch)
    ours = _run_ours(weights, batch)
    real = batch["input_mask"].astype(bool)
    differences = {}
    for name, values in theirs.items():
        difference = np.abs(values - ours[name])
        per_piece = name in ("hidden_states", "masked_lm_logits")
        differences[name] = float(
            (difference[real] if per_piece else difference).max()
        )
    worst = max(differences, key=lambda name: differences[name])
    # Not a number is no small difference.
    if not differences[worst] <= TOLERANCE:
        raise UserError(
            f"transformers must answer as this project to {TOLERANCE:g}",
            received=f"{worst} of {directory}, which differ by up to "
            f"{differences[worst]:.2g}",
        )
    return differences


def _make_batch(
    weights: ModelWeights, lines: Sequence[str]
) -> dict[str, np.ndarray]:
    """int32, `(lines, length)`: pieces, their mask and segments."""
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
        pieces = [CLS_ID, *text[: longest - 2], SEP_ID]
        ids[row, : len(pieces)] = pieces
        mask[row, : len(pieces)] = 1
        segments[row, len(pieces) // 2 : len(pieces)] = 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def _run_ours(
    weights: ModelWeights, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    model = AlbertPretrainer(weights.config, weights.sentence_objective)
    model.build()
    for variable in model.variables:
        variable.assign(weights.values[variable.path])
    places = np.arange(batch["input_ids"].shape[1], dtype=np.int32)
    everywhere = np.broadcast_to(places, batch["input_ids"].shape)
    parts = []
    for start in range(0, len(everywhere), _BATCH_SIZE):
        rows = slice(start, start + _BATCH_SIZE)
        inputs = {name: tf.constant(v[rows]) for name, v in batch.items()}
        hidden = model(inputs)
        inputs["masked_lm_positions"] = tf.constant(everywhere[rows])
        parts.append(hidden | model(inputs))
    names = {
        "sequence_output": "hidden_states",
        "mlm_logits": "masked_lm_logits",
        "pooled_output": "pooled_output",
        "sentence_logits": "sentence_logits",
    }
    return {
        names[name]: np.concatenate([part[name].numpy() for part in parts])
        for name in parts[0]
    }


def _run_theirs(
    weights: ModelWeights, directory: str, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    torch, transformers = _import("torch"), _import("transformers")
    has_head = weights.sentence_objective != "none"
    model_class = (
        transformers.AlbertForPreTraining
        if has_head
        else transformers.AlbertForMaskedLM
    )
    model, loading = model_class.from_pretrained(
        directory,
        # By the formulas: of its fused kernels, one process in some gets
        # answers that differ by more than rounding.
        attn_implementation="eager",
        output_loading_info=True,
        local_files_only=True,
        use_safetensors=True,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading[kind]:
            names = ", ".join(sorted(map(str, loading[kind])))
            raise UserError(
                f"{directory} must hold the weights that transformers wants",
                received=f"{kind}: {names}",
            )
    model = model.eval().float()
    parts = []
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
            encoded, answers = model.albert(**inputs), model(**inputs)
        part = {"hidden_states": encoded.last_hidden_state}
        if has_head:
            part["masked_lm_logits"] = answers.prediction_logits
            part["pooled_output"] = encoded.pooler_output
            part["sentence_logits"] = answers.sop_logits
        else:
            part["masked_lm_logits"] = answers.logits
        parts.append(part)
    return {
        name: np.concatenate([part[name].numpy() for part in parts])
        for name in parts[0]
    }


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
