"""Builds shards by the processes of one machine.

1. Units of work, a few MB of text each, become spill files of rows.
2. Rows of repeated documents are counted, and moved to shards of their own.
3. Each shard is read from all spill files and written.

A unit, a shard's repetitions and a shard are written whole or not at all, and
what is there is not done again: an interrupted build goes on where it was.
"""

import glob
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.io import files
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder import directory as records_directory
from data_prep.builder.examples import make_rows, normalize_document
from data_prep.builder.rows import Rows, piece_dtype
from data_prep.builder.shards import (
    BuiltRecords,
    Shard,
    ShardResult,
    choose_shards,
    find_finished,
    list_shards,
    write_shard,
)
from data_prep.builder.shuffle import (
    count_earlier_equals,
    give_new_keys,
    read_counts,
    read_headers,
    read_shard,
    write_spill,
)
from data_prep.config import RecordsConfig
from data_prep.processes import Processes
from data_prep.progress import annotate, show_bytes, show_count
from data_prep.text import corpus
from data_prep.text.sources import Source

# Characters of text in a unit, at the most and at the least, and how many
# units there are to be between: enough to keep many processes busy.
_LARGEST_UNIT = 8 << 20
_SMALLEST_UNIT = 64 << 10
_UNITS_WANTED = 256

# Characters of a unit with all its copies, at the most; their rows are in
# memory, in up to three places, at two bytes a piece.
_LARGEST_COPIES = 64 << 20


class _State(NamedTuple):
    """What every task of a process needs.

    Attributes:
        config: How records are to be.
        tokenizer: The vocabulary.
        shards: All of them.
        scratch: The directory of spill files.
    """

    config: RecordsConfig
    tokenizer: Tokenizer
    shards: list[Shard]
    scratch: str

    @property
    def dtype(self) -> np.dtype:
        """Of the pieces."""
        return piece_dtype(self.tokenizer.vocab_size)

    def unit_path(self, unit: int) -> str:
        return os.path.join(self.scratch, "units", f"{unit:07d}.rows")

    def spill_files(self, *kinds: str) -> list[str]:
        """Those of some kinds: "units", "repetitions"."""
        return [
            path
            for kind in kinds
            for path in sorted(
                glob.glob(
                    os.path.join(glob.escape(self.scratch), kind, "*.rows")
                )
            )
        ]


def build(
    config: RecordsConfig,
    sources: Sequence[Source],
    vocabulary: str,
    scratch: str,
    inputs_sha256: str,
) -> BuiltRecords:
    """Builds all shards.

    Args:
        config: How records are to be.
        sources: The text.
        vocabulary: A local copy of the SentencePiece model.
        scratch: Local directory; what an earlier call with the same
            arguments left there is used.
        inputs_sha256: Names the build.

    Raises:
        UserError: If a split would be empty; no records are touched then.
    """
    for kind in ("units", "repetitions"):
        os.makedirs(os.path.join(scratch, kind), exist_ok=True)
    arguments = (config, vocabulary, scratch)
    state = _make_state(*arguments)
    with Processes(config.num_workers, _make_state, *arguments) as processes:
        make_units(state, sources, processes)
        num_rows, built = _sum_units(state)
        records_directory.check_not_empty(
            config, num_rows, built.skipped, sources
        )
        _find_repetitions(state, processes, built)
        records_directory.make_room(config.output_dir, inputs_sha256)
        _write_shards(state, processes, built, num_rows.total())
    return built


def _make_state(config: RecordsConfig, vocabulary: str, scratch: str) -> _State:
    tokenizer = Tokenizer(vocabulary, config.do_lower_case)
    return _State(config, tokenizer, list_shards(config), scratch)


# --- 1. units ----------------------------------------------------------------


def make_units(
    state: _State, sources: Sequence[Source], processes: Processes
) -> None:
    """Makes the spill file of every unit."""
    finished_path = os.path.join(state.scratch, "units.json")
    if files.exists(finished_path):
        return
    num_bytes = sum(source.num_bytes for source in sources)
    unit_size = choose_unit_size(num_bytes, state.config.dupe_factor)
    skipped: Counter[str] = Counter()
    num_examples = 0
    with show_bytes("making examples", num_bytes) as bar:
        documents = corpus.read_documents(
            sources, state.config, bar.update, skipped
        )
        units = enumerate(_cut_units(documents, unit_size))
        to_do = (u for u in units if not files.exists(state.unit_path(u[0])))
        for done in processes.map(make_unit, to_do):
            num_examples += done.result
            annotate(bar, examples=num_examples, peak_memory=done.peak_memory)
    files.write_text(finished_path, json.dumps({"skipped": skipped}))


