r"""Builds pretraining records of text.

    python -m data_prep.build_tfrecords \
        --input_file=corpus/*.txt.gz --spm_model_file=build/spm.model \
        --output_dir=build/records --holdout_fraction=0.01

1. Inputs are read document by document; processes make examples of them.
2. Examples are collected in a file for each shard.
3. Each shard is sorted by random keys and written as a TFRecord file.
4. `metadata.json` and the vocabulary, beside the shards, make it complete.

The same text and settings give the same bytes, however many processes work
and in whatever order the files come.
"""

# TensorFlow is not imported here: each worker process imports this module.

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import posixpath
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging
from tqdm import tqdm

from albert_tf import flags
from albert_tf.config import RecordsConfig
from albert_tf.errors import UserError
from albert_tf.features import (
    METADATA_FILE,
    SCHEMA_VERSION,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    RecordsMetadata,
    sha256_of,
)
from albert_tf.files import (
    PARTIAL_SUFFIX,
    is_remote,
    load_json_if_any,
    write_bytes,
)
from albert_tf.tokenization import Tokenizer
from data_prep import corpus
from data_prep.examples import (
    EVAL,
    TRAIN,
    Batch,
    Document,
    build_examples,
    unigram_entropy,
)
from data_prep.progress import show_bytes
from data_prep.shuffle import Buckets, name_shard, write_shard

# Where a build keeps what is not sorted yet; removed at its end.
SCRATCH_DIR = ".build_tfrecords_scratch"

# Characters of text that a process gets at a time.
_BATCH_CHARACTERS = 1 << 17

# Settings without influence on the records; inputs and vocabulary count by
# their content.
_WITHOUT_INFLUENCE = (
    "input_file",
    "output_dir",
    "spm_model_file",
    "num_workers",
    "overwrite",
)


@dataclasses.dataclass
class Totals:
    """What a build found in the text, summed up while examples are made.

    Attributes:
        counts: By split, see `Examples.counts`.
        piece_counts: int64, `(vocab_size,)`, occurrences in the text.
        skipped: Counts of what was left out, by reason.
    """

    counts: dict[str, collections.Counter[str]]
    piece_counts: np.ndarray
    skipped: collections.Counter[str]


def main(config: RecordsConfig) -> None:
    """Builds records, or finds that they are there.

    Raises:
        UserError: For inputs, a vocabulary or an output that cannot do.
    """
    import tensorflow as tf

    config.require("input_file", "output_dir", "spm_model_file")
    tokenizer = Tokenizer(config.spm_model_file, config.do_lower_case)
    paths = corpus.find_inputs(config.input_file)
    num_bytes = corpus.count_bytes(paths)
    with show_bytes("reading inputs", num_bytes) as bar:
        digests = corpus.digest_inputs(paths, bar.update)
    inputs_sha256 = _digest_settings(config, tokenizer, digests)
    if _is_up_to_date(config.output_dir, inputs_sha256, config.overwrite):
        logging.info("%s is up to date", config.output_dir)
        return

    tf.io.gfile.makedirs(config.output_dir)
    num_shards = {TRAIN: config.num_shards}
    if config.holdout_fraction:
        num_shards[EVAL] = config.num_eval_shards
    with _scratch_directory(config.output_dir) as scratch:
        vocabulary = os.path.join(scratch, TOKENIZER_FILE)
        tf.io.gfile.copy(config.spm_model_file, vocabulary)
        buckets = {}
        for split in num_shards:
            os.mkdir(os.path.join(scratch, split))
            buckets[split] = Buckets(
                os.path.join(scratch, split), num_shards[split]
            )
        with show_bytes("making examples", num_bytes) as bar:
            totals = _make_examples(config, paths, vocabulary, buckets, bar)
        _check_not_empty(config, totals)
        _remove_old_records(config.output_dir, inputs_sha256)
        for split in reversed(num_shards):
            directory = posixpath.join(config.output_dir, split)
            tf.io.gfile.makedirs(directory)
            shards = _write_shards(split, directory, buckets[split])
            with tf.io.gfile.GFile(vocabulary, "rb") as file:
                write_bytes(
                    posixpath.join(directory, TOKENIZER_FILE), file.read()
                )
            metadata = _describe(
                config, split, totals, shards, tokenizer, inputs_sha256
            )
            write_bytes(
                posixpath.join(directory, METADATA_FILE),
                metadata.to_json().encode(),
            )
            _log_summary(directory, metadata, totals.counts[split])
    tf.io.gfile.remove(posixpath.join(config.output_dir, UNFINISHED_FILE))


