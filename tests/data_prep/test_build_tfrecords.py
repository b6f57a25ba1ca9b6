import contextlib
import dataclasses
import glob
import gzip
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.io.files import PARTIAL_SUFFIX
from albert_tf.records.features import (
    CLS_ID,
    FEATURES,
    MASK_ID,
    SENTENCE_LABEL,
    SEP_ID,
    read_metadata,
)
from albert_tf.records.tokenization import Tokenizer, normalize
from data_prep import build_tfrecords
from data_prep.builder import local_runner
from data_prep.builder.build import SCRATCH_DIR
from data_prep.builder.examples import EVAL, TRAIN, choose_split
from data_prep.builder.metadata import unigram_entropy
from data_prep.config import RecordsConfig
from tests.data_prep.test_processes import is_running

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"
VOCABULARY = "tests/testdata/30k-clean.model"
LENGTH, PREDICTIONS = 64, 11


@pytest.fixture(scope="module")
def documents():
    """The first documents of the demo, 0.4 MB."""
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        return file.read(400_000).split("\n\n")[:-1]


@pytest.fixture(scope="module")
def text_file(documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


def make_config(output_dir, *text_files, **settings):
    return RecordsConfig(
        **{
            "input_file": tuple(map(str, text_files)),
            "output_dir": str(output_dir),
            "spm_model_file": VOCABULARY,
            "max_seq_length": LENGTH,
            "max_predictions_per_seq": PREDICTIONS,
            "dupe_factor": 2,
            "holdout_fraction": 0.2,
            "num_shards": 3,
            "num_workers": 1,
            **settings,
        }
    )


def build(output_dir, *text_files, **settings):
    build_tfrecords.main(make_config(output_dir, *text_files, **settings))
    return output_dir


@pytest.fixture(scope="module")
def built(text_file, tmp_path_factory):
    return build(tmp_path_factory.mktemp("records") / "out", text_file)


def read_files(directory):
    """Content by name of all files below, but for metadata's input digest."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(pathlib.Path(directory).rglob("*"))
        if path.is_file()
    }


def read_examples(directory, split):
    """Features by name, parsed as declared; all examples of a split."""
    paths = sorted(glob.glob(str(directory / split / "*.tfrecord")))
    records = [
        record
        for path in paths
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator()
    ]
    return parse(records, LENGTH, PREDICTIONS), records


def parse(records, length, predictions):
    lengths = {"per_token": length, "per_prediction": predictions}
    spec = {
        feature.name: tf.io.FixedLenFeature(
            [next((n for k, n in lengths.items() if getattr(feature, k)), 1)],
            feature.dtype,
        )
        for feature in FEATURES
    }
    parsed = tf.io.parse_example(tf.constant(records), spec)
    return {name: value.numpy() for name, value in parsed.items()}


def restore(examples):
    """`input_ids` before they were masked."""
    ids = examples["input_ids"].copy()
    rows, slots = np.nonzero(examples["masked_lm_weights"])
    ids[rows, examples["masked_lm_positions"][rows, slots]] = examples[
        "masked_lm_ids"
    ][rows, slots]
    return ids


def test_records_hold_the_declared_features_and_no_others(built):
    examples, records = read_examples(built, TRAIN)
    names = tf.train.Example.FromString(records[0]).features.feature.keys()
    assert set(names) == {feature.name for feature in FEATURES}
    assert len(examples["input_ids"]) == len(records) > 500


def test_records_of_google_research_parse_alike():
    """Its writer, by hand: every feature a list of its length, the weights
    floats, the label a list of one, in whatever order."""
    example = tf.train.Example()
    rows = {
        "next_sentence_labels": [1],
        "masked_lm_ids": [30, 0],
        "masked_lm_positions": [2, 0],
        "token_boundary": [1, 1, 0, 1, 1, 1, 0],
        "segment_ids": [0, 0, 0, 0, 1, 1, 0],
        "input_mask": [1, 1, 1, 1, 1, 1, 0],
        "input_ids": [2, 29000, 4, 3, 31, 3, 0],
    }
    for name, values in rows.items():
        example.features.feature[name].int64_list.value.extend(values)
    weights = example.features.feature["masked_lm_weights"]
    weights.float_list.value.extend([1.0, 0.0])
    parsed = parse([example.SerializeToString()], 7, 2)
    for name, values in rows.items():
        assert parsed[name].tolist() == [values]
    assert parsed["masked_lm_weights"].tolist() == [[1.0, 0.0]]


def test_examples_are_laid_out_as_published(built):
    """`[CLS] A [SEP] B [SEP]`, padding behind, all of one description."""
    examples, _ = read_examples(built, TRAIN)
    ids = restore(examples)
    mask = examples["input_mask"]
    lengths = mask.sum(axis=1)
    assert (np.diff(mask, axis=1) <= 0).all()
    assert (ids[mask == 0] == 0).all()
    assert (ids[:, 0] == CLS_ID).all()
    assert ((ids == CLS_ID).sum(axis=1) == 1).all()
    assert ((ids == SEP_ID).sum(axis=1) == 2).all()
    assert (ids[np.arange(len(ids)), lengths - 1] == SEP_ID).all()
    first_separator = (ids == SEP_ID).argmax(axis=1)[:, np.newaxis]
    behind = np.arange(LENGTH) > first_separator
    np.testing.assert_array_equal(examples["segment_ids"], behind & (mask > 0))
    special = (ids == CLS_ID) | (ids == SEP_ID)
    assert (examples["token_boundary"][special] == 1).all()
    assert (examples["token_boundary"][mask == 0] == 0).all()
    assert not (ids == MASK_ID).any()


def test_labels_tell_whether_segments_are_swapped(built, documents):
    """Each segment is looked up in its document, where it stands once."""
    tokenizer = Tokenizer(VOCABULARY)
    texts = []
    for document in documents:
        ids = tokenizer.encode_batch(document.split("\n")).ids
        texts.append(" " + " ".join(map(str, ids)) + " ")
    examples, _ = read_examples(built, EVAL)
    ids = restore(examples)
    seen = [0, 0]
    for row, label in zip(ids, examples[SENTENCE_LABEL][:, 0], strict=True):
        middle, last = np.flatnonzero(row == SEP_ID)
        first = f" {' '.join(map(str, row[1:middle]))} "
        second = f" {' '.join(map(str, row[middle + 1 : last]))} "
        where = [t for t in texts if first in t and second in t]
        assert where, "both segments are of one document"
        if any(t.count(first) > 1 or t.count(second) > 1 for t in where):
            continue
        swapped = where[0].index(first) > where[0].index(second)
        assert swapped == bool(label)
        seen[label] += 1
    assert min(seen) > 20


def test_boundaries_are_where_words_begin(built):
    tokenizer = Tokenizer(VOCABULARY)
    examples, _ = read_examples(built, TRAIN)
    ids = restore(examples)
    begins = np.array(
        [
            tokenizer.id_to_piece(i).startswith("▁")
            for i in range(tokenizer.vocab_size)
        ]
    )
    ordinary = ids >= 5
    np.testing.assert_array_equal(
        examples["token_boundary"][ordinary], begins[ids[ordinary]]
    )


def test_metadata_agrees_with_the_records(built):
    for split in (TRAIN, EVAL):
        metadata = read_metadata(str(built / split))
        examples, records = read_examples(built, split)
        assert metadata.num_examples == len(records)
        assert sum(metadata.shards.values()) == len(records)
        assert metadata.num_pieces == examples["input_mask"].sum()
        assert metadata.num_masked == examples["masked_lm_weights"].sum()
        assert metadata.dupe_factor == (2 if split == TRAIN else 1)
        for name, count in metadata.shards.items():
            path = str(built / split / name)
            dataset = tf.data.TFRecordDataset(path)
            assert sum(1 for _ in dataset) == count
        assert (built / split / "spiece.model").read_bytes() == (
            pathlib.Path(VOCABULARY).read_bytes()
        )
    assert 0.14 < metadata.num_masked / metadata.num_pieces < 0.16


def test_nothing_else_is_left_in_the_directory(built):
    assert {path.name for path in built.iterdir()} == {TRAIN, EVAL}
    assert not list(built.rglob("*.partial"))


def test_copies_are_masked_and_paired_anew(built):
    """Two copies of a document share no example."""
    _, records = read_examples(built, TRAIN)
    assert len(set(records)) == len(records)


def test_documents_held_out_are_in_no_training_example(built, documents):
    """By the rare pieces of each document: those of no other document."""
    tokenizer = Tokenizer(VOCABULARY)
    sets = [
        set(tokenizer.encode_batch(d.split("\n")).ids.tolist())
        for d in documents
    ]
    counts = np.bincount([i for s in sets for i in s], minlength=30000)
    found = {
        split: set(restore(read_examples(built, split)[0]).ravel().tolist())
        for split in (TRAIN, EVAL)
    }
    num_eval = 0
    for pieces in sets:
        rare = {i for i in pieces if counts[i] == 1}
        in_train = len(rare & found[TRAIN])
        in_eval = len(rare & found[EVAL])
        assert min(in_train, in_eval) == 0 < max(in_train, in_eval)
        num_eval += in_eval > 0
    assert num_eval == read_metadata(str(built / EVAL)).num_documents > 0


def test_the_share_held_out_is_that_asked_for():
    """Of 4,000 documents a quarter, within four deviations."""
    documents = [[f"Document {i}."] for i in range(4000)]
    held_out = sum(choose_split(d, 0.25) == EVAL for d in documents)
    assert abs(held_out - 1000) < 4 * np.sqrt(4000 * 3 / 16)
    assert choose_split(documents[0], 0.0) == TRAIN


def test_nearly_equal_documents_are_on_the_same_side():
    """Other letter case, other line breaks."""
    for i in range(50):
        expected = choose_split([f"One is {i}.", "Two."], 0.5)
        assert choose_split([f"ONE is {i}. TWO."], 0.5) == expected


def test_unigram_entropy_is_of_ordinary_pieces():
    """Three pieces in shares 1/2, 1/4, 1/4: 1.5 bits; special ones aside."""
    counts = np.array([9, 9, 9, 9, 9, 4, 0, 2, 2])
    entropy = unigram_entropy(counts)
    assert entropy == pytest.approx(1.5 * np.log(2))


def test_workers_and_file_order_have_no_influence(built, documents, tmp_path):
    """The same documents in other files, in another order, one of them
    twice, by three processes instead of one."""
    again = [*documents[::-1]]
    for i in range(3):
        path = tmp_path / f"{i}.txt"
        path.write_text("\n\n".join(again[i::3]), encoding="utf-8")
    other = build(tmp_path / "out", tmp_path / "*.txt", num_workers=3)
    for split in (TRAIN, EVAL):
        for name, content in read_files(built / split).items():
            if name.endswith(".tfrecord"):
                assert (other / split / name).read_bytes() == content


def test_other_seeds_give_other_records(built, text_file, tmp_path):
    other = build(tmp_path / "out", text_file, seed=1)
    name = "train-00000-of-00003.tfrecord"
    assert (other / TRAIN / name).read_bytes() != (
        built / TRAIN / name
    ).read_bytes()


def test_a_repeated_document_is_masked_anew(documents, tmp_path):
    path = tmp_path / "twice.txt"
    path.write_text("\n\n".join([documents[0]] * 2), encoding="utf-8")
    build(tmp_path / "out", path, holdout_fraction=0.0, dupe_factor=1)
    _, records = read_examples(tmp_path / "out", TRAIN)
    assert len(set(records)) == len(records) > 20


def test_without_repetitions_records_are_those_of_the_text_alone(
    built, documents, tmp_path
):
    """Every third document again, in capitals and with other white space."""
    repeated = [d.upper().replace(" ", "  ") for d in documents[::3]]
    path = tmp_path / "text.txt"
    text = "\n\n".join([*repeated, *documents])
    path.write_text(text, encoding="utf-8")
    out = build(tmp_path / "out", path, deduplicate=True)
    duplicates = 0
    for split in (TRAIN, EVAL):
        for name, content in read_files(built / split).items():
            if name.endswith(".tfrecord"):
                assert (out / split / name).read_bytes() == content
        metadata = read_metadata(str(out / split))
        duplicates += metadata.num_duplicate_documents
        assert (
            metadata.num_documents
            == read_metadata(str(built / split)).num_documents
        )
    assert duplicates == len(repeated)


def test_repetitions_do_not_stand_side_by_side(documents, tmp_path):
    """One document ten times: its rows are spread over the shard."""
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join([documents[0]] * 10), encoding="utf-8")
    build(
        tmp_path / "out",
        path,
        num_shards=1,
        holdout_fraction=0.0,
        dupe_factor=1,
    )
    metadata = read_metadata(str(tmp_path / "out" / TRAIN))
    assert metadata.num_documents == 10
    assert metadata.num_duplicate_documents == 9
    examples, _ = read_examples(tmp_path / "out", TRAIN)
    ids = restore(examples)
    rows = len(ids) // 10
    assert rows > 20
    equal_neighbours = (ids[1:] == ids[:-1]).all(axis=1).sum()
    # By chance 9 of the other rows are equal to a row.
    assert equal_neighbours < 4 * 9 * len(ids) / (len(ids) - 1)


def test_next_sentences_are_of_another_document_half_of_the_time(
    documents, tmp_path
):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    out = build(tmp_path / "out", path, sentence_objective="nsp")
    tokenizer = Tokenizer(VOCABULARY)
    texts = []
    for document in documents:
        ids = tokenizer.encode_batch(document.split("\n")).ids
        texts.append(" " + " ".join(map(str, ids)) + " ")
    examples, _ = read_examples(out, EVAL)
    labels = examples[SENTENCE_LABEL][:, 0]
    assert abs(labels.mean() - 0.5) < 4 * np.sqrt(0.25 / len(labels))
    for row, label in zip(restore(examples), labels, strict=True):
        middle, last = np.flatnonzero(row == SEP_ID)
        first = f" {' '.join(map(str, row[1:middle]))} "
        second = f" {' '.join(map(str, row[middle + 1 : last]))} "
        together = [t for t in texts if first in t and second in t]
        if label:
            # A short segment may stand in many documents.
            assert not together or last - middle < 6 or middle < 6
        else:
            assert any(t.index(first) < t.rindex(second) for t in together)
    assert read_metadata(str(out / EVAL)).sentence_objective == "nsp"


def test_without_an_objective_examples_have_one_segment(text_file, tmp_path):
    out = build(tmp_path / "out", text_file, sentence_objective="none")
    examples, _ = read_examples(out, TRAIN)
    ids = restore(examples)
    assert ((ids == SEP_ID).sum(axis=1) == 1).all()
    assert not examples["segment_ids"].any()
    assert not examples[SENTENCE_LABEL].any()
    lengths = examples["input_mask"].sum(axis=1)
    assert np.mean(lengths == LENGTH) > 0.5


def test_dynamic_records_hold_no_masks(built, text_file, tmp_path):
    """train/ holds the static records as they were before masking, eval/
    the static records."""
    out = build(tmp_path / "out", text_file, masking="dynamic")
    assert read_files(out / EVAL).keys() == read_files(built / EVAL).keys()
    for name, content in read_files(built / EVAL).items():
        if name.endswith(".tfrecord"):
            assert (out / EVAL / name).read_bytes() == content
    static, _ = read_examples(built, TRAIN)
    paths = sorted(glob.glob(str(out / TRAIN / "*.tfrecord")))
    records = [
        tf.train.Example.FromString(record).features.feature
        for path in paths
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator()
    ]
    assert set(records[0]) == {
        f.name for f in FEATURES if not f.name.startswith("masked_lm")
    }
    stored = np.array([r["input_ids"].int64_list.value for r in records])
    np.testing.assert_array_equal(stored, restore(static))
    metadata = read_metadata(str(out / TRAIN))
    assert (metadata.masking, metadata.num_masked) == ("dynamic", 0)
    assert read_metadata(str(out / EVAL)).masking == "static"


def test_checksums_are_those_of_the_files(built):
    for split in (TRAIN, EVAL):
        metadata = read_metadata(str(built / split))
        assert metadata.checksums == {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (built / split).glob("*.tfrecord")
        }


def test_records_that_are_there_are_used_again(built, text_file):
    before = {p: p.stat().st_mtime_ns for p in built.rglob("*")}
    build(built, text_file, num_workers=2)
    assert {p: p.stat().st_mtime_ns for p in built.rglob("*")} == before


def test_records_of_other_settings_are_not_replaced_unasked(
    documents, tmp_path
):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents[:9]), encoding="utf-8")
    output_dir = tmp_path / "out"
    build(output_dir, path, holdout_fraction=0.3)
    before = read_files(output_dir)
    with pytest.raises(UserError, match="--overwrite"):
        build(output_dir, path, holdout_fraction=0.3, seed=2)
    path.write_text("\n\n".join(documents[:8]), encoding="utf-8")
    with pytest.raises(UserError, match="--overwrite"):
        build(output_dir, path, holdout_fraction=0.3)
    assert read_files(output_dir) == before
    build(output_dir, path, num_shards=2, holdout_fraction=0, overwrite=True)
    assert len(list((output_dir / TRAIN).glob("*.tfrecord"))) == 2
    assert not list((output_dir / EVAL).iterdir())


def as_flags(config):
    """The command line that gives this config."""
    return [
        f"--{name}={','.join(value) if isinstance(value, tuple) else value}"
        for name, value in dataclasses.asdict(config).items()
        if value not in ((), "")
    ]


def start_build(config):
    return subprocess.Popen(
        [sys.executable, "-m", "data_prep.build_tfrecords", *as_flags(config)],
        stderr=subprocess.DEVNULL,
    )


def kill_with_workers(process):
    """Kills a build, and waits until its processes have ended, too."""
    process.send_signal(signal.SIGSTOP)  # so that it starts no more of them
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = [int(pid) for pid in children.read_text().split()]
    process.kill()
    process.wait()
    while any(is_running(worker) for worker in workers):
        time.sleep(0.01)


@pytest.mark.slow
def test_a_build_killed_at_random_moments_ends_alike(
    built, text_file, tmp_path
):
    """By SIGKILL, until it ends; each part of the work is done once.

    The moments follow what has been written, at most two files more and a
    little later, so that a fast machine does not end before it is killed. A
    busy one may look too late, and then begins again.
    """
    out = tmp_path / "out"
    config = make_config(out, text_file, num_workers=2)
    rng = random.Random(0)

    def whole_files():
        found = {}
        # Not pathlib, which fails where a directory is being removed.
        for pattern in (f"{SCRATCH_DIR}/**/*.rows", "*/*.tfr*"):
            for path in glob.glob(f"{out}/{pattern}", recursive=True):
                with contextlib.suppress(FileNotFoundError):  # just removed
                    if not path.endswith(PARTIAL_SUFFIX):
                        found[path] = os.stat(path).st_mtime_ns
        return found

    written: dict[str, int] = {}
    kills = 0
    while True:
        process = start_build(config)
        wanted = len(written) + rng.randint(0, 2)
        while process.poll() is None and len(whole_files()) < wanted:
            time.sleep(0.001)
        time.sleep(0.02 * kills * rng.random())
        if process.poll() is not None:
            assert process.returncode == 0
            assert tree_of(out) == tree_of(built)
            if kills > 2:
                return
            shutil.rmtree(out)
            written = {}
            continue
        kill_with_workers(process)
        kills += 1
        if (out / TRAIN / "metadata.json").exists():
            continue  # killed while scratch was being removed
        for path, when in written.items():
            # What was whole stays as it is.
            assert os.stat(path).st_mtime_ns == when, path
        written = whole_files()


def tree_of(directory):
    """All below: content of files by name, None of directories."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        if path.is_file()
        else None
        for path in directory.rglob("*")
    }


