"""Builds the records of `python -m data_prep.build_tfrecords`."""

# TensorFlow is not imported here: each worker process imports this module.

import dataclasses
import json
import os
import posixpath
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from albert_tf.io import files
from albert_tf.io.ownership import own
from albert_tf.records.features import (
    TOKENIZER_FILE,
    sha256_of,
)
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder import directory, local_runner
from data_prep.builder.examples import EVAL, TRAIN
from data_prep.builder.metadata import describe_split, log_summary
from data_prep.builder.scratch import open_scratch, remove_scratch
from data_prep.builder.shards import list_shards
from data_prep.config import RecordsConfig
from data_prep.progress import show_bytes
from data_prep.text import corpus
from data_prep.text.sentence_breaking import check_language, describe_breaking
from data_prep.versions import find_versions
from data_prep.writability import check_writable

# By sentence objective; increased when the same text and settings give other
# examples. The digest of a build contains it as "schema_version".
_EXAMPLES_VERSION = {"sop": 2, "nsp": 3, "none": 2}


def build_records(config: RecordsConfig) -> None:
    """Builds records, unless the output directory has them already.

    Raises:
        UserError: For text, a vocabulary or an output directory that cannot
            be used.
    """
    config.require("output_dir", "spm_model_file")
    if config.runner == "dask":
        config = _make_paths_absolute(config)
    check_language(config)
    warning = config.describe_missing_predictions()
    if warning:
        logging.warning("%s", warning)
    begin = time.monotonic()
    tokenizer = Tokenizer(config.spm_model_file, config.do_lower_case)
    sources = corpus.find_inputs(config)
    if not directory.has_finished_records(config.output_dir):
        _check_writable(config)
    num_bytes = sum(source.num_bytes for source in sources)
    with show_bytes("checking inputs", num_bytes) as bar:
        digests = corpus.check_and_digest(sources, config, bar.update)
    inputs_sha256 = _digest_inputs(config, tokenizer, sorted(digests))
    # Finished records stay valid with other versions of libraries, but one
    # build must not mix them.
    versions = find_versions(config)
    scratch_key = sha256_of(
        json.dumps([inputs_sha256, digests, versions]).encode()
    )
    build_id = {
        "inputs_sha256": inputs_sha256,
        **config.packing_settings(),
        "settings": {
            **config.result_settings(),
            "packing": "none",
            **config.packing_settings(),
            "vocabulary_sha256": tokenizer.sha256,
            **versions,
        },
        "versions": versions,
    }
    missing = directory.find_missing_shards(
        config.output_dir,
        build_id,
        list_shards(config),
        overwrite=config.overwrite,
    )
    if missing == []:
        # The last build may have been interrupted before these removals.
        directory.remove_notes(config.output_dir)
        remove_scratch(config, scratch_key)
        logging.info("%s is up to date", config.output_dir)
        return

    _check_writable(config)
    files.make_directories(config.output_dir)
    with (
        own(config.output_dir) as owner,
        open_scratch(config, scratch_key) as scratch,
        own(scratch),
    ):
        vocabulary = os.path.join(scratch, TOKENIZER_FILE)
        with files.open_existing(config.spm_model_file, "rb") as file:
            files.write_bytes(vocabulary, file.read())
        built = local_runner.build(
            config,
            sources,
            vocabulary,
            scratch,
            build_id,
            owner,
            directory.read_checksums(missing or ()),
        )
        owner.check()
        if missing:
            directory.remove_notes(config.output_dir)
            logging.info(
                "built these missing shards again, with the same bytes: %s",
                ", ".join(shard.path for shard in missing),
            )
            return
        metadata = {
            split: describe_split(
                config, split, built, tokenizer, inputs_sha256
            )
            for split in (TRAIN, EVAL)
            if split == TRAIN or config.holdout_fraction
        }
        with open(vocabulary, "rb") as file:
            directory.finish_build(config.output_dir, metadata, file.read())
    for split, split_metadata in metadata.items():
        log_summary(
            posixpath.join(config.output_dir, split),
            split_metadata,
            built.count(split)["label"],
        )
    seconds = time.monotonic() - begin
    num_examples = sum(m.num_examples for m in metadata.values())
    logging.info(
        "built %d examples in %.0f s (%.0f examples/s)",
        num_examples,
        seconds,
        num_examples / seconds,
    )


def _make_paths_absolute(config: RecordsConfig) -> RecordsConfig:
    """Returns settings for workers, which may have other directories."""
    paths = {"output_dir": config.output_dir, "scratch_dir": config.scratch_dir}
    absolute: dict[str, Any] = {
        name: os.path.abspath(path)
        for name, path in paths.items()
        if path and not files.is_remote(path)
    }
    return dataclasses.replace(config, **absolute)


def _check_writable(config: RecordsConfig) -> None:
    for path in filter(None, (config.output_dir, config.scratch_dir)):
        check_writable(posixpath.join(path, "writable"))


def _digest_inputs(
    config: RecordsConfig, tokenizer: Tokenizer, digests: Sequence[str]
) -> str:
    """Returns a digest of everything that decides the examples."""
    described = {
        "settings": config.result_settings(),
        "schema_version": _EXAMPLES_VERSION[config.sentence_objective],
        "vocabulary_sha256": tokenizer.sha256,
        "inputs": digests,
        **describe_breaking(config),
    }
    return sha256_of(json.dumps(described, sort_keys=True).encode())
