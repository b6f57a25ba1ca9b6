"""Builds the records of `python -m data_prep.build_tfrecords`.

1. Each unit of work, a few MB of text, becomes a spill file of unmasked
   examples.
2. The duplicate documents of each shard are counted, and their examples are
   written to additional spill files with other keys.
3. Each shard is read from all spill files and written.

Each file is written atomically, and finished work is not repeated, so that an
interrupted build continues. Spill files of the wrong size are written again.
"""

# TensorFlow is not imported here: each worker process imports this module.

import dataclasses
import glob
import json
import os
import posixpath
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from albert_tf.io import files
from albert_tf.io.artifact import Artifact, check_writable
from albert_tf.io.ownership import Owner, own
from albert_tf.records.features import TOKENIZER_FILE, sha256_of
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder import directory
from data_prep.builder.examples import (
    EVAL,
    TRAIN,
    UnmaskedExamples,
    group_by_size,
    make_examples,
    token_dtype,
)
from data_prep.builder.shards import (
    BuiltRecords,
    Shard,
    ShardResult,
    choose_shards,
    describe_split,
    find_finished,
    list_shards,
    log_summary,
    write_shard,
)
from data_prep.builder.shuffle import (
    SpillFiles,
    count_earlier_equals,
    rekey_duplicates,
)
from data_prep.config import RecordsConfig
from data_prep.processes import Processes, show_progress
from data_prep.text import (
    Source,
    describe_breaking,
    find_inputs,
    find_versions,
    read_documents,
)

# By sentence objective; increased when the same text and settings give other
# examples. The digest of a build contains it as "schema_version".
_EXAMPLES_VERSION = {"sop": 2, "nsp": 3, "none": 2}

# Bounds of the size of a unit, in characters of text. Between them, the number
# of units is enough to keep many processes busy.
_LARGEST_UNIT = 8 << 20
_SMALLEST_UNIT = 64 << 10
_TARGET_NUM_UNITS = 256

# Largest number of characters of a unit with all its copies. Memory holds up to
# three copies of their tokens, at two bytes per token.
_LARGEST_COPIES = 64 << 20

# Kinds of spill files, each in a directory of its name.
_UNITS, _DUPLICATES = "units", "duplicates"


