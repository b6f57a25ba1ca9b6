"""The shards of a build: their names, how each is written, what they hold."""

import dataclasses
import json
import posixpath
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from albert_tf.io import files
from albert_tf.io.tfrecord import TFRecordWriter
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder.examples import EVAL, TRAIN
from data_prep.builder.records import make_records
from data_prep.builder.rows import Rows
from data_prep.config import RecordsConfig

# Where an unfinished build notes what finished shards hold.
NOTES_DIR = "unfinished"


class Shard(NamedTuple):
    """A file of records.

    Attributes:
        split: TRAIN or EVAL.
        path: The file.
    """

    split: str
    path: str

    @property
    def name(self) -> str:
        """File name, e.g. "train-00000-of-00016.tfrecord"."""
        return posixpath.basename(self.path)


class ShardResult(NamedTuple):
    """What a shard holds.

    Attributes:
        sha256: Hexadecimal digest of the file.
        counts: See `records.make_records`.
    """

    sha256: str
    counts: dict[str, int]


@dataclasses.dataclass
class BuiltRecords:
    """What a build found and wrote.

    Attributes:
        piece_counts: int64, `(vocab_size,)`, occurrences in the text.
        skipped: Counts of what was left out, by reason.
        duplicates: By split, documents equal to another, beyond the first.
        shards: What each shard holds.
    """

    piece_counts: np.ndarray
    skipped: Counter[str]
    duplicates: Counter[str] = dataclasses.field(default_factory=Counter)
    shards: dict[Shard, ShardResult] = dataclasses.field(default_factory=dict)

    def count(self, split: str) -> Counter[str]:
        """What the shards of a split hold, see `records.make_records`."""
        counts: Counter[str] = Counter()
        for shard, result in self.shards.items():
            if shard.split == split:
                counts.update(result.counts)
        return counts


def list_shards(config: RecordsConfig) -> list[Shard]:
    """All shards of a build; a shard's number is its place here."""
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
    """The number of the shard of each row of a split; int64, `(rows,)`."""
    own = [i for i, shard in enumerate(shards) if shard.split == split]
    return own[0] + (keys % np.uint64(len(own))).astype(np.int64)


def choose_masking(split: str, config: RecordsConfig) -> str:
    """When a split is masked: what is evaluated must be masked once."""
    return config.masking if split == TRAIN else "static"


def find_finished(shard: Shard, output_dir: str) -> ShardResult | None:
    """What a shard holds that an interrupted build has left; None if none."""
    result = files.load_json_if_any(_note_path(shard, output_dir))
    if result is None or not files.exists(shard.path):
        return None
    return ShardResult(**result)


def write_shard(
    shard: Shard,
    parts: Iterable[Rows],
    tokenizer: Tokenizer,
    config: RecordsConfig,
) -> ShardResult:
    """Writes a shard whole, and a note for `find_finished`.

    Args:
        shard: Which one.
        parts: Its rows, in order.
        tokenizer: The vocabulary.
        config: How records are to be.
    """
    counts: Counter[str] = Counter()
    masking = choose_masking(shard.split, config)
    records = make_records(parts, tokenizer, config, masking, counts)
    with files.atomic_write(shard.path) as file:
        with TFRecordWriter(file) as writer:
            for record in records:
                writer.write(record)
        result = ShardResult(writer.sha256(), dict(counts))
        # Before the shard has its name, so that none is without a note.
        files.write_text(
            _note_path(shard, config.output_dir), json.dumps(result._asdict())
        )
    return result


def _note_path(shard: Shard, output_dir: str) -> str:
    return posixpath.join(output_dir, NOTES_DIR, shard.name + ".json")
