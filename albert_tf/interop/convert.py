"""Reads a model in one format and writes it in another.

With `verify`, compares the written model with the one that was read. A Hugging
Face folder gets a model card, with facts from the run directory.
"""

import dataclasses
import importlib
import os
import posixpath
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import (
    ConvertConfig,
    DataConfig,
    FinetuningConfig,
    PretrainingConfig,
    TrainingConfig,
    flatten,
)
from albert_tf.config.task import (
    MULTIPLE_CHOICE,
    FinetuningDataConfig,
    FinetuningTrainingConfig,
)
from albert_tf.errors import UserError
from albert_tf.interop import formats, hugging_face
from albert_tf.interop.formats import HUGGING_FACE, RUN
from albert_tf.interop.hugging_face import (
    KEY,
    NULL_THRESHOLD,
    TASKS,
    class_name,
)
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.io.files import (
    PARTIAL_SUFFIX,
    is_remote,
    load_json_if_any,
    new_directory,
    write_bytes,
    write_json,
)
from albert_tf.records.features import CLS_ID, SEP_ID, TOKENIZER_FILE
from albert_tf.runs.checkpoints import CHECKPOINTS_DIR, write_checkpoint
from albert_tf.runs.directory import (
    NULL_THRESHOLD_FILE,
    RECORDS_METADATA_FILE,
    load_config,
    write_config,
)
from albert_tf.runs.log import DURATIONS, read_metrics


def convert(config: ConvertConfig) -> None:
    """Reads the model at `from_` and writes it to `to`, or writes nothing.

    The model is read and checked, described, written to a temporary directory
    next to `to`, and with `verify` compared with what is read from there.

    Raises:
        UserError: If the conversion is refused; see docs/converting.md.
    """
    config.require("from_", "to")
    target = config.to.rstrip("/")
    source, removed = (
        path if is_remote(path) else os.path.realpath(path)
        for path in (config.from_, target)
    )
    removed += PARTIAL_SUFFIX
    if f"{source}/".startswith(f"{removed}/"):
        raise UserError(
            f"--from must be outside {removed}, the temporary directory of "
            "this conversion",
            received=source,
            remedy="Choose another --to.",
        )
    with new_directory(target, "--to") as partial:
        source_format = formats.find_format(config.from_)
        target_format = _choose_format(config, source_format)
        weights = _read(config, source_format)
        print(describe(weights, source_format))
        if not weights.vocabulary:
            logging.warning(
                "%s has no vocabulary, so %s will have none",
                *(config.from_, target),
            )
        elif target_format == RUN and weights.do_lower_case is False:
            logging.warning(
                "%s will not record that its vocabulary keeps upper case: "
                "exports and fine-tuned models of it will convert text to "
                "lower case. Fine-tune with --init_checkpoint=%s instead",
                *(target, config.from_),
            )
        if target_format == RUN:
            write_run(weights, partial, target)
        else:
            written = hugging_face.write(
                weights,
                partial,
                config.with_sentence_head,
                config.weights_dtype,
            )
            card = make_model_card(written, config.licence)
            write_bytes(posixpath.join(partial, "README.md"), card.encode())
        if config.verify:
            print(verify(weights, partial, config.weights_dtype))
    logging.info("wrote %s (%s)", target, target_format)


def _choose_format(config: ConvertConfig, source_format: str) -> str:
    target_format = config.to_format
    if target_format == "auto":
        target_format = HUGGING_FACE if source_format == RUN else RUN
    if source_format == target_format == RUN:
        raise UserError(
            "--to_format must be hugging_face if --from is a run",
            received=RUN,
            remedy="To copy a run, copy its directory.",
        )
    if config.weights_dtype != "float32" and target_format != HUGGING_FACE:
        raise UserError(
            "weights_dtype must be float32 unless the command writes a Hugging "
            "Face folder",
            received=config.weights_dtype,
            remedy="Add --to_format=hugging_face.",
        )
    return target_format


def _read(config: ConvertConfig, source_format: str) -> ModelWeights:
    weights = formats.read_weights(config.from_, config.checkpoint_step)
    if not config.num_choices:
        return weights
    # transformers does not store it, and the weights score any number.
    head, is_foreign = weights.head, source_format == HUGGING_FACE
    if not is_foreign or head is None or head.kind != MULTIPLE_CHOICE:
        raise UserError(
            "num_choices must be omitted unless --from is a multiple-choice "
            "model of Hugging Face",
            received=f"{config.num_choices} and {config.from_}",
        )
    head = dataclasses.replace(head, num_choices=config.num_choices)
    return dataclasses.replace(weights, head=head)


def describe(weights: ModelWeights, source_format: str) -> str:
    """Summarises a model in lines of text: step, architecture, sizes."""
    config, objective = weights.config, weights.sentence_objective
    vocabulary = posixpath.basename(weights.vocabulary) or "file unknown"
    moments = sum(name.endswith("/m") for name in weights.slots)
    return f"""\
read                {weights.source} ({source_format})
step                {weights.step or "unknown"}
architecture        {config.to_dict()}
vocabulary          {config.vocab_size:,} pieces, {vocabulary}
task                {weights.head.kind if weights.head else objective}
variables           {len(weights.values)}, with {weights.num_parameters:,} \
parameters
moments             {f"of {moments} variables" if moments else "none"}"""


