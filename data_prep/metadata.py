"""The metadata of a build, and warnings of its text and vocabulary."""

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np

from albert_tf.records.features import UNK_ID, RecordsMetadata, sha256_of
from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import Tokenizer
from data_prep.config import RecordsConfig
from data_prep.segments import DOCUMENTS, SENTENCES, SINGLE, TOKENS
from data_prep.shards import Shard, ShardResult, settings_of_split

# Largest usual fractions; see `judge_use`.
_USUAL = {
    "unknown": (0.01, "tokens are <unk>"),
    "bytes": (0.05, "tokens are bytes of characters without a piece"),
    "unused": (0.15, "pieces are never used"),
    "capitals": (0.01, "pieces have capitals, which lower-cased text has not"),
}
# "unused" is judged if the text has this many tokens for each piece.
_TOKENS_PER_PIECE = 100
# Of the documents, and tokens; see `judge_form`.
_USUAL_SINGLE, _USUAL_LENGTH = 0.5, 100


@dataclasses.dataclass
class BuiltRecords:
    """The result of a build.

    Attributes:
        piece_counts: int64, `(vocab_size,)`, occurrences in the text.
        skipped: Number of skipped lines, chunks and documents, by reason.
        num_examples: By split, with the examples of duplicate documents.
        text_form: See `RecordsMetadata`.
        duplicates: Number of documents that equal an earlier one, by split.
        shards: Content of each shard.
    """

    piece_counts: np.ndarray
    skipped: Counter[str]
    num_examples: Counter[str]
    text_form: dict[str, int]
    duplicates: Counter[str] = dataclasses.field(default_factory=Counter)
    shards: dict[Shard, ShardResult] = dataclasses.field(default_factory=dict)


def describe_split(
    config: RecordsConfig,
    split: str,
    built: BuiltRecords,
    tokenizer: Tokenizer,
    inputs_sha256: str,
    labels: str = "",
) -> RecordsMetadata:
    """Returns the metadata of one split; `labels` is the file of labels."""
    config = settings_of_split(split, config)
    shards = {
        shard.name: result
        for shard, result in sorted(built.shards.items())
        if shard.split == split
    }
    counts: Counter[str] = Counter()
    for result in shards.values():
        counts.update(result.counts)
    settings = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(RecordsMetadata)
        if hasattr(config, field.name)
    }
    settings["do_lower_case"] = tokenizer.do_lower_case
    if config.packing == "none":
        settings["max_examples_per_row"] = 1
    return RecordsMetadata(
        **settings,
        vocab_size=tokenizer.vocab_size,
        vocabulary_sha256=tokenizer.sha256,
        vocabulary_kind=tokenizer.kind,
        num_documents=counts["documents"],
        num_duplicate_documents=built.duplicates[split],
        num_examples=counts["examples"],
        num_pieces=counts["pieces"],
        num_masked=counts["masked"],
        unigram_entropy_nats=unigram_entropy(built.piece_counts),
        shards={
            n: result.counts.get("rows", 0) for n, result in shards.items()
        },
        checksums={name: result.sha256 for name, result in shards.items()},
        skipped=dict(sorted(built.skipped.items())),
        inputs_sha256=inputs_sha256,
        num_rows=counts["rows"],
        vocabulary_use=measure_use(built.piece_counts, tokenizer),
        text_form=built.text_form,
        labels_sha256=sha256_of(labels.encode()) if labels else "",
    )


def judge_form(form: Mapping[str, int]) -> str:
    """Says what to do about text whose form defeats the objective, or ""."""
    single = form[SINGLE] / form[DOCUMENTS]
    length = form[TOKENS] / form[SENTENCES]
    if single <= _USUAL_SINGLE and length <= _USUAL_LENGTH:
        return ""
    return (
        f"{single:.0%} of the documents have one sentence (usual: up to "
        f"{_USUAL_SINGLE:.0%}), and a sentence has {length:.0f} tokens (usual: "
        f"up to {_USUAL_LENGTH}). If a line is a paragraph, set "
        "--sentence_breaker=sentencex and --language; if a blank line follows "
        "each line, remove it; else set --sentence_objective=none."
    )


def unigram_entropy(piece_counts: np.ndarray) -> float:
    """Returns the entropy in nats of the pieces without the special ones."""
    counts = piece_counts[FIRST_ORDINARY_ID:]
    probabilities = counts[counts > 0] / max(1, counts.sum())
    return float(-(probabilities * np.log(probabilities)).sum())


def measure_use(
    piece_counts: np.ndarray, tokenizer: Tokenizer
) -> dict[str, float]:
    """Returns `RecordsMetadata.vocabulary_use`; see `judge_use`."""
    num_tokens = max(1, int(piece_counts.sum()))
    is_byte = tokenizer.words.is_byte
    ordinary = piece_counts[FIRST_ORDINARY_ID:][~is_byte[FIRST_ORDINARY_ID:]]
    return {
        "unknown": int(piece_counts[UNK_ID]) / num_tokens,
        "bytes": int(piece_counts[is_byte].sum()) / num_tokens,
        "unused": int((ordinary == 0).sum()) / max(1, len(ordinary)),
    }


def judge_use(piece_counts: np.ndarray, tokenizer: Tokenizer) -> str:
    """Describes what shows that a vocabulary does not suit a text, or "".

    Args:
        piece_counts: int64, `(vocab_size,)`, occurrences in the text.
    """
    use = measure_use(piece_counts, tokenizer)
    if piece_counts.sum() < _TOKENS_PER_PIECE * tokenizer.vocab_size:
        use["unused"] = 0.0
    if tokenizer.do_lower_case:
        ordinary = np.flatnonzero(~tokenizer.words.is_byte)[FIRST_ORDINARY_ID:]
        pieces = [tokenizer.id_to_piece(i) for i in ordinary.tolist()]
        capitals = sum(piece != piece.lower() for piece in pieces)
        use["capitals"] = capitals / len(pieces)
    return "; ".join(
        f"{fraction:.1%} of the {_USUAL[name][1]} (usual: up to "
        f"{_USUAL[name][0]:.0%})"
        for name, fraction in use.items()
        if fraction > _USUAL[name][0]
    )