@pytest.mark.slow
def test_a_build_killed_at_any_change_of_a_file_ends_alike(
    documents, tiny_records, tmp_path, monkeypatch
):
    """Where it replaces another, which was killed when all was written."""
    path = tmp_path / "text.txt"
    lines = documents[3].split("\n")
    parts = ["\n".join(lines[i : i + 5]) for i in range(0, len(lines), 5)]
    path.write_text("\n\n".join([*parts, parts[0]]), encoding="utf-8")
    # Of 400 pieces, which are read at once.
    vocabulary = str(tiny_records / "train" / "spiece.model")
    config = make_config(
        tmp_path / "expected",
        path,
        num_shards=1,
        spm_model_file=vocabulary,
        overwrite=True,
    )
    build_tfrecords.main(config)
    killed = tmp_path / "killed"
    other = killed / "before"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(local_runner.files, "remove", interrupt)
        build(other, path, num_shards=2, seed=1, spm_model_file=vocabulary)
    # The names of its shards are others in train/, the same in eval/.
    assert (other / "train" / "train-00000-of-00002.tfrecord").exists()
    notes = {p.name for p in (other / "unfinished").iterdir()}
    assert "eval-00000-of-00001.tfrecord.json" in notes

    settings = dataclasses.asdict(config)
    del settings["output_dir"], settings["num_workers"]
    subprocess.run(
        [
            sys.executable,
            "tests/helpers/killed_builds.py",
            str(killed),
            json.dumps(settings),
        ],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=True,
    )
    expected = tree_of(tmp_path / "expected")
    ended = {int(p.name): p for p in killed.iterdir() if p != other}
    assert len(ended) > 60
    for number in range(1, len(ended) + 1):
        assert tree_of(ended[number]) == expected, number


