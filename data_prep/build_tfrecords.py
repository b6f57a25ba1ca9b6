r"""Build pretraining records from text.

    python -m data_prep.build_tfrecords \
      --input_file='corpus/*.txt.gz' --spm_model_file=build/spm.model \
      --output_dir=build/records --holdout_fraction=0.01

1. Read and check the inputs, and compute their digest. If the records exist
   and have the same digest and settings, stop.
2. Cut documents into unmasked examples, each with a random key.
3. Shuffle the examples by key, mask them, and write TFRecord files.
4. Write `metadata.json` and the vocabulary, which complete the directory.

The same text and settings give the same bytes, for any number of processes and
any order of the files. The same command continues an interrupted build. To let
training draw other masks in each epoch, with a tenth of the disk space:

    python -m data_prep.build_tfrecords ... --masking=dynamic --dupe_factor=1
"""

# TensorFlow is not imported here: each worker process imports this module.

import contextlib
import json
import os
import posixpath
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence

import numpy as np
from absl import logging

from albert_tf.config import flags
from albert_tf.io import files
from albert_tf.records.features import (
    SCHEMA_VERSION,
    TOKENIZER_FILE,
    RecordsMetadata,
    sha256_of,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder import directory, local_runner
from data_prep.builder.examples import EVAL, TRAIN
from data_prep.builder.shards import BuiltRecords, choose_masking
from data_prep.config import RecordsConfig
from data_prep.progress import show_bytes
from data_prep.text import corpus

# Where a build keeps what is not shuffled yet; removed at its end.
SCRATCH_DIR = ".build_tfrecords_scratch"


def main(config: RecordsConfig) -> None:
    """Builds records, or finds that they are there.

    Raises:
        UserError: For inputs, a vocabulary or an output that cannot do.
    """
    config.require("output_dir", "spm_model_file")
    begin = time.monotonic()
    tokenizer = Tokenizer(config.spm_model_file, config.do_lower_case)
    sources = corpus.find_inputs(config)
    num_bytes = sum(source.num_bytes for source in sources)
    with show_bytes("checking inputs", num_bytes) as bar:
        digests = corpus.check_and_digest(sources, config, bar.update)
    inputs_sha256 = _digest_settings(config, tokenizer, sorted(digests))
    scratch_key = sha256_of(json.dumps([inputs_sha256, digests]).encode())
    if directory.is_up_to_date(
        config.output_dir, inputs_sha256, overwrite=config.overwrite
    ):
        # The build may have been killed when all but this was done.
        directory.remove_notes(config.output_dir)
        _remove_scratch(config, scratch_key)
        logging.info("%s is up to date", config.output_dir)
        return

    files.make_directories(config.output_dir)
    with _scratch_directory(config, scratch_key) as scratch:
        vocabulary = os.path.join(scratch, TOKENIZER_FILE)
        with files.open_existing(config.spm_model_file, "rb") as file:
            files.write_bytes(vocabulary, file.read())
        build = local_runner.build
        if config.runner != "local":
            from data_prep.builder import beam_runner

            build = beam_runner.build
        built = build(config, sources, vocabulary, scratch, inputs_sha256)
        metadata = {
            split: _describe(config, split, built, tokenizer, inputs_sha256)
            for split in (TRAIN, EVAL)
            if split == TRAIN or config.holdout_fraction
        }
        with open(vocabulary, "rb") as file:
            directory.finish_build(config.output_dir, metadata, file.read())
    for split, of_split in metadata.items():
        _log_summary(
            posixpath.join(config.output_dir, split),
            of_split,
            built.count(split)["label"],
        )
    seconds = time.monotonic() - begin
    num_examples = sum(m.num_examples for m in metadata.values())
    logging.info(
        "%d examples in %.0f s: %.0f examples/s",
        num_examples,
        seconds,
        num_examples / seconds,
    )


def _digest_settings(
    config: RecordsConfig, tokenizer: Tokenizer, digests: Sequence[str]
) -> str:
    """Digest of all that the records depend on."""
    described = {
        "settings": config.result_settings(),
        "schema_version": SCHEMA_VERSION,
        "vocabulary_sha256": tokenizer.sha256,
        "inputs": digests,
    }
    return sha256_of(json.dumps(described, sort_keys=True).encode())


@contextlib.contextmanager
def _scratch_directory(config: RecordsConfig, key: str) -> Iterator[str]:
    """A local directory for what is not shuffled yet.

    It stays where a build is interrupted, for the next one with the same
    key.
    """
    parent = _scratch_parent(config)
    if parent == os.path.join(config.output_dir, SCRATCH_DIR):
        for other in os.listdir(parent) if os.path.exists(parent) else ():
            if other != key:
                shutil.rmtree(os.path.join(parent, other))
    scratch = os.path.join(parent, key)
    os.makedirs(scratch, exist_ok=True)
    yield scratch
    _remove_scratch(config, key)


def _scratch_parent(config: RecordsConfig) -> str:
    """By default within `output_dir`, if that is local: it has the room."""
    if config.scratch_dir:
        return config.scratch_dir
    if files.is_remote(config.output_dir):
        return os.path.join(tempfile.gettempdir(), SCRATCH_DIR)
    return os.path.join(config.output_dir, SCRATCH_DIR)


def _remove_scratch(config: RecordsConfig, key: str) -> None:
    parent = _scratch_parent(config)
    files.remove_directory(os.path.join(parent, key))
    if not config.scratch_dir:
        with contextlib.suppress(OSError):  # others' scratch may be in it
            os.rmdir(parent)


def _describe(
    config: RecordsConfig,
    split: str,
    built: BuiltRecords,
    tokenizer: Tokenizer,
    inputs_sha256: str,
) -> RecordsMetadata:
    """The metadata of one split."""
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
        masking=choose_masking(split, config),
        masked_lm_prob=config.masked_lm_prob,
        ngram=config.ngram,
        short_seq_prob=config.short_seq_prob,
        dupe_factor=config.dupe_factor if split == TRAIN else 1,
        seed=config.seed,
        num_documents=counts["documents"],
        num_duplicate_documents=built.duplicates[split],
        num_examples=counts["examples"],
        num_pieces=counts["pieces"],
        num_masked=counts["masked"],
        unigram_entropy_nats=_unigram_entropy(built.piece_counts),
        shards={n: r.counts.get("examples", 0) for n, r in shards.items()},
        checksums={name: result.sha256 for name, result in shards.items()},
        skipped=dict(sorted(built.skipped.items())),
        inputs_sha256=inputs_sha256,
    )


def _unigram_entropy(piece_counts: np.ndarray) -> float:
    """Entropy of the ordinary pieces, in nats.

    Args:
        piece_counts: int64, `(vocab_size,)`.
    """
    counts = piece_counts[FIRST_ORDINARY_ID:]
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())


def _log_summary(
    split_dir: str, metadata: RecordsMetadata, num_labelled: int
) -> None:
    places = metadata.num_examples * metadata.max_seq_length
    logging.info(
        "%s: %d documents, %d examples; %d documents equal to another; "
        "%.1f %% of the places filled, %.1f %% of the pieces masked, label 1 "
        "in %.1f %%, unigram entropy %.3f nats; skipped: %s",
        split_dir,
        metadata.num_documents,
        metadata.num_examples,
        metadata.num_duplicate_documents,
        100 * metadata.num_pieces / places,
        100 * metadata.num_masked / metadata.num_pieces,
        100 * num_labelled / metadata.num_examples,
        metadata.unigram_entropy_nats,
        directory.join_counts(metadata.skipped) or "nothing",
    )


if __name__ == "__main__":
    flags.run(main, RecordsConfig)
