r"""Builds shards on Apache Beam, with the functions of the local runner.

    python -m data_prep.build_tfrecords --runner=DataflowRunner \
      --input_file='gs://BUCKET/corpus/*.txt.gz' \
      --spm_model_file=gs://BUCKET/spm.model \
      --output_dir=gs://BUCKET/records --num_shards=512 \
      --beam_option=project=PROJECT --beam_option=region=us-central1 \
      --beam_option=temp_location=gs://BUCKET/tmp \
      --beam_option=setup_file=./setup.py

`beam_pipeline` has the steps. A pipeline that fails because a worker is lost is
started again.
"""

import contextlib
import io
import posixpath
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from albert_tf.errors import RetryError, UserError
from albert_tf.io import files
from albert_tf.io.ownership import Owner
from data_prep.builder import directory
from data_prep.builder.scratch import remove_others
from data_prep.builder.shards import (
    BuiltRecords,
    ShardResult,
    find_finished,
    list_shards,
)
from data_prep.config import RecordsConfig
from data_prep.text.sources import Source

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from data_prep.builder import beam_pipeline
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
    it detects an empty split. A pipeline that is started again does not write
    finished shards again.

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
    remove_others(config, scratch)
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
        np.array(results[beam_pipeline.PIECES], np.int64),
        Counter(results[beam_pipeline.SKIPPED]),
        Counter(results[beam_pipeline.DUPLICATES]),
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
            beam_pipeline.add_steps(
                pipeline, config, sources, model, finished, results_path
            )
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
