"""Builds the records of `python -m data_prep.build_tfrecords`.

1. Each unit of work, a few MB of text, becomes a spill file of unmasked
   examples.
2. The duplicate documents of each shard are counted, and their examples are
   written to additional spill files with other keys.
3. Each shard is read from all spill files and written.

Each file is written atomically, and finished work is not repeated, so that an
interrupted build continues.

`data_prep/directory.py` knows whose files a directory has. The name of the
scratch directory is a digest of the inputs, in order, of the settings but those
of packing, and of the versions of libraries.
"""

# TensorFlow is not imported here: each worker process imports this module.

import glob
import importlib.metadata
import json
import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from albert_tf.errors import UserError, name_faults
from albert_tf.io import files, shipped
from albert_tf.io.artifact import lock
from albert_tf.records.array_ops import random_bits
from albert_tf.records.features import (
    LABELS_FILE,
    METADATA_FILE,
    TOKENIZER_FILE,
    UNK_ID,
    sha256_of,
)
from albert_tf.records.tokenization import GOOGLE_ALBERT, Tokenizer
from data_prep import text
from data_prep.config import RecordsConfig
from data_prep.directory import (
    RecordsDirectory,
    find_scratch_parent,
    remove_scratch,
)
from data_prep.metadata import (
    BuiltRecords,
    describe_split,
    judge_form,
    judge_use,
)
from data_prep.processes import Processes, show_progress
from data_prep.segments import (
    EVAL,
    TEXT_FORM,
    TRAIN,
    UnmaskedExamples,
    group_by_size,
    make_examples,
    token_dtype,
)
from data_prep.shards import (
    Shard,
    ShardResult,
    choose_shards,
    find_finished,
    list_shards,
    write_shard,
)
from data_prep.shuffle import SpillFiles, count_earlier_equals

# By sentence objective; increased when the same text and settings give other
# examples. The digest of a build contains it as "schema_version".
_EXAMPLES_VERSION = {"sop": 3, "nsp": 4, "none": 3}

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
# Written when all units have a spill file.
_UNITS_FINISHED = "units.json"


def build_records(config: RecordsConfig) -> None:
    """Builds records, unless the output directory has them already.

    Raises:
        UserError: For text, a vocabulary or an output directory that cannot
            be used.
    """
    config.require("output_dir", "spm_model_file")
    warning = config.describe_missing_predictions()
    if warning:
        logging.warning("%s", warning)
    output_dir = config.output_dir
    spm_model_file = shipped.find(config.spm_model_file, shipped.VOCABULARY)
    tokenizer = Tokenizer(spm_model_file, config.do_lower_case)
    with files.open_existing(spm_model_file, "rb") as file:
        model = file.read()
    vocabulary = spm_model_file.removesuffix(".model")
    written = [vocabulary + suffix for suffix in (".model", ".vocab", ".json")]
    directory = RecordsDirectory(config)
    found = text.find_inputs(config, [*written, *directory.list_files()])
    directory.check_writable()
    checked = text.check_inputs(found, config)
    if config.reads_labels and tokenizer.space_id < 0:
        raise UserError(
            "label_vocab_size needs a vocabulary of symbols with a space",
            received=config.spm_model_file,
            remedy="Train one with `python -m data_prep.train_tokenizer "
            "--symbols=text --text_field=units`.",
        )
    digests = list(checked.digests.values())
    inputs_sha256 = _digest_inputs(config, tokenizer, sorted(digests))
    versions = text.find_versions(config)
    versions["fonttools"] = importlib.metadata.version("fonttools")
    key = sha256_of(json.dumps([inputs_sha256, digests, versions]).encode())
    scratch = os.path.join(find_scratch_parent(config), key)
    if directory.is_finished(inputs_sha256, tokenizer.sha256, versions):
        # The last build may have been interrupted before these removals.
        directory.finish()
        remove_scratch(scratch, config)
        logging.info("%s is up to date", output_dir)
        return

    if tokenizer.kind == GOOGLE_ALBERT and not tokenizer.keep_accents:
        checked.warn_of_lost_accents(
            "A vocabulary that "
            "`python -m data_prep.train_tokenizer --keep_accents` trains "
            "keeps them."
        )
    files.make_directories(output_dir)
    with lock(output_dir):
        os.makedirs(scratch, exist_ok=True)
        with lock(scratch):
            files.write_bytes(os.path.join(scratch, TOKENIZER_FILE), model)
            _write_labels(scratch, checked, config)
            with Processes(
                config.num_workers,
                _make_state,
                config,
                scratch,
                dask_scheduler=config.dask_scheduler,
            ) as processes:
                built = _build_shards(processes, checked, directory)
            _write_metadata(processes.state, built, inputs_sha256, model)
            directory.finish()
        remove_scratch(scratch, config)