def build_records(config: RecordsConfig) -> None:
    """Builds records, unless the output directory has them already.

    Raises:
        UserError: For text, a vocabulary or an output directory that cannot
            be used.
    """
    config.require("output_dir", "spm_model_file")
    if config.runner == "dask":
        config = _make_paths_absolute(config)
    warning = config.describe_missing_predictions()
    if warning:
        logging.warning("%s", warning)
    begin = time.monotonic()
    tokenizer = Tokenizer(config.spm_model_file, config.do_lower_case)
    sources = find_inputs(config)
    if not directory.has_finished_records(config.output_dir):
        _check_writable(config)
    num_bytes = sum(source.num_bytes for source in sources)
    with show_progress("checking inputs", num_bytes) as bar:
        digests = [s.check_and_digest(config, bar.update) for s in sources]
    inputs_sha256 = _digest_inputs(config, tokenizer, sorted(digests))
    # Finished records stay valid with other versions of libraries, but one
    # build must not mix them.
    versions = find_versions(config)
    scratch_key = sha256_of(
        json.dumps([inputs_sha256, digests, versions]).encode()
    )
    packing = config.packing_settings()
    records = Artifact(
        "output_dir",
        "records",
        identity={
            "inputs_sha256": inputs_sha256,
            "packing": config.packing,
            "max_examples_per_row": packing.get("max_examples_per_row"),
        },
        settings={
            **config.result_settings(),
            "packing": config.packing,
            **packing,
            "vocabulary_sha256": tokenizer.sha256,
            **versions,
        },
        overwrite=config.overwrite,
    )
    unfinished = dataclasses.replace(
        records, identity={**records.identity, "versions": versions}
    )
    missing = directory.find_missing_shards(
        config.output_dir, records, unfinished, list_shards(config)
    )
    if missing == []:
        # The last build may have been interrupted before these removals.
        directory.remove_notes(config.output_dir)
        directory.remove_scratch(config, scratch_key)
        logging.info("%s is up to date", config.output_dir)
        return

    _check_writable(config)
    files.make_directories(config.output_dir)
    with (
        own(config.output_dir) as owner,
        directory.open_scratch(config, scratch_key) as scratch,
        own(scratch),
    ):
        vocabulary = os.path.join(scratch, TOKENIZER_FILE)
        with files.open_existing(config.spm_model_file, "rb") as file:
            model = file.read()
        files.write_bytes(vocabulary, model)
        built = _build_shards(
            config,
            sources,
            vocabulary,
            scratch,
            unfinished,
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
        directory.finish_build(config.output_dir, metadata, model)
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


def _build_shards(
    config: RecordsConfig,
    sources: Sequence[Source],
    vocabulary: str,
    scratch: str,
    unfinished: Artifact,
    owner: Owner,
    checksums: Mapping[Shard, str],
) -> BuiltRecords:
    """Builds all shards, or those that finished records lack.

    Args:
        vocabulary: Path of a local copy of the SentencePiece model.
        scratch: Local directory. Finished work of an interrupted call with
            the same arguments is reused.
        unfinished: Identifies the build until it is complete.
        owner: Checked before each change of the output directory.
        checksums: SHA-256 of the shards that finished records lack; empty for
            a build of all shards.

    Raises:
        UserError: If a split would be empty, or if a shard has another SHA-256.
            Existing records are kept then.
    """
    for kind in (_UNITS, _DUPLICATES):
        os.makedirs(os.path.join(scratch, kind), exist_ok=True)
    arguments = (config, vocabulary, scratch)
    state = _make_state(*arguments)
    with Processes(
        config.num_workers,
        _make_state,
        *arguments,
        dask_scheduler=config.dask_scheduler,
    ) as processes:
        make_units(state, sources, processes)
        num_examples, built = _sum_units(state)
        directory.check_not_empty(config, num_examples, built.skipped, sources)
        _find_duplicates(state, processes, built)
        owner.check()
        if not checksums:
            directory.begin_build(config.output_dir, unfinished)
            directory.remove_other_scratch(config, scratch)
        _write_shards(
            state, processes, built, num_examples.total(), owner, checksums
        )
    return built


class _State(NamedTuple):
    """The state that each process makes once for all tasks.

    Attributes:
        shards: All shards of the build.
        scratch: Directory of the spill files.
    """

    config: RecordsConfig
    tokenizer: Tokenizer
    shards: list[Shard]
    scratch: str

    @property
    def spilled(self) -> SpillFiles:
        """How spill files are written and read."""
        dtype = token_dtype(self.tokenizer.vocab_size)
        return SpillFiles(len(self.shards), dtype)

    def unit_path(self, unit: int) -> str:
        return os.path.join(self.scratch, _UNITS, f"{unit:07d}.spill")

    def duplicates_path(self, shard: int, number: int) -> str:
        name = f"{shard:05d}-{number:05d}.spill"
        return os.path.join(self.scratch, _DUPLICATES, name)

    def are_complete(self, paths: Iterable[str]) -> bool:
        """Whether spill files exist and have the right size."""
        return all(map(self.spilled.is_complete, paths))

    def spill_files(self, *kinds: str) -> list[str]:
        """Returns the spill files of some kinds, sorted within each."""
        found = []
        for kind in kinds:
            pattern = os.path.join(glob.escape(self.scratch), kind, "*.spill")
            found += sorted(glob.glob(pattern))
        return found


def _make_state(config: RecordsConfig, vocabulary: str, scratch: str) -> _State:
    tokenizer = Tokenizer(vocabulary, config.do_lower_case)
    return _State(config, tokenizer, list_shards(config), scratch)


# --- 1. units ----------------------------------------------------------------


def make_units(
    state: _State,
    sources: Sequence[Source],
    processes: Processes,
) -> None:
    """Writes the spill file of every unit."""
    finished_path = os.path.join(state.scratch, "units.json")
    finished = files.load_json_if_any(finished_path) or {}
    if "units" in finished and state.are_complete(
        map(state.unit_path, range(finished["units"]))
    ):
        return
    num_bytes = sum(source.num_bytes for source in sources)
    unit_size = choose_unit_size(num_bytes, state.config.dupe_factor)
    skipped: Counter[str] = Counter()
    num_units = num_examples = 0
    with show_progress("making examples", num_bytes) as bar:
        documents = read_documents(sources, state.config, bar.update, skipped)

        def tasks() -> Iterator[tuple[int, list[list[str]]]]:
            nonlocal num_units
            for unit in group_by_size(documents, unit_size):
                if not state.are_complete([state.unit_path(num_units)]):
                    yield num_units, unit
                num_units += 1

        for made in processes.map(make_unit, tasks()):
            num_examples += made
            bar.set_postfix(examples=num_examples, refresh=False)
    files.write_text(
        finished_path, json.dumps({"units": num_units, "skipped": skipped})
    )


def choose_unit_size(num_bytes: int, dupe_factor: int) -> int:
    """Returns the number of characters of a unit.

    Args:
        num_bytes: Stored size of all sources.
        dupe_factor: Number of copies of the text.
    """
    target = max(num_bytes // _TARGET_NUM_UNITS, _SMALLEST_UNIT)
    return min(target, _LARGEST_UNIT, max(1, _LARGEST_COPIES // dupe_factor))


def make_unit(state: _State, task: tuple[int, list[list[str]]]) -> int:
    """Writes the spill file of a unit, and returns its number of examples."""
    unit, documents = task
    by_split, piece_counts, skipped = make_examples(
        documents, state.tokenizer, state.config
    )
    path = state.unit_path(unit)
    with files.atomic_write(path + ".token_counts.npy") as file:
        np.save(file, piece_counts.astype(np.uint32))
    files.write_text(path + ".json", json.dumps({"skipped": skipped}))
    examples = UnmaskedExamples.concatenate(
        by_split.values(), state.spilled.dtype
    )
    shards = np.concatenate(
        [
            choose_shards(state.shards, split, of_split.headers["key"])
            for split, of_split in by_split.items()
            if len(of_split.headers)
        ]
        or [np.empty(0, np.int64)]
    )
    # Last, because a complete spill file marks the unit as finished.
    state.spilled.write(path, examples, shards)
    return len(examples.headers)


def _sum_units(state: _State) -> tuple[Counter[str], BuiltRecords]:
    """Returns the number of examples by split, and the sums over all units."""
    piece_counts = np.zeros(state.tokenizer.vocab_size, np.int64)
    finished = files.load_json(os.path.join(state.scratch, "units.json"))
    skipped = Counter(finished["skipped"])
    shard_sizes = np.zeros(len(state.shards), np.int64)
    for path in state.spill_files(_UNITS):
        piece_counts += np.load(path + ".token_counts.npy")
        skipped += Counter(files.load_json(path + ".json")["skipped"])
        shard_sizes += state.spilled.read_counts(path)
    num_examples: Counter[str] = Counter()
    for shard, size in zip(state.shards, shard_sizes, strict=True):
        num_examples[shard.split] += int(size)
    return num_examples, BuiltRecords(piece_counts, skipped)


# --- 2. duplicates -----------------------------------------------------------


def _find_duplicates(
    state: _State, processes: Processes, built: BuiltRecords
) -> None:
    tasks = range(len(state.shards))
    with show_progress("comparing documents", len(tasks), "shard") as bar:
        found = processes.map(_move_duplicates, tasks)
        for shard, number in zip(state.shards, found, strict=True):
            built.duplicates[shard.split] += number
            bar.update(1)


def _move_duplicates(state: _State, shard: int) -> int:
    """Returns the number of duplicate documents of a shard.

    Unless duplicates are dropped, their examples are written to additional
    spill files with other keys, which may belong to other shards.
    """
    finished_path = os.path.join(
        state.scratch, _DUPLICATES, f"{shard:05d}.json"
    )
    finished = files.load_json_if_any(finished_path) or {}
    if "files" in finished and state.are_complete(
        state.duplicates_path(shard, n) for n in range(finished["files"])
    ):
        return finished["documents"]
    split = state.shards[shard].split
    units = state.spill_files(_UNITS)
    num_examples = num_documents = num_files = 0
    for headers in state.spilled.read_headers(units, shard):
        duplicates = headers[count_earlier_equals(headers) > 0]
        num_examples += len(duplicates)
        num_documents += int(duplicates["opens_document"].sum())
    if num_examples and not state.config.deduplicate:
        for examples in state.spilled.read_shard(units, shard):
            occurrences = count_earlier_equals(examples.headers)
            indices = np.flatnonzero(occurrences)
            moved = rekey_duplicates(
                examples.take(indices), occurrences[indices]
            )
            state.spilled.write(
                state.duplicates_path(shard, num_files),
                moved,
                choose_shards(state.shards, split, moved.headers["key"]),
            )
            num_files += 1
    files.write_text(
        finished_path,
        json.dumps({"documents": num_documents, "files": num_files}),
    )
    return num_documents


# --- 3. shards ---------------------------------------------------------------


def _write_shards(
    state: _State,
    processes: Processes,
    built: BuiltRecords,
    num_examples: int,
    owner: Owner,
    checksums: Mapping[Shard, str],
) -> None:
    shards = [s for s in state.shards if not checksums or s in checksums]

    def tasks() -> Iterator[tuple[int, str]]:
        for shard in shards:
            owner.check()
            yield state.shards.index(shard), checksums.get(shard, "")

    # With --deduplicate, the total includes the dropped examples.
    with show_progress("writing shards", num_examples, "example") as bar:
        written = processes.map(_write_shard, tasks())
        for shard, result in zip(shards, written, strict=True):
            built.shards[shard] = result
            bar.update(result.counts.get("examples", 0))


def _write_shard(state: _State, task: tuple[int, str]) -> ShardResult:
    """Writes a shard unless an interrupted build has written it."""
    number, sha256 = task
    shard = state.shards[number]
    finished = find_finished(shard, state.config.output_dir)
    if finished is not None:
        return finished
    paths = state.spill_files(_UNITS, _DUPLICATES)
    # Duplicates are dropped here: unless --deduplicate is set, other spill
    # files have them with other keys.
    unique = (
        part.take(np.flatnonzero(count_earlier_equals(part.headers) == 0))
        for part in state.spilled.read_shard(paths, number)
    )
    return write_shard(shard, unique, state.tokenizer, state.config, sha256)
