"""The shards of a build: names, content, writing them, describing them."""

import dataclasses
import json
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from absl import logging

from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.tfrecord import TFRecordWriter
from albert_tf.records.features import METADATA_FILE, RecordsMetadata
from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder.examples import EVAL, TRAIN, UnmaskedExamples
from data_prep.builder.records import make_records
from data_prep.config import RecordsConfig

# Directory of notes on the content of the shards that an unfinished build has
# written.
NOTES_DIR = "unfinished"

# The meaning of label 1, by sentence objective.
_LABELLED = {
    "sop": "with swapped segments",
    "nsp": "with a random second segment",
}


class Shard(NamedTuple):
    """A file of records of a split, TRAIN or EVAL."""

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


def describe_split(
    config: RecordsConfig,
    split: str,
    built: BuiltRecords,
    tokenizer: Tokenizer,
    inputs_sha256: str,
) -> RecordsMetadata:
    """Returns the metadata of one split."""
    config = settings_of_split(split, config)
    is_packed = config.packing != "none"
    records = "rows" if is_packed else "examples"
    counts = built.count(split)
    shards = {
        shard.name: result
        for shard, result in sorted(built.shards.items())
        if shard.split == split
    }
    return RecordsMetadata(
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=config.max_predictions_per_seq,
        vocab_size=tokenizer.vocab_size,
        vocabulary_sha256=tokenizer.sha256,
        vocabulary_kind=tokenizer.kind,
        do_lower_case=config.do_lower_case,
        sentence_objective=config.sentence_objective,
        masking=config.masking,
        masked_lm_prob=config.masked_lm_prob,
        ngram=config.ngram,
        short_seq_prob=config.short_seq_prob,
        dupe_factor=config.dupe_factor,
        seed=config.seed,
        num_documents=counts["documents"],
        num_duplicate_documents=built.duplicates[split],
        num_examples=counts["examples"],
        num_pieces=counts["pieces"],
        num_masked=counts["masked"],
        unigram_entropy_nats=unigram_entropy(built.piece_counts),
        shards={n: r.counts.get(records, 0) for n, r in shards.items()},
        checksums={name: result.sha256 for name, result in shards.items()},
        skipped=dict(sorted(built.skipped.items())),
        inputs_sha256=inputs_sha256,
        packing=config.packing,
        max_examples_per_row=config.max_examples_per_row if is_packed else 1,
        num_rows=counts[records],
    )


def unigram_entropy(piece_counts: np.ndarray) -> float:
    """Returns the entropy of the ordinary pieces, in nats.

    Args:
        piece_counts: int64, `(vocab_size,)`; those of special pieces are
            ignored.
    """
    counts = piece_counts[FIRST_ORDINARY_ID:]
    probabilities = counts[counts > 0] / max(1, counts.sum())
    return float(-(probabilities * np.log(probabilities)).sum())


def log_summary(
    split_dir: str, metadata: RecordsMetadata, num_labelled: int
) -> None:
    """Logs counts of a split, of which `num_labelled` examples have label 1."""
    records = ""
    if metadata.packing != "none":
        records = f" packed into {metadata.num_rows} records"
    labelled = ""
    if meaning := _LABELLED.get(metadata.sentence_objective):
        fraction = num_labelled / metadata.num_examples
        labelled = f", {100 * fraction:.1f} % of the examples {meaning}"
    logging.info(
        "%s: %d documents (%d of them duplicates), %d examples%s; %.1f %% of "
        "the positions filled, %.1f %% of the tokens masked%s; unigram entropy "
        "%.3f nats; skipped or split: %s",
        split_dir,
        metadata.num_documents,
        metadata.num_duplicate_documents,
        metadata.num_examples,
        records,
        100 * metadata.fill,
        100 * metadata.num_masked / metadata.num_pieces,
        labelled,
        metadata.unigram_entropy_nats,
        join_counts(metadata.skipped) or "nothing",
    )


def join_counts(counts: Mapping[str, int]) -> str:
    """Formats counts for messages; an empty string if there are none."""
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _note_path(shard: Shard, output_dir: str) -> str:
    return posixpath.join(output_dir, NOTES_DIR, shard.name + ".json")
