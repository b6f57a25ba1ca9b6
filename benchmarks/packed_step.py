r"""Measure the useful tokens per second of training on packed rows.

    python -m benchmarks.packed_step \
        --unpacked_dir=build/unpacked/train --packed_dir=build/packed/train \
        --python_keras_hub=venv-keras-hub/bin/python

Compares the step of this project on packed rows with the same step on unpacked
rows, and with the steps of other implementations, which pad their rows. The
records hold the same text. A useful token is one that is not padding. The
fraction of useful tokens is that of all records; the measured batch holds the
first records. All else is as in `benchmarks.train_step`.
"""

import dataclasses
import os
import statistics
import tempfile

import numpy as np
import tensorflow as tf

from albert_tf.config import SequenceConfig, flags, setting
from albert_tf.errors import UserError
from albert_tf.input.record_format import parse_records
from albert_tf.records.features import (
    RecordsMetadata,
    read_metadata,
    stored_features,
)
from benchmarks.train_step import ProcessesConfig, measure
from benchmarks.train_step_contenders import Work


@dataclasses.dataclass(frozen=True)
class PackedStepConfig(ProcessesConfig):
    """Records, batches and contenders."""

    unpacked_dir: str = setting("", "Directory of records without packing.")
    packed_dir: str = setting(
        "", "Directory of records of the same text, built with --packing."
    )
    rows: int = setting(2, "Number of rows in a batch.", at_least=1)
    precisions: tuple[str, ...] = setting(
        ("float32", "bfloat16"),
        "Number formats of the matrix products, comma-separated.",
    )
    dropout: float = setting(0.1, "Dropout rate.", at_least=0, below=1)
    contenders: tuple[str, ...] = setting(
        ("keras_hub", "hugging_face", "hugging_face_masked"),
        "Other implementations to measure, comma-separated.",
    )


def main(config: PackedStepConfig) -> None:
    """Measures and prints."""
    config.require("unpacked_dir", "packed_dir")
    directories = dict.fromkeys(
        ("albert_tf", *config.contenders), config.unpacked_dir
    )
    directories["albert_tf_packed"] = config.packed_dir
    metadata = {
        name: read_metadata(directory)
        for name, directory in directories.items()
    }
    _check_packing(config, metadata)
    print(
        "| precision | contender | examples per row | useful tokens "
        "| tokens/s | useful tokens/s | relative speed |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work_dir:
        works = {
            name: _make_work(
                config,
                directory,
                metadata[name],
                os.path.join(work_dir, f"{name}.npz"),
            )
            for name, directory in directories.items()
        }
        for precision in config.precisions:
            bfloat16 = precision == "bfloat16"
            measured = measure(
                config,
                {
                    name: dataclasses.replace(work, bfloat16=bfloat16)
                    for name, work in works.items()
                },
            )
            speeds = {
                name: works[name].batch
                * works[name].length
                / statistics.median(steps.seconds)
                for name, steps in measured.items()
            }
            of_unpacked = speeds["albert_tf"] * metadata["albert_tf"].fill
            for name, speed in speeds.items():
                records = metadata[name]
                useful = speed * records.fill
                print(
                    f"| {precision} | {name} "
                    f"| {records.num_examples / records.num_rows:.2f} "
                    f"| {records.fill:.1%} | {speed:,.0f} | {useful:,.0f} "
                    f"| {useful / of_unpacked:.2f} |",
                    flush=True,
                )


def _check_packing(
    config: PackedStepConfig, metadata: dict[str, RecordsMetadata]
) -> None:
    found = (
        metadata["albert_tf"].packing,
        metadata["albert_tf_packed"].packing,
    )
    if found[0] != "none" or found[1] == "none":
        raise UserError(
            "unpacked_dir must hold unpacked records, and packed_dir packed "
            "ones",
            received=f"packing {found[0]} in {config.unpacked_dir} and "
            f"{found[1]} in {config.packed_dir}",
        )


def _make_work(
    config: PackedStepConfig,
    directory: str,
    metadata: RecordsMetadata,
    batch_file: str,
) -> Work:
    """The step on the first records of a directory."""
    first_shard = os.path.join(directory, next(iter(metadata.shards)))
    (serialized,) = (
        tf.data.TFRecordDataset(first_shard).batch(config.rows).take(1)
    )
    features = stored_features(metadata.masking, metadata.packing)
    shape = SequenceConfig(
        max_seq_length=metadata.max_seq_length,
        max_predictions_per_seq=metadata.max_predictions_per_seq,
        packing=metadata.packing,
        # In the metadata of unpacked records it is 1, which `SequenceConfig`
        # refuses; it is not used here.
        max_examples_per_row=max(2, metadata.max_examples_per_row),
    )
    batch = parse_records(serialized, features, shape)
    np.savez(
        batch_file,
        **{name: values.numpy() for name, values in batch.items()},
    )
    return Work(
        batch=config.rows,
        length=metadata.max_seq_length,
        predictions=metadata.max_predictions_per_seq,
        bfloat16=False,
        dropout=config.dropout,
        threads=os.cpu_count() or 1,
        batch_file=batch_file,
    )


if __name__ == "__main__":
    flags.run(main, PackedStepConfig)
