"""Reads a model in one format and writes it in another."""

import posixpath

import tensorflow as tf
from absl import logging

from albert_tf.config import (
    ConvertConfig,
    DataConfig,
    FinetuningConfig,
    PretrainingConfig,
    TrainingConfig,
    task,
)
from albert_tf.interop import formats, hugging_face
from albert_tf.interop.formats import HUGGING_FACE, RUN
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.io.files import (
    new_directory,
    write_bytes,
    write_json,
)
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoints import CHECKPOINTS_DIR, write_checkpoint
from albert_tf.runs.directory import (
    NULL_THRESHOLD_FILE,
    RECORDS_METADATA_FILE,
    write_config,
)


def convert(config: ConvertConfig) -> None:
    """Reads the model at `from_` and writes it to `to`, or writes nothing.

    Raises:
        UserError: If the conversion is refused; see docs/converting.md.
    """
    config.require("from_", "to")
    target = config.to.rstrip("/")
    with new_directory(target, "--to") as partial:
        source_format = formats.find_format(config.from_)
        target_format = config.to_format
        if target_format == "auto":
            target_format = HUGGING_FACE if source_format == RUN else RUN
        weights = formats.read_weights(config.from_)
        logging.info(
            "read %s (%s): %s parameters, and moments of %d variables",
            weights.source,
            source_format,
            f"{weights.num_parameters:,}",
            sum(name.endswith("/m") for name in weights.slots),
        )
        if not weights.vocabulary:
            logging.warning(
                "%s has no vocabulary, so %s will have none",
                config.from_,
                target,
            )
        if target_format == RUN:
            write_run(weights, partial, target)
        else:
            hugging_face.write(weights, partial)
            card = make_model_card(weights)
            write_bytes(posixpath.join(partial, "README.md"), card.encode())
    logging.info("wrote %s (%s)", target, target_format)


def write_run(weights: ModelWeights, directory: str, run_dir: str) -> None:
    """Writes a run with one checkpoint, whose training cannot be resumed.

    All settings except the architecture and `ModelWeights.settings` are
    defaults. `run_dir` is the path of the directory after the rename.
    """
    length = min(DataConfig.max_seq_length, weights.max_seq_length)
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
        threshold = settings.pop(hugging_face.NULL_THRESHOLD, None)
        if threshold is not None:
            path = posixpath.join(directory, NULL_THRESHOLD_FILE)
            write_json(path, {hugging_face.NULL_THRESHOLD: threshold})
        config = FinetuningConfig(
            model=weights.config,
            data=task.FinetuningDataConfig(max_seq_length=length),
            training=task.FinetuningTrainingConfig(output_dir=run_dir),
            head=weights.head,
        ).replace(**settings)
    write_config(directory, config)
    if weights.vocabulary:
        tf.io.gfile.copy(
            weights.vocabulary, posixpath.join(directory, TOKENIZER_FILE)
        )
        if weights.do_lower_case is not None:
            tokenizer = Tokenizer(weights.vocabulary, weights.do_lower_case)
            path = posixpath.join(directory, RECORDS_METADATA_FILE)
            write_json(path, tokenizer.describe())
    write_checkpoint(
        posixpath.join(directory, CHECKPOINTS_DIR, f"step-{weights.step:08d}"),
        weights.step,
        {},
        {**weights.values, **weights.slots},
    )


# --- The model card -----------------------------------------------------------


def make_model_card(weights: ModelWeights) -> str:
    """The Hub's metadata, and a sentence about the model."""
    head, pipeline = weights.head, "fill-mask"
    objective = weights.sentence_objective
    what = f"pretrained with the sentence objective {objective}"
    if head:
        what = f"fine-tuned for {head.kind.replace('_', ' ')}"
        pipeline = hugging_face.TASKS[head.kind].pipeline
    return f"""---
license: unknown
library_name: transformers
pipeline_tag: {pipeline}
tags: [albert, albert_tf]
---

# ALBERT

An [ALBERT](https://arxiv.org/abs/1909.11942) with {weights.num_parameters:,}
parameters, heads included, {what} by albert_tf.
"""