def _digest_settings(
    config: RecordsConfig, tokenizer: Tokenizer, digests: list[str]
) -> str:
    """Digest of all that the records depend on."""
    settings = config.to_dict()
    for name in _WITHOUT_INFLUENCE:
        del settings[name]
    described = {
        "settings": settings,
        "schema_version": SCHEMA_VERSION,
        "vocabulary_sha256": tokenizer.sha256,
        "inputs": digests,
    }
    return sha256_of(json.dumps(described, sort_keys=True).encode())


def _is_up_to_date(
    output_dir: str, inputs_sha256: str, overwrite: bool
) -> bool:
    """Whether the records wanted are there.

    Raises:
        UserError: If others are there, and are not to be replaced.
    """
    import tensorflow as tf

    if tf.io.gfile.exists(posixpath.join(output_dir, UNFINISHED_FILE)):
        return False
    path = posixpath.join(output_dir, TRAIN, METADATA_FILE)
    metadata = load_json_if_any(path) or {}
    if metadata.get("inputs_sha256") == inputs_sha256:
        return True
    others = _find_records(output_dir)
    if others and not overwrite:
        raise UserError(
            "output_dir must not hold records of other settings or text",
            received=others[0],
            remedy="Choose another --output_dir, or replace them by "
            "--overwrite.",
        )
    return False


def _find_records(output_dir: str) -> list[str]:
    """What a build, finished or not, left in a directory."""
    import tensorflow as tf

    patterns = ("*.tfrecord", "*" + PARTIAL_SUFFIX, METADATA_FILE)
    return [
        path
        for split in (TRAIN, EVAL)
        for pattern in (*patterns, TOKENIZER_FILE)
        for path in tf.io.gfile.glob(posixpath.join(output_dir, split, pattern))
    ]


def _remove_old_records(output_dir: str, inputs_sha256: str) -> None:
    """Makes room; from here on the directory is known to be unfinished."""
    import tensorflow as tf

    write_bytes(
        posixpath.join(output_dir, UNFINISHED_FILE),
        json.dumps({"inputs_sha256": inputs_sha256}).encode(),
    )
    for path in _find_records(output_dir):
        tf.io.gfile.remove(path)


@contextlib.contextmanager
def _scratch_directory(output_dir: str) -> Iterator[str]:
    """A directory on a local disk for what is not sorted yet.

    Within `output_dir` if that is local, since there must be room anyway.
    What a killed build left is removed.
    """
    if is_remote(output_dir):
        scratch = tempfile.mkdtemp(prefix="build_tfrecords_")
    else:
        scratch = os.path.join(output_dir, SCRATCH_DIR)
        shutil.rmtree(scratch, ignore_errors=True)
        os.mkdir(scratch)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make_examples(
    config: RecordsConfig,
    paths: list[str],
    vocabulary: str,
    buckets: dict[str, Buckets],
    bar: Any,
) -> Totals:
    """Fills the buckets."""
    totals = Totals(
        counts={split: collections.Counter() for split in (TRAIN, EVAL)},
        piece_counts=np.zeros(1, np.int64),
        skipped=collections.Counter(),
    )
    documents = corpus.read_documents(
        paths, config.on_bad_utf8, bar.update, totals.skipped
    )
    for batch in _map_in_order(config, vocabulary, _batch(documents)):
        for split, examples in batch.splits.items():
            totals.counts[split] += examples.counts
            if examples.records:
                buckets[split].add(examples.records, examples.shuffle_keys)
        totals.piece_counts = totals.piece_counts + batch.piece_counts
        totals.skipped += batch.skipped
        bar.set_postfix(
            examples=sum(c["examples"] for c in totals.counts.values()),
            refresh=False,
        )
    return totals