def _write_labels(
    scratch: str, checked: text.CheckedText, config: RecordsConfig
) -> None:
    """Writes the words of the labels from 1 on, unless they are there."""
    path = os.path.join(scratch, LABELS_FILE)
    if config.reads_labels and not files.exists(path):
        number = config.label_vocab_size - 1  # 0 is no label
        words = text.choose_labels(checked, number)
        files.write_text(path, "".join(f"{word}\n" for word in words))


def _digest_inputs(
    config: RecordsConfig, tokenizer: Tokenizer, digests: Sequence[str]
) -> str:
    """Returns a digest of everything that decides the examples."""
    described = {
        "settings": config.result_settings(),
        "schema_version": _EXAMPLES_VERSION[config.sentence_objective],
        "vocabulary_sha256": tokenizer.sha256,
        "inputs": digests,
        **text.describe_breaking(config),
    }
    return sha256_of(json.dumps(described, sort_keys=True).encode())


class _State(NamedTuple):
    """The state that each process makes once for all tasks.

    Attributes:
        scratch: Directory of the spill files, and of copies of the vocabulary
            and of the words of labels.
        shards: All shards of the build.
        labels: The label of each word; None without labels.
    """

    config: RecordsConfig
    scratch: str
    tokenizer: Tokenizer
    shards: list[Shard]
    spilled: SpillFiles
    labels: dict[str, int] | None

    def unit_path(self, unit: int) -> str:
        return os.path.join(self.scratch, _UNITS, f"{unit:07d}.spill")

    def spill_files(self, *kinds: str) -> list[str]:
        """Returns the spill files of some kinds, sorted."""
        patterns = [os.path.join(kind, "*.spill") for kind in kinds]
        return [
            os.path.join(self.scratch, path)
            for pattern in patterns
            for path in sorted(glob.glob(pattern, root_dir=self.scratch))
        ]


def _make_state(config: RecordsConfig, scratch: str) -> _State:
    vocabulary = os.path.join(scratch, TOKENIZER_FILE)
    tokenizer = Tokenizer(vocabulary, config.do_lower_case)
    shards = list_shards(config)
    dtype = token_dtype(tokenizer.vocab_size, config.reads_labels)
    labels = None
    if config.reads_labels:
        path = os.path.join(scratch, LABELS_FILE)
        with files.open_existing(path, "rb") as file:
            words = file.read().decode().split("\n")[:-1]
        labels = {word: label for label, word in enumerate(words, 1)}
    return _State(
        config,
        scratch,
        tokenizer,
        shards,
        SpillFiles(len(shards), dtype),
        labels,
    )


def _build_shards(
    processes: Processes,
    checked: text.CheckedText,
    directory: RecordsDirectory,
) -> BuiltRecords:
    """Builds all shards."""
    state = processes.state
    _make_units(state, checked, processes)
    built = _sum_units(state)
    _check_not_empty(state.config, built, checked)
    _judge_text(built, state.tokenizer)
    num_shards = len(state.shards)
    with show_progress("comparing documents", num_shards, "shard") as bar:
        numbers = processes.map(_move_duplicates, range(num_shards))
        for shard, number in zip(state.shards, numbers, strict=True):
            built.duplicates[shard.split] += number
            bar.update(1)
    directory.begin()
    # Without duplicates, the total includes the dropped examples.
    num_examples = built.num_examples.total()
    with show_progress("writing shards", num_examples, "example") as bar:
        results = processes.map(_write_shard, range(num_shards))
        for shard, result in zip(state.shards, results, strict=True):
            built.shards[shard] = result
            bar.update(result.counts.get("examples", 0))
    return built


