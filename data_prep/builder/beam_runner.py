r"""Builds shards on Apache Beam, with the functions of the local runner.

    python -m data_prep.build_tfrecords --runner=DataflowRunner \
      --input_file='gs://BUCKET/corpus/*.txt.gz' \
      --spm_model_file=gs://BUCKET/spm.model \
      --output_dir=gs://BUCKET/records --num_shards=512 \
      --beam_option=project=PROJECT --beam_option=region=us-central1 \
      --beam_option=temp_location=gs://BUCKET/tmp \
      --beam_option=setup_file=./setup.py

1. One worker reads each source and normalises its documents.
2. Documents are grouped by digest, and equal documents are numbered.
3. Documents become unmasked examples, grouped by shard.
4. Each shard is sorted on the local disk of a worker, and written.

The same text and settings give the same bytes as the local runner.
"""

import contextlib
import io
import json
import os
import posixpath
import socket
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from albert_tf.errors import RetryError, UserError
from albert_tf.io import files
from albert_tf.io.ownership import Owner
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder import directory
from data_prep.builder.examples import (
    digest,
    make_examples,
    normalize_document,
)
from data_prep.builder.shards import (
    BuiltRecords,
    ShardResult,
    choose_shards,
    find_finished,
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

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ModuleNotFoundError:
    raise UserError(
        "--runner requires Apache Beam, unless it is local or dask",
        received="no module named apache_beam",
        remedy="pip install -e '.[beam]'.",
    ) from None

# Results of the pipeline for the process that started it.
_RESULTS_FILE = "beam_results.json"

# Number of times that a failed pipeline is started again without a new finished
# shard.
_RETRIES = 3

_CONNECT_TIMEOUT_S = 30

# Beam adds this to the message of an exception in a function of the pipeline.
_OF_A_FUNCTION = "[while running"

# Bytes of examples in a spill file of step 4.
_SPILL_BYTES = 64 << 20

# Side outputs: a Counter by reason, a Counter by split, an array of counts.
_SKIPPED, _DUPLICATES, _PIECES = "skipped", "duplicates", "pieces"
_MAIN = "main"


def build(
    config: RecordsConfig,
    sources: Sequence[Source],
    vocabulary: str,
    scratch: str,
    build_id: Mapping[str, Any],
    owner: Owner,
) -> BuiltRecords:
    """Builds all shards; see `local_runner.build`.

    Unlike `local_runner.build`, it removes the records of other builds before
    it detects an empty split. A pipeline that fails because a worker is lost is
    started again; the shards that it finished are not written again.

    Raises:
        UserError: If Beam refuses the options.
        RetryError: If the job service does not answer, or if the pipeline
            fails several times without finishing a shard.
    """
    _check_job_service(config)
    with _explain_refused_options():
        _make_pipeline(config)
    owner.check()
    with open(vocabulary, "rb") as file:
        model = file.read()
    results_path = posixpath.join(config.output_dir, _RESULTS_FILE)
    directory.begin_build(config.output_dir, build_id)
    shards = list_shards(config)
    finished = _find_finished_shards(config)
    num_failures = 0
    while failure := _run_pipeline(
        config, sources, model, frozenset(finished), results_path
    ):
        owner.check()
        before = len(finished)
        finished = _find_finished_shards(config)
        num_failures = 1 if len(finished) > before else num_failures + 1
        if num_failures > _RETRIES:
            raise RetryError(
                "Beam must run the pipeline to its end",
                received=failure,
                remedy="If it lost a worker, look at the worker's log; it may "
                "need more memory. Then run the same command again: finished "
                "shards are kept.",
            )
        logging.warning(
            "The pipeline failed with %d of %d shards finished, and starts "
            "again: %s",
            len(finished),
            len(shards),
            failure,
        )
    results = files.load_json(results_path)
    files.remove(results_path)
    for number, result in results["shards"].items():
        finished[int(number)] = ShardResult(*result)
    built = BuiltRecords(
        np.array(results[_PIECES], np.int64),
        Counter(results[_SKIPPED]),
        Counter(results[_DUPLICATES]),
        {shards[number]: finished[number] for number in sorted(finished)},
    )
    counts = {shard.split: built.count(shard.split) for shard in shards}
    directory.check_not_empty(
        config,
        {split: count["examples"] for split, count in counts.items()},
        built.skipped,
        sources,
    )
    return built


def _check_job_service(config: RecordsConfig) -> None:
    """Connects to the job service, for which Beam would wait for minutes."""
    options = dict(option.partition("=")[::2] for option in config.beam_option)
    endpoint = options.get("job_endpoint")
    if endpoint is None or endpoint == "embed":
        return
    host, _, port = endpoint.rpartition(":")
    if not (host and port.isdecimal()):
        raise UserError(
            "--beam_option=job_endpoint must be HOST:PORT", received=endpoint
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise RetryError(
            f"the Beam job service {endpoint} must answer within "
            f"{_CONNECT_TIMEOUT_S} s",
            received=str(error),
            remedy="Start it, and check --beam_option=job_endpoint.",
        ) from None


def _find_finished_shards(config: RecordsConfig) -> dict[int, ShardResult]:
    """Returns the content of the finished shards, by number."""
    return {
        number: result
        for number, shard in enumerate(list_shards(config))
        if (result := find_finished(shard, config.output_dir)) is not None
    }


def _make_pipeline(config: RecordsConfig) -> beam.Pipeline:
    options = PipelineOptions(
        [f"--runner={config.runner}"]
        + [f"--{option}" for option in config.beam_option]
    )
    printed = io.StringIO()
    try:
        # argparse prints its messages, and ends the process.
        with contextlib.redirect_stderr(printed):
            options.get_all_options()
    except SystemExit:
        raise ValueError(printed.getvalue().strip().split("\n")[-1]) from None
    return beam.Pipeline(options=options)


def _run_pipeline(
    config: RecordsConfig,
    sources: Sequence[Source],
    model: bytes,
    finished: frozenset[int],
    results_path: str,
) -> str:
    """Returns "", or why Beam failed, e.g. because it lost a worker."""
    try:
        with _explain_refused_options(), _make_pipeline(config) as pipeline:
            _add_steps(pipeline, config, sources, model, finished, results_path)
    except RuntimeError as error:
        if _OF_A_FUNCTION in str(error):
            raise
        return str(error).strip() or "RuntimeError"
    return ""


@contextlib.contextmanager
def _explain_refused_options() -> Iterator[None]:
    try:
        yield
    except (NotImplementedError, ValueError) as error:
        if _OF_A_FUNCTION in str(error):
            raise
        raise UserError(
            "--runner and --beam_option must have values that Beam accepts",
            received=str(error),
        ) from None


def _add_steps(
    pipeline: Any,
    config: RecordsConfig,
    sources: Sequence[Source],
    model: bytes,
    finished: frozenset[int],
    results_path: str,
) -> None:
    read = (
        pipeline
        | "Sources" >> beam.Create(list(sources))
        | "Spread sources" >> beam.Reshuffle()
        | "Read"
        >> beam.ParDo(_Read(config, model)).with_outputs(_SKIPPED, main=_MAIN)
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
            _SKIPPED, _PIECES, _DUPLICATES, main=_MAIN
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
        (read[_SKIPPED], made[_SKIPPED])
        | "All skipped" >> beam.Flatten()
        | "Sum skipped" >> beam.CombineGlobally(_sum_counters)
    )
    duplicates = made[_DUPLICATES] | "Sum duplicates" >> (
        beam.CombineGlobally(_sum_counters)
    )
    pieces = made[_PIECES] | "Sum pieces" >> beam.CombineGlobally(_sum_arrays)
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
        yield beam.pvalue.TaggedOutput(_SKIPPED, skipped)


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
            yield beam.pvalue.TaggedOutput(_SKIPPED, made.skipped)
            yield beam.pvalue.TaggedOutput(_PIECES, made.piece_counts)
            for split, examples in made.examples.items():
                if not len(examples.headers):
                    continue
                if occurrence:
                    yield beam.pvalue.TaggedOutput(
                        _DUPLICATES, Counter({split: 1})
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
        _SKIPPED: skipped,
        _DUPLICATES: duplicates,
        _PIECES: pieces.tolist(),
    }
    files.write_text(path, json.dumps(results))
