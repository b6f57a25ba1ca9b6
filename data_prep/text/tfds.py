"""TensorFlow Datasets -> documents, one an element."""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from albert_tf.errors import UserError
from albert_tf.io import files
from data_prep.config import (
    CorpusConfig,
)
from data_prep.text.sources import OnBytes, Skipped, lines_of_text


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """A split of a dataset, or what one file holds of it.

    Attributes:
        dataset: Full name, e.g. "wikipedia/20230601.en/1.0.0".
        instruction: What of it is read, e.g. "train[2shard:3shard]".
        paths: The files in which it stands.
        num_bytes: Their size.
    """

    dataset: str
    instruction: str
    paths: tuple[str, ...]
    num_bytes: int

    @property
    def name(self) -> str:
        """As a person would name it."""
        return f"{self.dataset}:{self.instruction}"

    def check_and_digest(self, config: CorpusConfig, on_bytes: OnBytes) -> str:
        """See `corpus.check_and_digest`; the content is taken as sound."""
        del config
        digest = hashlib.sha256(self.instruction.encode())
        for path in self.paths:
            with files.open_existing(path, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    on_bytes(len(block))
        return digest.hexdigest()

    def read_texts(
        self,
        config: CorpusConfig,
        on_bytes: OnBytes,
        skipped: Skipped,
    ) -> Iterator[str]:
        """See `sources.Source`."""
        import tensorflow_datasets as tfds

        builder = _find_builder(config)
        elements = builder.as_dataset(
            split=self.instruction,
            # One file after another: the order must always be the same.
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
        total = max(1, builder.info.splits[self.instruction].num_examples)
        for number, element in enumerate(tfds.as_numpy(elements)):
            text = element[config.text_field].decode()
            where = f"element {number} of {self.name}"
            yield from lines_of_text(text, where, config, skipped)
            done, before = (
                self.num_bytes * n // total for n in (number + 1, number)
            )
            on_bytes(done - before)


def find_dataset(config: CorpusConfig) -> list[DatasetPart]:
    """What `tfds_split` of `tfds` holds, prepared first if need be.

    A whole split is a part for each of its files, so that Beam may read them
    side by side.

    Raises:
        UserError: If there is no such dataset, split or text feature.
    """
    builder = _find_builder(config)
    try:
        builder.download_and_prepare()
    except Exception as error:  # of many kinds: network, disk, the dataset's
        raise UserError(
            f"the dataset {config.tfds} must be there or be had",
            received=f"{type(error).__name__}: {error}",
            remedy="Prepare it where there is a network, and name its place "
            "by --tfds_data_dir.",
        ) from error
    info = builder.info
    split = config.tfds_split
    try:
        paths = [str(path) for path in info.splits[split].filepaths]
    except (KeyError, ValueError) as error:
        raise UserError(
            "tfds_split must be a split of the dataset",
            received=split,
            remedy=f"It has {', '.join(info.splits)}. {error}",
        ) from None
    if (
        config.text_field not in info.features
        # What a string is to NumPy.
        or np.dtype(info.features[config.text_field].np_dtype).kind != "O"
    ):
        raise UserError(
            f"text_field must be a feature of {info.full_name} that holds text",
            received=config.text_field,
            remedy=f"It has {', '.join(info.features)}.",
        )
    if split in info.splits:
        parts = [
            (f"{split}[{i}shard:{i + 1}shard]", [path])
            for i, path in enumerate(paths)
        ]
    else:
        parts = [(split, paths)]
    return [
        DatasetPart(
            info.full_name,
            instruction,
            tuple(own),
            sum(files.count_bytes(path) for path in own),
        )
        for instruction, own in parts
    ]


def _find_builder(config: CorpusConfig) -> Any:
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError:
        raise UserError(
            "--tfds needs TensorFlow Datasets",
            received="no module named tensorflow_datasets",
            remedy="pip install -e '.[tfds]'.",
        ) from None
    try:
        return tfds.builder(config.tfds, data_dir=config.tfds_data_dir or None)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise UserError(
            "tfds must be the name of a dataset of TensorFlow Datasets",
            received=config.tfds,
            remedy=str(error).strip().splitlines()[0],
        ) from None
