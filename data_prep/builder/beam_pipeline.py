"""The pipeline that builds shards on Apache Beam.

1. One worker reads each source and normalises its documents.
2. Documents are grouped by digest, and equal documents are numbered.
3. Documents become unmasked examples, grouped by shard.
4. Each shard is sorted on the local disk of a worker, and written.

The same text and settings give the same bytes as the local runner.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np

from albert_tf.io import files
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder.examples import (
    digest,
    make_examples,
    normalize_document,
)
from data_prep.builder.shards import (
    ShardResult,
    choose_shards,
    list_shards,
    write_shard,
)
from data_prep.builder.shuffle import read_shard, rekey_duplicates, write_spill
from data_prep.builder.unmasked_examples import (
    HEADER,
    UnmaskedExamples,
    token_dtype,
)
from data_prep.config import RecordsConfig
from data_prep.text import corpus
from data_prep.text.sources import Source

# Bytes of examples in a spill file of step 4.
_SPILL_BYTES = 64 << 20

# Side outputs: a Counter by reason, a Counter by split, an array of counts.
SKIPPED, DUPLICATES, PIECES = "skipped", "duplicates", "pieces"
_MAIN = "main"


def add_steps(
    pipeline: Any,
    config: RecordsConfig,
    sources: Sequence[Source],
    model: bytes,
    finished: frozenset[int],
    results_path: str,
) -> None:
    """Adds the steps of a build to a pipeline.

    Args:
        sources: What the workers read.
        model: The SentencePiece model, which Beam sends to the workers.
        finished: Numbers of the shards that need not be written.
        results_path: File to which the pipeline writes, as JSON, the content of
            the shards that it has written, by number, and the sums SKIPPED,
            DUPLICATES and PIECES.
    """
    read = (
        pipeline
        | "Sources" >> beam.Create(list(sources))
        | "Spread sources" >> beam.Reshuffle()
        | "Read"
        >> beam.ParDo(_Read(config, model)).with_outputs(SKIPPED, main=_MAIN)
    )
    numbered = (
        read[_MAIN]
        | "Group equal documents" >> beam.GroupByKey()
        | "Number" >> beam.FlatMap(_number)
    )
    made = (
        numbered
        | "Batch" >> beam.BatchElements(min_batch_size=64, max_batch_size=512)
        | "Make examples"
        >> beam.ParDo(_MakeExamples(config, model, finished)).with_outputs(
            SKIPPED, PIECES, DUPLICATES, main=_MAIN
        )
    )
    # Shards without examples are written, too.
    shards = pipeline | "Shards" >> beam.Create(
        [
            (number, (b"", b""))
            for number in range(len(list_shards(config)))
            if number not in finished
        ]
    )
    written = (
        (made[_MAIN], shards)
        | "All shards" >> beam.Flatten()
        | "Group by shard" >> beam.GroupByKey()
        | "Write" >> beam.ParDo(_Write(config, model))
    )
    skipped = (
        (read[SKIPPED], made[SKIPPED])
        | "All skipped" >> beam.Flatten()
        | "Sum skipped" >> beam.CombineGlobally(_sum_counters)
    )
    duplicates = made[DUPLICATES] | "Sum duplicates" >> (
        beam.CombineGlobally(_sum_counters)
    )
    pieces = made[PIECES] | "Sum pieces" >> beam.CombineGlobally(_sum_arrays)
    _ = (
        written
        | "All written" >> beam.combiners.ToList()
        | "Report"
        >> beam.Map(
            _report,
            beam.pvalue.AsSingleton(skipped),
            beam.pvalue.AsSingleton(duplicates),
            beam.pvalue.AsSingleton(pieces),
            results_path,
        )
    )


class _WithTokenizer(beam.DoFn):
    """A step that needs the vocabulary; Beam sends the model file with it."""

    def __init__(self, config: RecordsConfig, model: bytes) -> None:
        self.config = config
        self.model = model

    def setup(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            path = os.path.join(temporary, TOKENIZER_FILE)
            files.write_bytes(path, self.model)
            self.tokenizer = Tokenizer(path, self.config.do_lower_case)


class _Read(_WithTokenizer):
    """Turns a source into documents, keyed by digest."""

    def process(self, source: Any) -> Iterator[Any]:
        skipped: Counter[str] = Counter()
        for document in corpus.read_documents(
            [source], self.config, lambda _num_bytes: None, skipped
        ):
            sentences = normalize_document(
                document, self.tokenizer, self.config
            )
            yield digest(sentences), sentences
        yield beam.pvalue.TaggedOutput(SKIPPED, skipped)


def _number(
    element: tuple[bytes, Iterable[list[str]]],
) -> Iterator[tuple[list[str], int]]:
    """Yields equal documents, each with the number of earlier ones."""
    _digest, documents = element
    for occurrence, sentences in enumerate(documents):
        yield sentences, occurrence


class _MakeExamples(_WithTokenizer):
    """Turns numbered documents into examples, keyed by shard number.

    Examples of finished shards are dropped.
    """

    def __init__(
        self, config: RecordsConfig, model: bytes, finished: frozenset[int]
    ) -> None:
        super().__init__(config, model)
        self.finished = finished

    def process(self, documents: list[tuple[list[str], int]]) -> Iterator[Any]:
        groups = [([sentences for sentences, i in documents if i == 0], 0)]
        groups += [([sentences], i) for sentences, i in documents if i > 0]
        for sentences, occurrence in groups:
            made = make_examples(sentences, self.tokenizer, self.config)
            yield beam.pvalue.TaggedOutput(SKIPPED, made.skipped)
            yield beam.pvalue.TaggedOutput(PIECES, made.piece_counts)
            for split, examples in made.examples.items():
                if not len(examples.headers):
                    continue
                if occurrence:
                    yield beam.pvalue.TaggedOutput(
                        DUPLICATES, Counter({split: 1})
                    )
                    if self.config.deduplicate:
                        continue
                occurrences = np.full(len(examples.headers), occurrence)
                yield from self._split_by_shard(
                    split, rekey_duplicates(examples, occurrences)
                )

    def _split_by_shard(
        self, split: str, examples: UnmaskedExamples
    ) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
        shards = choose_shards(
            list_shards(self.config), split, examples.headers["key"]
        )
        for shard in set(shards.tolist()) - self.finished:
            part = examples.take(np.flatnonzero(shards == shard))
            yield shard, (part.headers.tobytes(), part.tokens.tobytes())


class _Write(_WithTokenizer):
    """Writes the file of a shard, and returns its content."""

    def process(
        self, element: tuple[int, Iterable[tuple[bytes, bytes]]]
    ) -> Iterator[tuple[int, ShardResult]]:
        number, parts = element
        dtype = token_dtype(self.tokenizer.vocab_size)
        with tempfile.TemporaryDirectory() as temporary:
            paths: list[str] = []
            for examples in _collect(parts, dtype):
                paths.append(os.path.join(temporary, f"{len(paths):06d}.rows"))
                shards = np.zeros(len(examples.headers), np.int64)
                write_spill(paths[-1], examples, shards, 1)
            result = write_shard(
                list_shards(self.config)[number],
                read_shard(paths, 0, 1, dtype),
                self.tokenizer,
                self.config,
            )
        yield number, result


def _collect(
    parts: Iterable[tuple[bytes, bytes]], dtype: np.dtype
) -> Iterator[UnmaskedExamples]:
    """Yields serialized examples in batches of `_SPILL_BYTES` or more."""
    collected: list[UnmaskedExamples] = []
    size = 0
    for headers, tokens in parts:
        collected.append(
            UnmaskedExamples(
                np.frombuffer(headers, HEADER), np.frombuffer(tokens, dtype)
            )
        )
        size += len(headers) + len(tokens)
        if size >= _SPILL_BYTES:
            yield UnmaskedExamples.concatenate(collected, dtype)
            collected, size = [], 0
    if size:
        yield UnmaskedExamples.concatenate(collected, dtype)


def _sum_counters(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _sum_arrays(arrays: Iterable[np.ndarray]) -> np.ndarray:
    total = np.zeros(1, np.int64)
    for array in arrays:
        total = total + array
    return total


def _report(
    shards: list[tuple[int, ShardResult]],
    skipped: Counter[str],
    duplicates: Counter[str],
    pieces: np.ndarray,
    path: str,
) -> None:
    """Writes the results that `build` reads."""
    results = {
        "shards": dict(shards),
        SKIPPED: skipped,
        DUPLICATES: duplicates,
        PIECES: pieces.tolist(),
    }
    files.write_text(path, json.dumps(results))
