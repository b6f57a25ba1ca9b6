"""Embeddings for the vocabulary of a run, from a model of another vocabulary.

Pieces are matched by spelling. The embedding of a piece that the model lacks
starts at the mean of the matched embeddings plus random initial values, and its
output bias at the mean of the matched biases. With zeros, new pieces would take
all the probability, since the scores of a trained model may all be far below
zero. With the mean, their probability is about their fraction of the
vocabulary.

Reference:
    J. Hewitt, "Initializing New Word Embeddings for Pretrained Language
    Models", 2021, https://nlp.stanford.edu/~johnhew/vocab-expansion.html.
"""

import itertools
import posixpath
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import RecordSet
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.io.files import open_existing
from albert_tf.io.tfrecord import read_records
from albert_tf.records import features
from albert_tf.records.tokenization import Tokenizer

# Number of records in which tokens are counted, for the report.
COUNTED_RECORDS = 1000


class KeptPieces(NamedTuple):
    """Pieces that are in both vocabularies.

    Attributes:
        run_ids: int64, `(kept,)`, their ids in the vocabulary of the run.
        model_ids: int64, `(kept,)`, their ids in the vocabulary of the model.
    """

    run_ids: np.ndarray
    model_ids: np.ndarray


def match_pieces(
    config: PretrainingConfig, weights: ModelWeights, records: RecordSet
) -> KeptPieces | None:
    """Matches the pieces of run and model; returns None if they are equal.

    If one vocabulary is unknown and the sizes are equal, the vocabularies are
    assumed to be equal, and a warning is logged.

    Raises:
        UserError: If a vocabulary is unknown and the sizes differ, or if a
            file holds another vocabulary than the model or the records.
    """
    model_file = vocabulary_of(config, weights)
    _check_given_vocabulary(weights, model_file)
    if not model_file or records.metadata is None:
        _check_unknown_vocabulary(config, weights, model_file)
        return None
    of_model = Tokenizer(model_file)
    if of_model.vocab_size != weights.config.vocab_size:
        raise UserError(
            f"{model_file} must be the vocabulary of "
            f"{config.initialization.init_checkpoint}",
            received=f"{of_model.vocab_size} pieces, and "
            f"{weights.config.vocab_size} in the model",
            remedy="Pass the vocabulary of the model as --init_vocabulary.",
        )
    if of_model.sha256 == records.metadata.vocabulary_sha256:
        return None
    of_run = _vocabulary_of_records(records, records.metadata)
    run_pieces, model_pieces = _pieces_of(of_run), _pieces_of(of_model)
    if run_pieces == model_pieces:
        return None
    model_ids = {piece: i for i, piece in enumerate(model_pieces)}
    pairs = [
        (i, model_ids[piece])
        for i, piece in enumerate(run_pieces)
        if piece in model_ids
    ]
    return KeptPieces(*np.array(pairs).T)


def vocabulary_of(config: PretrainingConfig, weights: ModelWeights) -> str:
    """Path of the SentencePiece model of a checkpoint, or ""."""
    return config.initialization.init_vocabulary or weights.vocabulary


def _check_given_vocabulary(weights: ModelWeights, model_file: str) -> None:
    """Refuses an `init_vocabulary` that differs from the checkpoint's own.

    A user may pass the vocabulary of the records by mistake. Embeddings would
    then be assigned to the wrong pieces.
    """
    if not weights.vocabulary or model_file == weights.vocabulary:
        return
    own, given = Tokenizer(weights.vocabulary), Tokenizer(model_file)
    if _pieces_of(own) != _pieces_of(given):
        raise UserError(
            "init_vocabulary must have the pieces of the vocabulary of "
            "init_checkpoint",
            received=f"{model_file}, and {weights.vocabulary}",
            remedy="Omit --init_vocabulary; the vocabulary of the run comes "
            "with its records.",
        )


def _check_unknown_vocabulary(
    config: PretrainingConfig, weights: ModelWeights, model_file: str
) -> None:
    source = config.initialization.init_checkpoint
    run_size, model_size = config.model.vocab_size, weights.config.vocab_size
    unknown = "the records" if model_file else source
    remedy = "Pass the vocabulary of the model as --init_vocabulary."
    if model_file:
        remedy = "Build the records with python -m data_prep.build_tfrecords."
    if run_size != model_size:
        raise UserError(
            "the vocabularies of init_checkpoint and of the records must be "
            "known if their sizes differ",
            received=f"{model_size} pieces in the model and {run_size} in the "
            f"run, and no vocabulary with {unknown}",
            remedy=remedy,
        )
    logging.warning(
        "THE VOCABULARY OF %s IS NOT KNOWN: its %d pieces are assumed to be "
        "those of %s. If they differ, the embeddings belong to wrong pieces. "
        "%s",
        unknown,
        model_size,
        source if model_file else "the records",
        remedy,
    )


def _vocabulary_of_records(
    records: RecordSet, metadata: features.RecordsMetadata
) -> Tokenizer:
    path = posixpath.join(records.directory, features.TOKENIZER_FILE)
    vocabulary = Tokenizer(path)
    if vocabulary.sha256 != metadata.vocabulary_sha256:
        raise UserError(
            f"{path} must be the vocabulary of the records next to it",
            received=f"SHA-256 {vocabulary.sha256}, and "
            f"{metadata.vocabulary_sha256} in {features.METADATA_FILE}",
            remedy="Build the records again.",
        )
    return vocabulary


def _pieces_of(vocabulary: Tokenizer) -> list[str]:
    return [vocabulary.id_to_piece(i) for i in range(vocabulary.vocab_size)]


def place_pieces(
    values: np.ndarray, initial: np.ndarray, kept: KeptPieces
) -> np.ndarray:
    """Moves the rows of kept pieces, and initialises the rows of new pieces.

    Args:
        values: float32, `(vocab_size of the model, ...)`.
        initial: float32, `(vocab_size of the run, ...)`, the initial values.
        kept: The pieces in both vocabularies.

    Returns:
        float32, in the shape of `initial`.
    """
    mean = values[kept.model_ids].mean(axis=0, dtype=np.float64)
    placed = (initial + mean).astype(np.float32)
    placed[kept.run_ids] = values[kept.model_ids]
    return placed


def report_pieces(
    config: PretrainingConfig,
    weights: ModelWeights,
    kept: KeptPieces | None,
    records: RecordSet,
) -> dict[str, Any]:
    """Counts kept, new and dropped pieces, as JSON for `warm_start.json`."""
    run_size, model_size = config.model.vocab_size, weights.config.vocab_size
    num_kept, fraction = run_size, 1.0
    if kept is not None:
        counts = _count_tokens(records, run_size)
        num_kept = len(kept.run_ids)
        fraction = float(counts[kept.run_ids].sum() / max(counts.sum(), 1))
    return {
        "kept": num_kept,
        "new": run_size - num_kept,
        "dropped": model_size - num_kept,
        "kept_share_of_records": fraction,
    }


def _count_tokens(records: RecordSet, vocab_size: int) -> np.ndarray:
    """Counts each piece, but not special ones, in the first records.

    Returns:
        int64, `(vocab_size,)`.
    """
    counts = np.zeros(vocab_size, np.int64)
    with open_existing(records.files[0], "rb") as file:
        for record in itertools.islice(read_records(file), COUNTED_RECORDS):
            example = tf.train.Example.FromString(record.content)
            ids = example.features.feature["input_ids"].int64_list.value
            counts += np.bincount(np.array(ids, np.int64), minlength=vocab_size)
    counts[: len(features.SPECIAL_PIECES)] = 0
    return counts