def write_run(weights: ModelWeights, directory: str, run_dir: str) -> None:
    """Writes a run with one checkpoint, whose training cannot be resumed.

    All settings except the architecture and `ModelWeights.settings` are
    defaults. `run_dir` is the path of the directory after the rename.
    """
    length = min(
        DataConfig.max_seq_length, weights.config.max_position_embeddings
    )
    config = PretrainingConfig(
        model=weights.config,
        data=DataConfig(
            max_seq_length=length,
            max_predictions_per_seq=min(
                DataConfig.max_predictions_per_seq, length - 1
            ),
        ),
        training=TrainingConfig(
            output_dir=run_dir, sentence_objective=weights.sentence_objective
        ),
    )
    if weights.head:
        settings = dict(weights.settings)
        threshold = settings.pop(NULL_THRESHOLD, None)
        if threshold is not None:
            path = posixpath.join(directory, NULL_THRESHOLD_FILE)
            write_json(path, {NULL_THRESHOLD: threshold})
        config = FinetuningConfig(
            model=weights.config,
            data=FinetuningDataConfig(max_seq_length=length),
            training=FinetuningTrainingConfig(output_dir=run_dir),
            head=weights.head,
        ).replace(**settings)
    write_config(directory, config)
    if weights.vocabulary:
        tf.io.gfile.copy(
            weights.vocabulary, posixpath.join(directory, TOKENIZER_FILE)
        )
    write_checkpoint(
        posixpath.join(directory, CHECKPOINTS_DIR, f"step-{weights.step:08d}"),
        weights.step,
        {},
        {**weights.values, **weights.slots},
    )


# --- Verification -------------------------------------------------------------

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


def verify(
    weights: ModelWeights, directory: str, dtype: str = "float32"
) -> str:
    """Reads a written model and compares it with `weights`; returns lines."""
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
            name: value.astype(dtype).astype(np.float32)
            for name, value in arrays.items()
            if name in found
        }
    differing = [
        *(n for n in facts if getattr(expected, n) != getattr(written, n)),
        # A run has all settings, also those that are unknown here.
        *(
            name
            for name, value in expected.settings.items()
            if written.settings.get(name) != value
        ),
        *(arrays.keys() ^ found.keys()),
        *(
            name
            for name in arrays.keys() & found.keys()
            if arrays[name].tobytes() != found[name].tobytes()
        ),
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

    Returns the largest absolute difference of each output; refuses one that
    exceeds `TOLERANCE`, and weights that transformers does not find or know.
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
        differences[name] = float(np.abs(expected - ours[name]).max())
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
    """Two pairs of random segments, int32, `(2, choices, length)`."""
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
        length = inputs["input_ids"].shape[1]
        inputs["masked_lm_positions"] = tf.constant([[*range(length)]] * 2)
    return {k: v.numpy() for k, v in {**outputs, **model(inputs)}.items()}


def _run_theirs(
    weights: ModelWeights, directory: str, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
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
    inputs = {
        name: torch.tensor(v if v.shape[1] > 1 else v[:, 0]).long()
        for name, v in zip(
            ("input_ids", "attention_mask", "token_type_ids"),
            batch.values(),
            strict=True,
        )
    }
    with torch.no_grad():
        outputs = dict(model(**inputs))
        if weights.head is None:
            outputs |= model.albert(**inputs)
    return {name: values.numpy() for name, values in outputs.items()}


# --- The model card -----------------------------------------------------------

_SENTENCE_CLASSES = {
    "sop": " The classes of `sop_logits` are segments in order (0) and swapped "
    "(1).",
    "nsp": " The classes of `sop_logits` are the next sentence (0) and a "
    "random one (1).",
    "none": " It has no sentence head.",
}
# Of a run that has trained.
_SETTINGS = (
    "data.global_batch_size",
    "optimizer.optimizer",
    "optimizer.learning_rate",
    "optimizer.num_warmup_steps",
    "training.num_train_steps",
    "training.seed",
)


def make_model_card(weights: ModelWeights, licence: str = "") -> str:
    """The Hub's metadata, then Markdown: the model, its records, its run."""
    head, step, run_dir = weights.head, weights.step, weights.run_dir
    model = class_name(weights).replace("Albert", "AutoModel")
    if head:
        what = f"fine-tuned for {head.kind.replace('_', ' ')}"
        note = f" `{KEY}` in `config.json` describes how it reads text."
    else:
        what, note = "pretrained", _SENTENCE_CLASSES[weights.sentence_objective]
    facts = _describe_run(run_dir, step) if run_dir else {}
    rows = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    return f"""---
license: {licence or "unknown"}
library_name: transformers
pipeline_tag: {TASKS[head.kind].pipeline if head else "fill-mask"}
tags:
- albert
- albert_tf
---

# ALBERT

An [ALBERT](https://arxiv.org/abs/1909.11942) with {weights.num_parameters:,}
parameters, heads included, {what} with albert_tf for
{f"{step:,}" if step else "an unknown number of"} steps.{note}

    from transformers import AutoTokenizer, {model}

    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = {model}.from_pretrained(FOLDER)

The records, the settings, and the metrics of the held-out set, in nats:

| | |
|---|---|
{rows or "| unknown | |"}
"""


def _describe_run(run_dir: str, step: int) -> dict[str, Any]:
    """Facts of the records, and of a log up to the step, as they are known."""
    metadata = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    records = load_json_if_any(metadata) or {}
    facts = {n: v for n, v in records.items() if not isinstance(v, list | dict)}
    lines = read_metrics(run_dir)
    if lines:  # the settings of a converted run are defaults
        settings = flatten(load_config(run_dir).to_dict())
        facts |= {name.partition(".")[2]: settings[name] for name in _SETTINGS}
    evaluations = [
        line
        for line in lines
        if line["split"] == "eval" and line["step"] <= step
    ]
    for name, value in evaluations[-1].items() if evaluations else ():
        if name not in (*DURATIONS, "split"):
            facts[name] = f"{value:.4f}" if isinstance(value, float) else value
    return facts
