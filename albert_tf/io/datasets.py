"""Reads prepared or downloadable datasets of TensorFlow Datasets."""

from collections.abc import Iterator, Mapping
from typing import Any

from albert_tf.errors import UserError, first_line
from albert_tf.io import faults


def open_dataset(name: str) -> Any:
    """Returns the builder of a dataset, which it downloads if necessary.

    Raises:
        UserError: If the dataset does not exist, or cannot be downloaded.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name)
        builder.download_and_prepare()
    except Exception as error:  # of the name, the network, the disk
        raise UserError(
            "tfds must name a dataset of TensorFlow Datasets that is prepared "
            "or downloadable",
            received=f"{name}, {type(error).__name__}: {first_line(error)}",
            remedy="Prepare it on a machine with network access, and set the "
            "environment variable TFDS_DATA_DIR to its directory.",
        ) from error
    return builder


def read_elements(builder: Any, split: str) -> Iterator[Mapping[str, Any]]:
    """Yields the elements of a split as NumPy values, always in one order."""
    import tensorflow_datasets as tfds

    one_file_after_another = tfds.ReadConfig(interleave_cycle_length=1)
    elements = builder.as_dataset(
        split=split, read_config=one_file_after_another
    )
    try:
        yield from tfds.as_numpy(elements)
    except Exception as error:
        if faults.explain(error) is not None:  # of the file system
            raise
        raise UserError(
            f"{split} of {builder.info.full_name} must be readable",
            received=first_line(error),
            remedy="Prepare the dataset again: its files are damaged or "
            "incomplete.",
        ) from error
