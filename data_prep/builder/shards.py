"""The shards of a build: their names, their content, and writing them."""

import dataclasses
import json
import posixpath
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.tfrecord import TFRecordWriter
from albert_tf.records.features import METADATA_FILE
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder.examples import EVAL, TRAIN
from data_prep.builder.records import make_records
from data_prep.builder.unmasked_examples import UnmaskedExamples
from data_prep.config import RecordsConfig

# Directory of notes on the content of the shards that an unfinished build has
# written.
NOTES_DIR = "unfinished"


class Shard(NamedTuple):
    """A file of records.

    Attributes:
        split: TRAIN or EVAL.

    Example:
        >>> Shard(TRAIN, "records/train/train-00000-of-00016.tfrecord").name
        'train-00000-of-00016.tfrecord'
    """

    split: str
    path: str

    @property
    def name(self) -> str:
        """File name, e.g. "train-00000-of-00016.tfrecord"."""
        return posixpath.basename(self.path)


class ShardResult(NamedTuple):
    """The content of a shard.

    Attributes:
        sha256: Hexadecimal digest of the file.
        counts: Counts by name, see `records.make_records`.
    """

    sha256: str
    counts: dict[str, int]


@dataclasses.dataclass
class BuiltRecords:
    """The result of a build.

    Attributes:
        piece_counts: int64, `(vocab_size,)`, occurrences of each piece in the
            text.
        skipped: Number of skipped lines, chunks and documents, by reason.
        duplicates: Number of duplicate documents by split; the first of
            equal documents does not count.
        shards: Content of each shard.

    Example:
        >>> built = BuiltRecords(np.array([3, 4]), Counter())
        >>> for i in range(2):
        ...     shard = Shard(TRAIN, f"train-0000{i}-of-00002.tfrecord")
        ...     built.shards[shard] = ShardResult("e3b0c4", {"masked": 5})
        >>> built.count(TRAIN)
        Counter({'masked': 10})
    """

    piece_counts: np.ndarray
    skipped: Counter[str]
    duplicates: Counter[str] = dataclasses.field(default_factory=Counter)
    shards: dict[Shard, ShardResult] = dataclasses.field(default_factory=dict)

    def count(self, split: str) -> Counter[str]:
        """Returns sums over the shards of a split; see `make_records`."""
        counts: Counter[str] = Counter()
        for shard, result in self.shards.items():
            if shard.split == split:
                counts.update(result.counts)
        return counts


def list_shards(config: RecordsConfig) -> list[Shard]:
    """Returns all shards of a build; their order gives their numbers."""
    numbers = {TRAIN: config.num_shards}
    if config.holdout_fraction:
        numbers[EVAL] = config.num_eval_shards
    return [
        Shard(
            split,
            posixpath.join(
                config.output_dir,
                split,
                f"{split}-{i:05d}-of-{number:05d}.tfrecord",
            ),
        )
        for split, number in numbers.items()
        for i in range(number)
    ]


def choose_shards(
    shards: list[Shard], split: str, keys: np.ndarray
) -> np.ndarray:
    """Returns the shard numbers of examples of a split; int64, `(examples,)`.

    Args:
        shards: All shards of the build.
        split: TRAIN or EVAL.
        keys: uint64, `(examples,)`.
    """
    numbers = [i for i, shard in enumerate(shards) if shard.split == split]
    return numbers[0] + (keys % np.uint64(len(numbers))).astype(np.int64)


def settings_of_split(split: str, config: RecordsConfig) -> RecordsConfig:
    """Returns the settings of a split.

    Records of EVAL have one copy of the text, static masks and one example
    each, so that evaluations are comparable.
    """
    if split == TRAIN:
        return config
    return dataclasses.replace(
        config, dupe_factor=1, masking="static", packing="none"
    )


def find_finished(shard: Shard, output_dir: str) -> ShardResult | None:
    """Returns the content of a shard; None if it is not finished."""
    result = files.load_json_if_any(_note_path(shard, output_dir))
    if result is None or not files.exists(shard.path):
        return None
    return ShardResult(**result)


def write_shard(
    shard: Shard,
    parts: Iterable[UnmaskedExamples],
    tokenizer: Tokenizer,
    config: RecordsConfig,
    sha256: str,
) -> ShardResult:
    """Writes a shard atomically, and a note for `find_finished`.

    Args:
        parts: Unmasked examples of the shard, in order.
        sha256: Digest that the file must have, if known.

    Raises:
        UserError: If the file would have another digest.
    """
    counts: Counter[str] = Counter()
    settings = settings_of_split(shard.split, config)
    records = make_records(parts, tokenizer, settings, counts)
    with files.atomic_write(shard.path) as file:
        with TFRecordWriter(file) as writer:
            for record in records:
                writer.write(record)
        result = ShardResult(writer.sha256(), dict(counts))
        if sha256 not in ("", result.sha256):
            raise UserError(
                f"{shard.path} must have the SHA-256 of {METADATA_FILE}, "
                f"{sha256:.12}...",
                received=f"{result.sha256:.12}..., as these versions of "
                "libraries build it",
                remedy="Build it with the versions that built the others, or "
                "build all records again with --overwrite.",
            )
        # Before the shard is renamed, so that every shard has a note.
        files.write_text(
            _note_path(shard, config.output_dir), json.dumps(result._asdict())
        )
    return result


def _note_path(shard: Shard, output_dir: str) -> str:
    return posixpath.join(output_dir, NOTES_DIR, shard.name + ".json")