def interrupt(path):
    raise KeyboardInterrupt(path)


def test_what_other_builds_left_is_removed(documents, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(documents[0], encoding="utf-8")
    left = tmp_path / "out" / SCRATCH_DIR / "other" / "units"
    left.mkdir(parents=True)
    build(tmp_path / "out", path, holdout_fraction=0.0)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {TRAIN}


def test_scratch_may_be_elsewhere(built, text_file, tmp_path):
    """Others' files there are left alone."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "mine").write_text("")
    out = build(tmp_path / "out", text_file, scratch_dir=str(scratch))
    assert read_files(out) == read_files(built)
    assert [p.name for p in scratch.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("num_bytes", "dupe_factor", "expected"),
    [
        (100_000, 1, 65_536),
        (256_000_000, 1, 1_000_000),
        (10**12, 1, 8_388_608),
        # So that all copies together have no more than 64 Mi characters.
        (10**12, 40, 1_677_721),
        (100_000, 4000, 16_777),
        (100_000, 10**9, 1),
    ],
)
def test_units_are_many_and_bounded(num_bytes, dupe_factor, expected):
    assert local_runner.choose_unit_size(num_bytes, dupe_factor) == expected


def interrupted_at(call, function):
    """The function, which is interrupted at a call; and the calls' last
    arguments."""
    calls = []

    def called(*arguments):
        if len(calls) == call:
            raise KeyboardInterrupt
        calls.append(arguments[-1])
        return function(*arguments)

    return called, calls


def test_finished_units_are_not_made_again(text_file, tmp_path, monkeypatch):
    """Two of five are there."""
    config = make_config(tmp_path / "out", text_file)
    make_unit = local_runner.make_unit
    for call, units in ((2, [0, 1]), (None, [2, 3, 4])):
        interrupted, tasks = interrupted_at(call, make_unit)
        monkeypatch.setattr(local_runner, "make_unit", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            build_tfrecords.main(config)
        assert [unit for unit, _ in tasks] == units


def test_finished_shards_are_not_written_again(
    text_file, tmp_path, monkeypatch
):
    """Two of ten are there."""
    config = make_config(tmp_path / "out", text_file, num_shards=9)
    write_shard = local_runner.write_shard
    shards = tmp_path / "out" / TRAIN
    found = []
    for call, number in ((2, 2), (None, 8)):
        interrupted, tasks = interrupted_at(call, write_shard)
        monkeypatch.setattr(local_runner, "write_shard", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            build_tfrecords.main(config)
        assert len(tasks) == number
        whole = shards.glob("*.tfrecord")
        found.append({path: path.stat().st_mtime_ns for path in whole})
    assert [len(written) for written in found] == [2, 9]
    assert found[0].items() <= found[1].items()
    other = build(tmp_path / "other", text_file, num_shards=9)
    assert read_files(tmp_path / "out") == read_files(other)


def test_a_document_of_one_word_is_skipped_and_counted(documents, tmp_path):
    path = tmp_path / "text.txt"
    short = ["Word", "\u0301\n\u0301", "Another"]
    path.write_text("\n\n".join([*short, documents[0]]), encoding="utf-8")
    build(tmp_path / "out", path, holdout_fraction=0.0)
    metadata = read_metadata(str(tmp_path / "out" / TRAIN))
    assert metadata.skipped["documents of less than two words"] == 3
    assert metadata.num_documents == 1


def test_text_of_one_word_alone_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Word\n")
    with pytest.raises(UserError, match=r"at least two words.*1 documents"):
        build(tmp_path / "out", path)
    assert not list((tmp_path / "out").rglob("*.tfrecord"))


def test_a_share_that_holds_out_nothing_is_refused(documents, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(documents[0], encoding="utf-8")
    with pytest.raises(UserError, match="holdout_fraction"):
        build(tmp_path / "out", path, holdout_fraction=1e-9)
    with pytest.raises(UserError, match="holdout_fraction"):
        build(tmp_path / "out", path, holdout_fraction=0.999999)
    assert not list((tmp_path / "out").rglob("*.tfrecord"))


def test_a_missing_vocabulary_is_named(text_file, tmp_path):
    with pytest.raises(UserError, match=r"nowhere.model.*train_tokenizer"):
        build(tmp_path, text_file, spm_model_file="nowhere.model")


def test_a_lone_long_line_gives_many_examples(documents, tmp_path):
    """A book in a line: its places are filled as those of other text."""
    line = " ".join(normalize(d, False) for d in documents[:4])
    path = tmp_path / "line.txt"
    path.write_text(line, encoding="utf-8")
    build(
        tmp_path / "out",
        path,
        holdout_fraction=0.0,
        dupe_factor=1,
        short_seq_prob=0.0,
    )
    metadata = read_metadata(str(tmp_path / "out" / TRAIN))
    pieces = len(Tokenizer(VOCABULARY).encode_batch([line]).ids)
    assert metadata.num_pieces - 3 * metadata.num_examples > 0.95 * pieces