def _batch(documents: Iterator[list[str]]) -> Iterator[list[Document]]:
    """Collects documents for one call of a process."""
    # A dictionary of integers is the only thing that grows with the corpus:
    # about 0.1 GB for a million documents.
    occurrences: collections.Counter[int] = collections.Counter()
    batch: list[Document] = []
    size = 0
    for sentences in documents:
        text = "\n".join(sentences)
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "little")
        batch.append(Document(sentences, occurrences[key]))
        occurrences[key] += 1
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _map_in_order(
    config: RecordsConfig,
    vocabulary: str,
    batches: Iterator[list[Document]],
) -> Iterator[Batch]:
    """Examples of batches of documents, made by processes.

    A few batches a process are under way at a time, so memory is bounded
    however large the corpus is.
    """
    num_workers = config.num_workers or os.cpu_count() or 1
    if num_workers == 1:
        tokenizer = Tokenizer(vocabulary, config.do_lower_case)
        for batch in batches:
            yield build_examples(batch, tokenizer, config)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        num_workers,
        # TensorFlow has threads here, which a forked process would lack.
        multiprocessing.get_context("spawn"),
        _start_worker,
        (vocabulary, config),
    )
    waiting: collections.deque[concurrent.futures.Future[Batch]] = (
        collections.deque()
    )
    try:
        for batch in batches:
            waiting.append(pool.submit(_work, batch))
            if len(waiting) > 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except concurrent.futures.process.BrokenProcessPool:
        raise UserError(
            "all processes must live to the end",
            received="one that was killed, most likely for want of memory",
            remedy="Run again with fewer --num_workers.",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_worker: dict[str, Any] = {}


def _start_worker(vocabulary: str, config: RecordsConfig) -> None:
    """Prepares a process."""
    # Ctrl-C reaches all processes; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker["tokenizer"] = Tokenizer(vocabulary, config.do_lower_case)
    _worker["config"] = config


def _end_with_parent() -> None:
    """Ends this process when the one that started it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(documents: list[Document]) -> Batch:
    return build_examples(documents, _worker["tokenizer"], _worker["config"])


def _check_not_empty(config: RecordsConfig, totals: Totals) -> None:
    """Refuses a corpus that gives no examples for a split.

    Raises:
        UserError: If train/ or a wanted eval/ would be empty.
    """
    num_train = totals.counts[TRAIN]["examples"]
    num_eval = totals.counts[EVAL]["examples"]
    if not num_train + num_eval:
        raise UserError(
            "input_file must hold a document of at least two words",
            received=_join_counts(totals.skipped) or "blank lines alone",
        )
    if not num_train or (config.holdout_fraction and not num_eval):
        raise UserError(
            "holdout_fraction must leave documents for train/ and for eval/",
            received=f"{config.holdout_fraction}, which leaves "
            f"{totals.counts[TRAIN]['documents']} and "
            f"{totals.counts[EVAL]['documents']}",
            remedy="Documents are chosen by a hash of their text: choose a "
            "share that is many documents, or 0.",
        )


def _write_shards(
    split: str, directory: str, buckets: Buckets
) -> dict[str, int]:
    """Sorts the buckets into their shards; the examples of each, by name."""
    counts = {}
    for shard in tqdm(
        range(buckets.num_shards), desc=f"writing {split}", unit="shard"
    ):
        name = name_shard(split, shard, buckets.num_shards)
        counts[name] = write_shard(directory, name, buckets.read_sorted(shard))
        buckets.remove(shard)
    return counts


def _describe(
    config: RecordsConfig,
    split: str,
    totals: Totals,
    shards: dict[str, int],
    tokenizer: Tokenizer,
    inputs_sha256: str,
) -> RecordsMetadata:
    """The metadata of one split."""
    counts = totals.counts[split]
    return RecordsMetadata(
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=config.max_predictions_per_seq,
        vocab_size=tokenizer.vocab_size,
        vocabulary_sha256=tokenizer.sha256,
        do_lower_case=config.do_lower_case,
        vocabulary_kind="published",
        sentence_objective="sop",
        masking="static",
        masked_lm_prob=config.masked_lm_prob,
        ngram=config.ngram,
        short_seq_prob=config.short_seq_prob,
        dupe_factor=config.dupe_factor if split == TRAIN else 1,
        seed=config.seed,
        num_documents=counts["documents"],
        num_examples=counts["examples"],
        num_pieces=counts["pieces"],
        num_masked=counts["masked"],
        unigram_entropy_nats=unigram_entropy(totals.piece_counts),
        num_duplicate_documents=0,
        shards=shards,
        checksums={},
        skipped=dict(sorted(totals.skipped.items())),
        inputs_sha256=inputs_sha256,
    )


def _log_summary(
    directory: str,
    metadata: RecordsMetadata,
    counts: collections.Counter[str],
) -> None:
    places = metadata.num_examples * metadata.max_seq_length
    logging.info(
        "%s: %d documents, %d examples, %.1f %% of the places filled, "
        "%.1f %% of the pieces masked, %.1f %% of the pairs swapped, "
        "unigram entropy %.3f nats; skipped: %s",
        directory,
        metadata.num_documents,
        metadata.num_examples,
        100 * metadata.num_pieces / places,
        100 * metadata.num_masked / metadata.num_pieces,
        100 * counts["swapped"] / metadata.num_examples,
        metadata.unigram_entropy_nats,
        _join_counts(metadata.skipped) or "nothing",
    )


def _join_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


if __name__ == "__main__":
    flags.run(main, RecordsConfig)