# --- 1. units -----------------------------------------------------------------


_UnitTask = tuple[str, str, list[list[str]]]


def _make_units(
    state: _State, checked: text.CheckedText, processes: Processes
) -> None:
    """Writes the spill file of every unit."""
    finished_path = os.path.join(state.scratch, _UNITS_FINISHED)
    if files.exists(finished_path):
        return
    unit_size = choose_unit_size(checked.num_bytes, state.config.dupe_factor)
    skipped: Counter[str] = Counter()
    documents = checked.read_documents("making examples", skipped)
    num_units = 0

    def tasks() -> Iterator[_UnitTask]:
        nonlocal num_units
        for unit in group_by_size(documents, unit_size):
            path = state.unit_path(num_units)
            # An interrupted build may have read other text.
            digest = sha256_of("\n\n".join(map("\n".join, unit)).encode())
            if not (
                files.exists(path)
                and files.load_json(path + ".json")["sha256"] == digest
            ):
                yield path, digest, unit
            num_units += 1

    for _ in processes.map(make_unit, tasks()):
        pass
    for path in state.spill_files(_UNITS)[num_units:]:
        files.remove(path)  # of other text that an interrupted build read
    files.write_json(finished_path, {"skipped": skipped})


def choose_unit_size(num_bytes: int, dupe_factor: int) -> int:
    """Returns the number of characters of a unit, of text of stored bytes."""
    target = max(num_bytes // _TARGET_NUM_UNITS, _SMALLEST_UNIT)
    return min(target, _LARGEST_UNIT, max(1, _LARGEST_COPIES // dupe_factor))


def make_unit(state: _State, task: _UnitTask) -> None:
    """Writes the spill file of a unit.

    Args:
        task: The path, a digest of the documents, and the documents.
    """
    path, digest, documents = task
    by_split, piece_counts, counts = make_examples(
        documents, state.tokenizer, state.config, state.labels
    )
    with files.atomic_write(path + ".token_counts.npy") as file:
        np.save(file, piece_counts.astype(np.uint32))
    files.write_json(path + ".json", {"skipped": counts, "sha256": digest})
    examples = UnmaskedExamples.concatenate(
        by_split.values(), state.spilled.dtype
    )
    shards = [
        choose_shards(state.shards, split, of_split.headers["key"])
        for split, of_split in by_split.items()
        if len(of_split.headers)
    ]
    # Last, because a complete spill file marks the unit as finished.
    state.spilled.write(
        path, examples, np.concatenate([np.empty(0, np.int64), *shards])
    )


def _sum_units(state: _State) -> BuiltRecords:
    """Returns the sums over all units."""
    piece_counts = np.zeros(state.tokenizer.vocab_size, np.int64)
    finished = files.load_json(os.path.join(state.scratch, _UNITS_FINISHED))
    counts = Counter(finished["skipped"])
    num_examples: Counter[str] = Counter()
    for path in state.spill_files(_UNITS):
        piece_counts += np.load(path + ".token_counts.npy")
        counts += Counter(files.load_json(path + ".json")["skipped"])
        sizes, _ = state.spilled.read_counts(path)
        for shard, size in zip(state.shards, sizes.tolist(), strict=True):
            num_examples[shard.split] += size
    form = {name: counts.pop(name, 0) for name in TEXT_FORM}
    return BuiltRecords(piece_counts, counts, num_examples, form)


def _check_not_empty(
    config: RecordsConfig, built: BuiltRecords, checked: text.CheckedText
) -> None:
    """Refuses a corpus that gives no examples for a split."""
    if not built.num_examples.total():
        skipped = text.join_counts(built.skipped) or "only blank lines"
        names = name_faults([source.name for source in checked.digests])
        raise UserError(
            "the text must contain a document of at least two words",
            received=f"{skipped}, in {names}",
        )
    train, evaluated = built.num_examples[TRAIN], built.num_examples[EVAL]
    if config.holdout_fraction and not (train and evaluated):
        raise UserError(
            "holdout_fraction must leave documents for train/ and for eval/",
            received=f"{config.holdout_fraction}, which leaves {train} and "
            f"{evaluated} examples",
            remedy="A hash of the text chooses the documents, which blank "
            "lines separate: set a fraction of several documents, or 0.",
        )


def _judge_text(built: BuiltRecords, tokenizer: Tokenizer) -> None:
    """Warns of a form of the text or a vocabulary that does not suit."""
    if tokenizer.has_symbols:
        counts = built.piece_counts
        names = "; data_prep.train_tokenizer names them"
        text.refuse_unknown(int(counts[UNK_ID]), int(counts.sum()), names)
        return
    if warning := judge_form(built.text_form):
        logging.warning("%s", warning)
    if faults := judge_use(built.piece_counts, tokenizer):
        logging.warning(
            "the vocabulary does not suit the text: %s. Check "
            "--do_lower_case=%s, or train a vocabulary on this text with "
            "`python -m data_prep.train_tokenizer`.",
            faults,
            str(tokenizer.do_lower_case).lower(),
        )


# --- 2. duplicates ------------------------------------------------------------


def _move_duplicates(state: _State, shard: int) -> int:
    """Returns the number of duplicate documents of a shard.

    Unless duplicates are dropped, their examples are written to additional
    spill files with other keys, which may belong to other shards.
    """
    prefix = os.path.join(state.scratch, _DUPLICATES, f"{shard:05d}")
    if finished := files.load_json_if_any(prefix + ".json"):
        return finished["documents"]
    split = state.shards[shard].split
    units = state.spill_files(_UNITS)
    num_examples = num_documents = 0
    for headers in state.spilled.read_headers(units, shard):
        duplicates = headers[count_earlier_equals(headers) > 0]
        num_examples += len(duplicates)
        num_documents += int(duplicates["opens_document"].sum())
    if num_examples and not state.config.deduplicate:
        parts = state.spilled.read_shard(units, shard)
        for number, examples in enumerate(parts):
            occurrences = count_earlier_equals(examples.headers)
            indices = np.flatnonzero(occurrences)
            moved = examples.take(indices)
            keys = random_bits(moved.headers["key"], occurrences[indices])
            moved.headers["key"] = keys
            state.spilled.write(
                f"{prefix}-{number:05d}.spill",
                moved,
                choose_shards(state.shards, split, keys),
            )
    files.write_json(prefix + ".json", {"documents": num_documents})
    return num_documents


# --- 3. shards ----------------------------------------------------------------


def _write_shard(state: _State, number: int) -> ShardResult:
    """Writes a shard unless an interrupted build has written it."""
    shard = state.shards[number]
    finished = find_finished(shard, state.config.output_dir)
    if finished is not None:
        return finished
    paths = state.spill_files(_UNITS, _DUPLICATES)
    # Duplicates are dropped here: if they are kept, other spill files have
    # them with other keys.
    unique = (
        part.take(np.flatnonzero(count_earlier_equals(part.headers) == 0))
        for part in state.spilled.read_shard(paths, number)
    )
    return write_shard(shard, unique, state.tokenizer, state.config)


def _write_metadata(
    state: _State, built: BuiltRecords, inputs_sha256: str, model: bytes
) -> None:
    """Writes what describes each split, and logs a summary."""
    config = state.config
    labels = "".join(f"{word}\n" for word in state.labels or ())
    for split in (TRAIN, EVAL) if config.holdout_fraction else (TRAIN,):
        directory = posixpath.join(config.output_dir, split)
        metadata = describe_split(
            config, split, built, state.tokenizer, inputs_sha256, labels
        )
        if labels:
            files.write_text(posixpath.join(directory, LABELS_FILE), labels)
        files.write_bytes(posixpath.join(directory, TOKENIZER_FILE), model)
        files.write_text(
            posixpath.join(directory, METADATA_FILE), metadata.to_json()
        )
        logging.info(
            "%s: %d documents (%d of them duplicates), %d examples in %d "
            "records; %.1f %% of the positions filled; skipped or split: %s",
            directory,
            metadata.num_documents,
            metadata.num_duplicate_documents,
            metadata.num_examples,
            metadata.num_rows,
            100 * metadata.fill,
            text.join_counts(metadata.skipped) or "nothing",
        )
