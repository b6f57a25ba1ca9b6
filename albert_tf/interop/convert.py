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
from albert_tf.interop import formats, hugging_face, hugging_face_check
from albert_tf.interop.formats import HUGGING_FACE, RUN
from albert_tf.interop.hugging_face_config import (
    DEFAULT_NUM_CHOICES,
    NULL_THRESHOLD,
)
from albert_tf.interop.hugging_face_tokenizer import is_cased
from albert_tf.interop.model_weights import ModelWeights
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
    target_format = _choose_format(config.to_format, source_format)
    if config.weights_dtype != "float32" and target_format != HUGGING_FACE:
        raise UserError(
            "weights_dtype must be float32 unless the command writes a Hugging "
            "Face folder",
            received=config.weights_dtype,
            remedy="Add --to_format=hugging_face.",
        )

    weights = formats.read_weights(config.from_, config.checkpoint_step)
    weights = _with_num_choices(weights, config, source_format)
    weights = weights.rounded(config.weights_dtype)
    print(describe(weights, source_format))
    if not weights.vocabulary:
        logging.warning(
            "%s has no vocabulary, so %s will have none", config.from_, target
        )
    elif source_format == HUGGING_FACE and is_cased(
        config.from_, weights.vocabulary
    ):
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
            run_dir, _ = formats.split_run(config.from_.rstrip("/"))
            hugging_face.write(
                weights,
                partial,
                run_dir if source_format == RUN else "",
                config.licence,
                config.with_sentence_head,
                config.weights_dtype,
            )
        if config.verify:
            print(verify(weights, partial, target_format))
        # A second check: another process may have written to the target since.
        _check_target_is_empty(target)
        remove_directory(target)
        tf.io.gfile.rename(partial, target)
    except BaseException:
        remove_directory(partial)
        raise
    logging.info("wrote %s (%s)", target, target_format)


def _choose_format(to_format: str, source_format: str) -> str:
    if to_format == "auto":
        return HUGGING_FACE if source_format == RUN else RUN
    if source_format == to_format == RUN:
        raise UserError(
            "--to_format must be hugging_face if --from is a run",
            received=RUN,
            remedy="To copy a run, copy its directory.",
        )
    return to_format


def _with_num_choices(
    weights: ModelWeights, config: ConvertConfig, source_format: str
) -> ModelWeights:
    """The model with the number of choices of the settings, if it needs it.

    The weights score any number of choices. transformers does not store it.
    """
    head = weights.head
    is_foreign = source_format == HUGGING_FACE
    has_choices = is_foreign and head and head.kind == MULTIPLE_CHOICE
    if config.num_choices:
        if head is None or not has_choices:
            raise UserError(
                "num_choices must be omitted unless --from is a "
                "multiple-choice model of Hugging Face",
                received=f"{config.num_choices} and {config.from_}",
            )
        head = dataclasses.replace(head, num_choices=config.num_choices)
        return dataclasses.replace(weights, head=head)
    if has_choices and not hugging_face.knows_num_choices(config.from_):
        logging.warning(
            "%s does not store the number of choices of a question: an export "
            "of %s will take %d. Set --num_choices for another number",
            config.from_,
            config.to,
            DEFAULT_NUM_CHOICES,
        )
    return weights


def describe(weights: ModelWeights, source_format: str) -> str:
    """Summarises a model in lines of text: step, architecture, sizes."""
    config = weights.config
    moments = len(weights.slots) // 2
    properties = {
        "read": f"{weights.source} ({source_format})",
        "step": f"{weights.step:,}" if weights.step else "unknown",
        "layers": f"{config.num_hidden_layers}, groups "
        f"{config.num_hidden_groups}, inner groups {config.inner_group_num}, "
        f"sharing {config.parameter_sharing}",
        "widths": f"hidden {config.hidden_size}, embedding "
        f"{config.embedding_size}, feed-forward {config.intermediate_size}, "
        f"{config.num_attention_heads} heads",
        "vocabulary": f"{config.vocab_size:,} pieces, "
        f"{posixpath.basename(weights.vocabulary) or 'file unknown'}",
        **(
            {"task": weights.head.kind}
            if weights.head
            else {"sentence objective": weights.sentence_objective}
        ),
        "variables": f"{len(weights.values)}, with "
        f"{weights.num_parameters:,} parameters",
        "moments": f"of {moments} variables" if moments else "none",
    }
    return "\n".join(f"{name:<20}{value}" for name, value in properties.items())


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


# Facts about a model, apart from its arrays, that each format stores.
_FACTS_KEPT = {
    RUN: ("config", "sentence_objective", "step", "head"),
    HUGGING_FACE: ("head",),
}


def verify(weights: ModelWeights, directory: str, target_format: str) -> str:
    """Reads a written model and compares it with the model it was made from.

    For a Hugging Face folder, also compares the outputs of transformers with
    those of this project.

    Args:
        weights: The model that was read.
        directory: The model that was written.
        target_format: Its format.

    Returns:
        The result, as lines of text.

    Raises:
        UserError: If the models differ.
    """
    expected = weights if target_format == RUN else weights.regrouped()
    written = formats.read_weights(directory)
    arrays = {**expected.values, **expected.slots}
    found = {**written.values, **written.slots}
    if target_format == HUGGING_FACE:
        # The format has no moments, and the folder may have no sentence head.
        arrays = {name: arrays[name] for name in arrays if name in found}
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
        differences = hugging_face_check.verify(written, directory)
        lines += [
            f"largest difference of {name}: {difference:.2g}"
            for name, difference in differences.items()
        ]
    return "\n".join(lines)


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
