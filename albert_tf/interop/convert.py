"""Reads a model in one format and writes it in another."""

import dataclasses
import os
import posixpath

import tensorflow as tf
from absl import logging

from albert_tf.config import (
    ConvertConfig,
    DataConfig,
    FinetuningConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.config.task import (
    MULTIPLE_CHOICE,
    FinetuningDataConfig,
    FinetuningTrainingConfig,
)
from albert_tf.errors import UserError
from albert_tf.interop import formats, hugging_face
from albert_tf.interop.formats import HUGGING_FACE, RUN
from albert_tf.interop.hugging_face_config import NULL_THRESHOLD
from albert_tf.interop.verify import verify
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.io.files import (
    PARTIAL_SUFFIX,
    is_remote,
    remove_directory,
    write_json,
)
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.runs.checkpoint_files import CHECKPOINTS_DIR, write_checkpoint
from albert_tf.runs.directory import NULL_THRESHOLD_FILE, write_config


def convert(config: ConvertConfig) -> None:
    """Reads the model at `from_` and writes it to `to`, or writes nothing.

    1. Check the paths and choose the format to write.
    2. Read the model and check it; print a summary.
    3. Write it to a temporary directory next to `to`.
    4. With `verify`, read that directory and compare it with the model.
    5. Rename the directory to `to`.

    Raises:
        UserError: If there is no model at `from_`, if it is damaged or does
            not match its architecture, if the target format cannot hold it,
            or if `to` already has content.
    """
    config.require("from_", "to")
    target = config.to.rstrip("/")
    if os.path.islink(target):
        target = os.path.realpath(target)  # the rename must not replace a link
    partial = target + PARTIAL_SUFFIX
    _check_target_is_empty(target)
    _check_apart(config.from_, partial)
    source_format = formats.find_format(config.from_)
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

    weights = formats.read_weights(config.from_, config.checkpoint_step)
    if config.num_choices:
        # transformers does not store it, and the weights score any number.
        head, is_foreign = weights.head, source_format == HUGGING_FACE
        if not is_foreign or head is None or head.kind != MULTIPLE_CHOICE:
            raise UserError(
                "num_choices must be omitted unless --from is a "
                "multiple-choice model of Hugging Face",
                received=f"{config.num_choices} and {config.from_}",
            )
        head = dataclasses.replace(head, num_choices=config.num_choices)
        weights = dataclasses.replace(weights, head=head)
    print(describe(weights, source_format))
    if not weights.vocabulary:
        logging.warning(
            "%s has no vocabulary, so %s will have none", config.from_, target
        )
    elif target_format == RUN and weights.do_lower_case is False:
        logging.warning(
            "%s will not record that its vocabulary keeps upper case: exports "
            "and fine-tuned models of it will convert text to lower case. "
            "Fine-tune with --init_checkpoint=%s instead",
            target,
            config.from_,
        )

    remove_directory(partial)
    try:
        if target_format == RUN:
            write_run(weights, partial, target)
        else:
            hugging_face.write(
                weights,
                partial,
                config.licence,
                config.with_sentence_head,
                config.weights_dtype,
            )
        if config.verify:
            print(verify(weights, partial, config.weights_dtype))
        # A second check: another process may have written to the target since.
        _check_target_is_empty(target)
        remove_directory(target)
        tf.io.gfile.rename(partial, target)
    except BaseException:
        remove_directory(partial)
        raise
    logging.info("wrote %s (%s)", target, target_format)


def describe(weights: ModelWeights, source_format: str) -> str:
    """Summarises a model in lines of text: step, architecture, sizes."""
    config, objective = weights.config, weights.sentence_objective
    vocabulary = posixpath.basename(weights.vocabulary) or "file unknown"
    moments = len(weights.slots) // 2
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
    """Writes a run directory with one checkpoint.

    All settings except the architecture and `ModelWeights.settings` are
    defaults. The run can be evaluated, exported and used as
    `--init_checkpoint`; its training cannot be resumed.

    Args:
        directory: A new directory.
        run_dir: The final path of the directory, after the rename.
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


def _check_target_is_empty(target: str) -> None:
    if tf.io.gfile.exists(target) and (
        not tf.io.gfile.isdir(target) or tf.io.gfile.listdir(target)
    ):
        raise UserError(
            "--to must be new, or an empty directory",
            received=f"{target}, which exists",
            remedy="Choose another path, or remove it.",
        )


def _check_apart(source: str, partial: str) -> None:
    """Refuses a source inside the directory that a conversion removes."""
    source, partial = (
        path if is_remote(path) else os.path.realpath(path)
        for path in (source, partial)
    )
    if f"{source}/".startswith(f"{partial}/"):
        raise UserError(
            f"--from must be outside {partial}, the temporary directory of "
            "this conversion",
            received=source,
            remedy="Choose another --to.",
        )