def choose_unit_size(num_bytes: int, dupe_factor: int) -> int:
    """Characters of a unit.

    Args:
        num_bytes: Size of all sources, as stored.
        dupe_factor: Copies of the text.
    """
    wanted = max(num_bytes // _UNITS_WANTED, _SMALLEST_UNIT)
    return min(wanted, _LARGEST_UNIT, max(1, _LARGEST_COPIES // dupe_factor))


def _cut_units(
    documents: Iterator[list[str]], size: int
) -> Iterator[list[list[str]]]:
    unit: list[list[str]] = []
    characters = 0
    for document in documents:
        unit.append(document)
        characters += sum(map(len, document))
        if characters >= size:
            yield unit
            unit, characters = [], 0
    if unit:
        yield unit


def make_unit(state: _State, task: tuple[int, list[list[str]]]) -> int:
    """Writes the rows of some documents; how many there are."""
    unit, documents = task
    normalized = [
        normalize_document(document, state.tokenizer, state.config)
        for document in documents
    ]
    made = make_rows(normalized, state.tokenizer, state.config)
    path = state.unit_path(unit)
    np.save(path + ".pieces.npy", made.piece_counts.astype(np.uint32))
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump({"skipped": made.skipped}, file)
    rows = Rows.concatenate(made.rows.values(), state.dtype)
    shards = np.concatenate(
        [
            choose_shards(state.shards, split, rows.headers["key"])
            for split, rows in made.rows.items()
            if len(rows.headers)
        ]
        or [np.empty(0, np.int64)]
    )
    # Last, since it tells that the unit is done.
    write_spill(path, rows, shards, len(state.shards))
    return len(rows.headers)


def _sum_units(state: _State) -> tuple[Counter[str], BuiltRecords]:
    """Rows by split, and what the units say of the text."""
    piece_counts = np.zeros(state.tokenizer.vocab_size, np.int64)
    finished = files.load_json(os.path.join(state.scratch, "units.json"))
    skipped = Counter(finished["skipped"])
    rows_of_shards = np.zeros(len(state.shards), np.int64)
    for path in state.spill_files("units"):
        piece_counts += np.load(path + ".pieces.npy")
        skipped += Counter(files.load_json(path + ".json")["skipped"])
        rows_of_shards += read_counts(path, len(state.shards))
    num_rows: Counter[str] = Counter()
    for shard, count in zip(state.shards, rows_of_shards, strict=True):
        num_rows[shard.split] += int(count)
    return num_rows, BuiltRecords(piece_counts, skipped)


# --- 2. repetitions ----------------------------------------------------------


def _find_repetitions(
    state: _State, processes: Processes, built: BuiltRecords
) -> None:
    tasks = range(len(state.shards))
    with show_count("comparing documents", len(tasks), "shard") as bar:
        for shard, done in enumerate(processes.map(_move_repetitions, tasks)):
            built.duplicates[state.shards[shard].split] += done.result
            bar.update(1)


def _move_repetitions(state: _State, shard: int) -> int:
    """Gives repeated rows of a shard new keys; how many documents repeat.

    The rows are written to spill files of their own, unless repetitions are
    left out.
    """
    directory = os.path.join(state.scratch, "repetitions")
    finished_path = os.path.join(directory, f"{shard:05d}.json")
    if finished := files.load_json_if_any(finished_path):
        return finished["documents"]
    split = state.shards[shard].split
    source = (state.spill_files("units"), shard, len(state.shards), state.dtype)
    num_repeated = num_documents = 0
    for headers in read_headers(*source):
        repeated = headers[count_earlier_equals(headers) > 0]
        num_repeated += len(repeated)
        num_documents += int(repeated["opens_document"].sum())
    if num_repeated and not state.config.deduplicate:
        for number, rows in enumerate(read_shard(*source)):
            occurrences = count_earlier_equals(rows.headers)
            repeated = np.flatnonzero(occurrences)
            moved = give_new_keys(rows.take(repeated), occurrences[repeated])
            write_spill(
                os.path.join(directory, f"{shard:05d}-{number:05d}.rows"),
                moved,
                choose_shards(state.shards, split, moved.headers["key"]),
                len(state.shards),
            )
    files.write_text(finished_path, json.dumps({"documents": num_documents}))
    return num_documents


# --- 3. shards ---------------------------------------------------------------


def _write_shards(
    state: _State, processes: Processes, built: BuiltRecords, num_rows: int
) -> None:
    # Too many where repetitions are left out.
    with show_count("writing shards", num_rows, "example") as bar:
        tasks = range(len(state.shards))
        for number, done in enumerate(processes.map(_write_shard, tasks)):
            built.shards[state.shards[number]] = done.result
            bar.update(done.result.counts.get("examples", 0))
            annotate(bar, peak_memory=done.peak_memory)


def _write_shard(state: _State, number: int) -> ShardResult:
    """Writes a shard unless it is there."""
    shard = state.shards[number]
    finished = find_finished(shard, state.config.output_dir)
    if finished is not None:
        return finished
    parts = read_shard(
        state.spill_files("units", "repetitions"),
        number,
        len(state.shards),
        state.dtype,
    )
    # Repetitions are left out here; they came in anew under other keys.
    once = (
        rows.take(np.flatnonzero(count_earlier_equals(rows.headers) == 0))
        for rows in parts
    )
    return write_shard(shard, once, state.tokenizer, state.config)
