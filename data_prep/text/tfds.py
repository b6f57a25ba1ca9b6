"""Reads documents from TensorFlow Datasets; each element is a document."""

import dataclasses
import hashlib
from collections.abc import Iterator

import numpy as np

from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.datasets import open_dataset, read_elements
from data_prep.config import CorpusConfig
from data_prep.text.sources import (
    SKIPPED_TEXTS,
    OnBytes,
    Skipped,
    decode,
    lines_of_text,
)


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """A split of a dataset or one shard of a split, as a `sources.Source`.

    Attributes:
        dataset: Full name, e.g. "wikipedia/20230601.en/1.0.0".
        instruction: Read instruction, e.g. "train[2shard:3shard]".
        paths: Files of the split or shard.
        num_bytes: Size of the files.
    """

    dataset: str
    instruction: str
    paths: tuple[str, ...]
    num_bytes: int

    @property
    def name(self) -> str:
        """Name for messages, e.g. "wikipedia/20230601.en/1.0.0:train"."""
        return f"{self.dataset}:{self.instruction}"

    def check_and_digest(self, config: CorpusConfig, on_bytes: OnBytes) -> str:
        """Returns a digest of the files, whose content is not checked."""
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
        builder = open_dataset(config.tfds, config.tfds_data_dir)
        elements = read_elements(builder, self.instruction)
        total = max(1, builder.info.splits[self.instruction].num_examples)
        for number, element in enumerate(elements):
            where = f"element {number} of {self.name}"
            text = decode(
                element[config.text_field], where, "at byte offset", 0, config
            )
            if text is None:
                skipped[SKIPPED_TEXTS] += 1
            else:
                yield from lines_of_text(text, where, config, skipped)
            done, before = (
                self.num_bytes * n // total for n in (number + 1, number)
            )
            on_bytes(done - before)


def find_dataset(config: CorpusConfig) -> list[DatasetPart]:
    """Finds `tfds_split` of `tfds`, and prepares the dataset if necessary.

    A complete split gives one part per file.

    Raises:
        UserError: If the dataset, split or text feature does not exist.
    """
    info = open_dataset(config.tfds, config.tfds_data_dir).info
    split = config.tfds_split
    try:
        paths = [str(path) for path in info.splits[split].filepaths]
    except (KeyError, ValueError) as error:
        raise UserError(
            "tfds_split must be a split of the dataset",
            received=split,
            remedy=f"Its splits are {', '.join(info.splits)}. {error}",
        ) from None
    if (
        config.text_field not in info.features
        # TensorFlow Datasets declares strings as NumPy objects, kind "O".
        or np.dtype(info.features[config.text_field].np_dtype).kind != "O"
    ):
        raise UserError(
            f"text_field must be a text feature of {info.full_name}",
            received=config.text_field,
            remedy=f"Its features are {', '.join(info.features)}.",
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
            tuple(part_paths),
            sum(files.count_bytes(path) for path in part_paths),
        )
        for instruction, part_paths in parts
    ]
