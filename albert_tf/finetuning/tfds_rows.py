"""Reads rows from TensorFlow Datasets, e.g. glue/mrpc, squad/v2.0, race/high.

In albert_tf, only this module needs TensorFlow Datasets. It imports the package
when a function uses it.
"""

from typing import Any

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.example_types import ExampleSet
from albert_tf.finetuning.tables import Row, check_columns
from albert_tf.finetuning.tasks import Columns


def list_splits(config: TaskConfig) -> list[str]:
    """The names of the splits of the dataset `config.tfds`.

    Raises:
        UserError: If TensorFlow Datasets is not installed, or the dataset
            does not exist.
    """
    return sorted(_prepare(config).info.splits)


def read_tfds(
    examples: ExampleSet, config: TaskConfig, columns: Columns
) -> list[Row]:
    """Reads the split `examples.source`, a name `dataset:split`.

    A label is the name of its class; or its number, if the labels of the task
    are numbers.

    Raises:
        UserError: If TensorFlow Datasets is not installed, or the dataset,
            split or a feature does not exist.
    """
    builder = _prepare(config)
    split = examples.source.removeprefix(f"{config.tfds}:")
    if split not in builder.info.splits:
        raise UserError(
            f"{config.tfds} must have the split {split}",
            received=", ".join(sorted(builder.info.splits)),
            remedy="Omit --tfds, and give files.",
        )
    import tensorflow_datasets as tfds

    elements = builder.as_dataset(
        split=split,
        # One file after another, so that the order is always the same.
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    features = builder.info.features
    check_columns(examples, columns, sorted(features))
    has_numbers = examples.task.labels[:1] == ("0",)
    rows = []
    for number, element in enumerate(tfds.as_numpy(elements)):
        values = {name: _plain(value) for name, value in element.items()}
        for name, feature in features.items():
            # Sets without labels have -1 instead.
            if isinstance(feature, tfds.features.ClassLabel):
                label = values[name]
                is_named = label >= 0 and not has_numbers
                values[name] = feature.int2str(label) if is_named else label
        rows.append(Row(f"example {number}", values, number))
    return rows


def _prepare(config: TaskConfig) -> Any:
    """The builder of a dataset that is prepared."""
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError:
        raise UserError(
            "--tfds needs TensorFlow Datasets",
            received="no module named tensorflow_datasets",
            remedy="pip install -e '.[tfds]'.",
        ) from None
    try:
        builder = tfds.builder(
            config.tfds, data_dir=config.tfds_data_dir or None
        )
        builder.download_and_prepare()
    except Exception as error:  # of the name, the network, the disk
        raise UserError(
            f"{config.tfds} must be a dataset of TensorFlow Datasets that is "
            "prepared or downloadable",
            received=f"{type(error).__name__}: {error}",
            remedy="Prepare it on a machine with network access, and pass its "
            "directory as --tfds_data_dir.",
        ) from error
    return builder


def _plain(value: Any) -> Any:
    """NumPy's values as text, numbers, lists and dictionaries."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if hasattr(value, "to_list"):  # of a ragged tensor
        value = value.to_list()
    if hasattr(value, "tolist"):  # an array or a number
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
