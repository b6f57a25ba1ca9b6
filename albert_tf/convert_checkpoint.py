r"""Converts models: runs, google-research/albert, Hugging Face.

    python -m albert_tf.convert_checkpoint \
      --from=albert_base_v2.tar.gz --to=build/albert_base_v2

    python -m albert_tf.convert_checkpoint \
      --from=build/demo/run --to=build/demo/published

    python -m albert_tf.convert_checkpoint --from=build/demo/run/best \
      --to=build/demo/hugging_face --to_format=hugging_face --verify

What each format is, and what goes along, stands in albert_tf/CONVERTING.md.
Nothing is written before all has been read and checked, and `--to` is there
only when it is whole.
"""

import os
import posixpath

import tensorflow as tf
from absl import logging

from albert_tf.config import (
    ConvertConfig,
    DataConfig,
    PretrainingConfig,
    TrainingConfig,
    flags,
)
from albert_tf.errors import UserError
from albert_tf.interop import (
    formats,
    google_albert,
    hugging_face,
    hugging_face_check,
)
from albert_tf.interop.formats import HUGGING_FACE, PUBLISHED, RUN
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.io.files import PARTIAL_SUFFIX, is_remote, remove_directory
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.runs import checkpoints
from albert_tf.runs import directory as run_directory


def convert(config: ConvertConfig) -> None:
    """Reads a model and writes it anew, whole or not at all.

    Raises:
        UserError: If there is no model, if it is damaged or not what its
            architecture says, if the other format cannot hold it, or if there
            is something at `to`.
    """
    config.require("from_", "to")
    target = config.to.rstrip("/")
    if os.path.islink(target):
        target = os.path.realpath(target)  # what is renamed is no link
    partial = target + PARTIAL_SUFFIX
    _check_new(target)
    _check_apart(config.from_, partial)
    source_format = formats.find_format(config.from_)
    target_format = config.to_format
    if target_format == "auto":
        target_format = PUBLISHED if source_format == RUN else RUN
    if source_format == target_format == RUN:
        raise UserError(
            "--to_format must be another format where --from is a run",
            received=RUN,
            remedy="A run is copied as a directory.",
        )
    weights = formats.read_weights(config.from_, config.checkpoint_step)
    print(describe(weights, source_format))
    if not weights.vocabulary:
        logging.warning("%s has no vocabulary, and none goes along", target)

    remove_directory(partial)
    try:
        if target_format == RUN:
            write_run(weights, partial, target)
        elif target_format == PUBLISHED:
            google_albert.write(weights, partial)
        else:
            hugging_face.write(
                weights,
                partial,
                formats.split_run(config.from_.rstrip("/"))[0]
                if source_format == RUN
                else "",
                config.licence,
                config.with_sentence_head,
            )
        if config.verify:
            print(verify(weights, partial, target_format))
        _check_new(target)  # still: another may have written it meanwhile
        remove_directory(target)  # an empty one
        tf.io.gfile.rename(partial, target)
    except BaseException:
        remove_directory(partial)
        raise
    logging.info("wrote %s (%s)", target, target_format)


def describe(weights: ModelWeights, source_format: str) -> str:
    """What was read, as lines of text."""
    config = weights.config
    moments = len(weights.slots) // 2
    figures = {
        "read": f"{weights.source} ({source_format})",
        "step": f"{weights.step:,}" if weights.step else "unknown",
        "layers": f"{config.num_hidden_layers}, groups "
        f"{config.num_hidden_groups}, inner groups {config.inner_group_num}, "
        f"sharing {config.parameter_sharing}",
        "widths": f"hidden {config.hidden_size}, embedding "
        f"{config.embedding_size}, feed-forward {config.intermediate_size}, "
        f"{config.num_attention_heads} heads",
        "vocabulary": f"{config.vocab_size:,} pieces, "
        f"{posixpath.basename(weights.vocabulary) or 'their file unknown'}",
        "sentence objective": weights.sentence_objective,
        "variables": f"{len(weights.values)}, with "
        f"{weights.num_parameters:,} parameters",
        "moments": f"of {moments} variables" if moments else "none",
    }
    return "\n".join(f"{name:<20}{value}" for name, value in figures.items())


def write_run(weights: ModelWeights, directory: str, run_dir: str) -> None:
    """Writes the directory of a run with one checkpoint.

    Its settings but for the architecture are the defaults: it can be evaluated,
    exported and begun from, and is no run that goes on.

    Args:
        weights: The model.
        directory: A new one.
        run_dir: Its later name.
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
    run_directory.write_config(directory, config)
    if weights.vocabulary:
        tf.io.gfile.copy(
            weights.vocabulary, posixpath.join(directory, TOKENIZER_FILE)
        )
    checkpoints.write_checkpoint(
        posixpath.join(
            directory, run_directory.CHECKPOINTS_DIR, f"step-{weights.step:08d}"
        ),
        weights.step,
        {},
        {**weights.values, **weights.slots},
    )


def verify(weights: ModelWeights, directory: str, target_format: str) -> str:
    """Reads what was written, and compares it with the model that was read.

    Of a Hugging Face folder it also compares what transformers answers.

    Args:
        weights: The model that was read.
        directory: What was written of it.
        target_format: The format of that.

    Returns:
        What was found, as lines of text.

    Raises:
        UserError: If it is another model.
    """
    wanted = weights if target_format == RUN else weights.regrouped()
    written = formats.read_weights(directory)
    arrays = {**wanted.values, **wanted.slots}
    found = {**written.values, **written.slots}
    differing = []
    if target_format == HUGGING_FACE:
        # Which has no place for moments, and may leave heads out.
        arrays = {name: arrays[name] for name in arrays if name in found}
    else:
        differing = [
            name
            for name in ("config", "step")
            if getattr(wanted, name) != getattr(written, name)
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
            f"what was written to {directory} must be what was read",
            received=f"others of {', '.join(sorted(differing)[:5])}",
        )
    lines = [f"all bits of {len(arrays)} arrays are the same"]
    if target_format == HUGGING_FACE:
        differences = hugging_face_check.verify(written, directory)
        lines += [
            f"largest difference of {name}: {difference:.2g}"
            for name, difference in differences.items()
        ]
    return "\n".join(lines)


def _check_new(target: str) -> None:
    if tf.io.gfile.exists(target) and (
        not tf.io.gfile.isdir(target) or tf.io.gfile.listdir(target)
    ):
        raise UserError(
            "--to must be new, or an empty directory",
            received=f"{target}, which is there",
            remedy="Choose another, or remove it.",
        )


def _check_apart(source: str, partial: str) -> None:
    """Refuses to read what is removed before a new model is written."""
    source, partial = (
        path if is_remote(path) else os.path.realpath(path)
        for path in (source, partial)
    )
    if f"{source}/".startswith(f"{partial}/"):
        raise UserError(
            f"--from must be another directory than {partial}, where a model "
            "is written until it is whole",
            received=source,
            remedy="Choose another --to.",
        )


if __name__ == "__main__":
    flags.run(convert, ConvertConfig)
