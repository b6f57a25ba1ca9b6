"""The metadata and the summary of a split of a build."""

import numpy as np
from absl import logging

from albert_tf.records.features import RecordsMetadata
from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder.directory import join_counts
from data_prep.builder.shards import BuiltRecords, settings_of_split
from data_prep.config import RecordsConfig

# The meaning of label 1, by sentence objective.
_LABELLED = {
    "sop": "with swapped segments",
    "nsp": "with a random second segment",
}


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

    Example:
        >>> round(unigram_entropy(np.array([9, 9, 9, 9, 9, 4, 4])), 3)
        0.693
    """
    counts = piece_counts[FIRST_ORDINARY_ID:]
    probabilities = counts[counts > 0] / max(1, counts.sum())
    return float(-(probabilities * np.log(probabilities)).sum())


def log_summary(
    split_dir: str, metadata: RecordsMetadata, num_labelled: int
) -> None:
    """Logs counts and fractions of a split.

    Args:
        num_labelled: Number of examples with label 1.
    """
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
