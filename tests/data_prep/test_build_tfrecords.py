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
    """The first documents of the sample corpus, 0.4 MB."""
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        return file.read(400_000).split("\n\n")[:-1]


@pytest.fixture(scope="module")
def encoded_documents(documents):
    """The token ids of each document, as text: " 12 5 907 "."""
    tokenizer = Tokenizer(VOCABULARY)
    texts = []
    for document in documents:
        ids = tokenizer.encode_batch(document.split("\n")).ids
        texts.append(f" {' '.join(map(str, ids))} ")
    return texts


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


@pytest.fixture(scope="module")
def repeated(documents, tmp_path_factory):
    """Records of one document ten times, in a single shard."""
    directory = tmp_path_factory.mktemp("repeated")
    path = directory / "text.txt"
    path.write_text("\n\n".join([documents[0]] * 10), encoding="utf-8")
    return build(
        directory / "out",
        path,
        num_shards=1,
        holdout_fraction=0.0,
        dupe_factor=1,
    )


def read_files(directory):
    """Returns the content of all files in a directory, by path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(pathlib.Path(directory).rglob("*"))
        if path.is_file()
    }


def read_examples(directory, split):
    """Returns the features of all examples of a split, and the records."""
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
    """Returns `input_ids` before masking."""
    ids = examples["input_ids"].copy()
    rows, slots = np.nonzero(examples["masked_lm_weights"])
    ids[rows, examples["masked_lm_positions"][rows, slots]] = examples[
        "masked_lm_ids"
    ][rows, slots]
    return ids


def test_records_have_exactly_the_declared_features(built):
    examples, records = read_examples(built, TRAIN)
    names = tf.train.Example.FromString(records[0]).features.feature.keys()
    assert set(names) == {feature.name for feature in FEATURES}
    assert len(examples["input_ids"]) == len(records) > 500


def test_records_of_google_research_have_the_same_format():
    """The features that its writer writes: lists of integers, but for the
    weights, which are floats. The order of the features has no influence."""
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


def test_examples_have_the_layout_of_google_research(built):
    """`[CLS] A [SEP] B [SEP]`, then padding, consistent in all features."""
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
    is_second = np.arange(LENGTH) > first_separator
    np.testing.assert_array_equal(
        examples["segment_ids"], is_second & (mask > 0)
    )
    special = (ids == CLS_ID) | (ids == SEP_ID)
    assert (examples["token_boundary"][special] == 1).all()
    assert (examples["token_boundary"][mask == 0] == 0).all()
    assert not (ids == MASK_ID).any()


def test_label_says_whether_segments_are_swapped(built, encoded_documents):
    """Searches the segments in the documents; ambiguous ones are ignored."""
    examples, _ = read_examples(built, EVAL)
    ids = restore(examples)
    seen = [0, 0]
    for row, label in zip(ids, examples[SENTENCE_LABEL][:, 0], strict=True):
        middle, last = np.flatnonzero(row == SEP_ID)
        first = f" {' '.join(map(str, row[1:middle]))} "
        second = f" {' '.join(map(str, row[middle + 1 : last]))} "
        found = [t for t in encoded_documents if first in t and second in t]
        assert found, "the segments are not from the same document"
        if any(t.count(first) > 1 or t.count(second) > 1 for t in found):
            continue
        swapped = found[0].index(first) > found[0].index(second)
        assert swapped == bool(label)
        seen[label] += 1
    assert min(seen) > 20


def test_token_boundaries_are_the_beginnings_of_words(built):
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


def test_finished_build_leaves_no_other_files(built):
    assert {path.name for path in built.iterdir()} == {TRAIN, EVAL}
    assert not list(built.rglob("*.partial"))


def test_copies_of_a_document_have_no_example_in_common(built):
    _, records = read_examples(built, TRAIN)
    assert len(set(records)) == len(records)


def test_held_out_documents_are_in_no_training_example(built, documents):
    """Documents are recognised by pieces that no other document has."""
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


def test_holdout_fraction_is_the_fraction_of_held_out_documents():
    """A quarter of 4,000 documents, within four standard deviations."""
    documents = [[f"Document {i}."] for i in range(4000)]
    held_out = sum(choose_split(d, 0.25) == EVAL for d in documents)
    assert abs(held_out - 1000) < 4 * np.sqrt(4000 * 3 / 16)
    assert choose_split(documents[0], 0.0) == TRAIN


def test_case_and_line_breaks_do_not_change_the_split():
    for i in range(50):
        expected = choose_split([f"One is {i}.", "Two."], 0.5)
        assert choose_split([f"ONE is {i}. TWO."], 0.5) == expected


def test_unigram_entropy_ignores_special_pieces():
    """Three ordinary pieces of probability 1/2, 1/4 and 1/4 have 1.5 bits."""
    counts = np.array([9, 9, 9, 9, 9, 4, 0, 2, 2])
    entropy = unigram_entropy(counts)
    assert entropy == pytest.approx(1.5 * np.log(2))


def test_workers_and_file_order_have_no_influence(built, documents, tmp_path):
    """The same documents in another order and in three files, built by three
    processes instead of one."""
    again = documents[::-1]
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


def test_duplicate_documents_have_other_masks(repeated):
    _, records = read_examples(repeated, TRAIN)
    assert len(set(records)) == len(records) > 200


def test_deduplicate_gives_the_records_of_unique_documents(
    built, documents, tmp_path
):
    """Every third document is repeated, in capitals and with other spaces."""
    duplicated = [d.upper().replace(" ", "  ") for d in documents[::3]]
    path = tmp_path / "text.txt"
    text = "\n\n".join([*duplicated, *documents])
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
    assert duplicates == len(duplicated)


def test_examples_of_duplicate_documents_are_not_adjacent(repeated):
    """The examples of ten equal documents are spread over the shard."""
    metadata = read_metadata(str(repeated / TRAIN))
    assert metadata.num_documents == 10
    assert metadata.num_duplicate_documents == 9
    examples, _ = read_examples(repeated, TRAIN)
    ids = restore(examples)
    assert len(ids) > 200
    equal_neighbours = (ids[1:] == ids[:-1]).all(axis=1).sum()
    # 9 of the other examples equal an example.
    assert equal_neighbours < 4 * 9 * len(ids) / (len(ids) - 1)


def test_half_of_the_next_sentences_are_from_another_document(
    text_file, encoded_documents, tmp_path
):
    out = build(tmp_path / "out", text_file, sentence_objective="nsp")
    examples, _ = read_examples(out, EVAL)
    labels = examples[SENTENCE_LABEL][:, 0]
    assert abs(labels.mean() - 0.5) < 4 * np.sqrt(0.25 / len(labels))
    for row, label in zip(restore(examples), labels, strict=True):
        middle, last = np.flatnonzero(row == SEP_ID)
        first = f" {' '.join(map(str, row[1:middle]))} "
        second = f" {' '.join(map(str, row[middle + 1 : last]))} "
        found = [t for t in encoded_documents if first in t and second in t]
        if label:
            # A short segment may be in many documents.
            assert not found or last - middle < 6 or middle < 6
        else:
            assert any(t.index(first) < t.rindex(second) for t in found)
    assert read_metadata(str(out / EVAL)).sentence_objective == "nsp"


def test_without_sentence_objective_examples_have_one_segment(
    text_file, tmp_path
):
    out = build(tmp_path / "out", text_file, sentence_objective="none")
    examples, _ = read_examples(out, TRAIN)
    ids = restore(examples)
    assert ((ids == SEP_ID).sum(axis=1) == 1).all()
    assert not examples["segment_ids"].any()
    assert not examples[SENTENCE_LABEL].any()
    lengths = examples["input_mask"].sum(axis=1)
    assert np.mean(lengths == LENGTH) > 0.5


def test_dynamic_records_have_no_masks(built, text_file, tmp_path):
    """train/ has the static records before masking; eval/ is static."""
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


def test_checksums_equal_those_of_the_files(built):
    for split in (TRAIN, EVAL):
        metadata = read_metadata(str(built / split))
        assert metadata.checksums == {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (built / split).glob("*.tfrecord")
        }


def test_existing_records_are_not_built_again(built, text_file):
    before = {p: p.stat().st_mtime_ns for p in built.rglob("*")}
    build(built, text_file, num_workers=2)
    assert {p: p.stat().st_mtime_ns for p in built.rglob("*")} == before


def test_records_of_other_settings_are_replaced_only_with_overwrite(
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
    """Returns the flags of a configuration."""
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
    """Kills a build, and waits for the end of its worker processes."""
    process.send_signal(signal.SIGSTOP)  # so that it starts no more workers
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = [int(pid) for pid in children.read_text().split()]
    process.kill()
    process.wait()
    while any(is_running(worker) for worker in workers):
        time.sleep(0.01)


@pytest.mark.slow
def test_build_killed_at_random_moments_gives_the_same_records(
    built, text_file, tmp_path
):
    """Kills the build until it finishes; finished work is not repeated.

    A build is killed shortly after it has written up to two more files, so
    that a fast machine does not finish first. On a busy machine the kill may
    come too late, and then the test starts over.
    """
    out = tmp_path / "out"
    config = make_config(out, text_file, num_workers=2)
    rng = random.Random(0)

    def complete_files():
        found = {}
        # Not pathlib, which fails if a directory is removed meanwhile.
        for pattern in (f"{SCRATCH_DIR}/**/*.rows", "*/*.tfr*"):
            for path in glob.glob(f"{out}/{pattern}", recursive=True):
                with contextlib.suppress(FileNotFoundError):  # removed
                    if not path.endswith(PARTIAL_SUFFIX):
                        found[path] = os.stat(path).st_mtime_ns
        return found

    written: dict[str, int] = {}
    kills = 0
    while True:
        process = start_build(config)
        target = len(written) + rng.randint(0, 2)
        while process.poll() is None and len(complete_files()) < target:
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
            # Complete files are not changed.
            assert os.stat(path).st_mtime_ns == when, path
        written = complete_files()


def tree_of(directory):
    """Returns the content of files by path, and None for directories."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        if path.is_file()
        else None
        for path in directory.rglob("*")
    }


@pytest.mark.slow
def test_build_killed_before_any_change_of_a_file_gives_the_same_records(
    documents, tiny_records, tmp_path, monkeypatch
):
    """The build replaces another, which was killed after its last shard."""
    path = tmp_path / "text.txt"
    lines = documents[3].split("\n")
    parts = ["\n".join(lines[i : i + 5]) for i in range(0, len(lines), 5)]
    path.write_text("\n\n".join([*parts, parts[0]]), encoding="utf-8")
    # A vocabulary of 400 pieces, which is loaded quickly.
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
    # The names of its shards differ in train/, and are equal in eval/.
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


def test_scratch_files_of_other_builds_are_removed(documents, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(documents[0], encoding="utf-8")
    scratch = tmp_path / "out" / SCRATCH_DIR / "other" / "units"
    scratch.mkdir(parents=True)
    build(tmp_path / "out", path, holdout_fraction=0.0)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {TRAIN}


def test_scratch_dir_keeps_files_of_others(built, text_file, tmp_path):
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
        # All copies together have at most 64 Mi characters.
        (10**12, 40, 1_677_721),
        (100_000, 4000, 16_777),
        (100_000, 10**9, 1),
    ],
)
def test_size_of_units_is_bounded(num_bytes, dupe_factor, expected):
    assert local_runner.choose_unit_size(num_bytes, dupe_factor) == expected


def interrupted_at(call, function):
    """Returns a function that raises KeyboardInterrupt at a call, and a list
    of the last arguments of the earlier calls."""
    calls = []

    def called(*arguments):
        if len(calls) == call:
            raise KeyboardInterrupt
        calls.append(arguments[-1])
        return function(*arguments)

    return called, calls


def test_finished_units_are_not_made_again(text_file, tmp_path, monkeypatch):
    """The first build is interrupted after two of five units."""
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
    """The first build is interrupted after two of ten shards."""
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
        complete = shards.glob("*.tfrecord")
        found.append({path: path.stat().st_mtime_ns for path in complete})
    assert [len(written) for written in found] == [2, 9]
    assert found[0].items() <= found[1].items()
    other = build(tmp_path / "other", text_file, num_shards=9)
    assert read_files(tmp_path / "out") == read_files(other)


def test_documents_of_one_word_are_skipped_and_counted(documents, tmp_path):
    path = tmp_path / "text.txt"
    short = ["Word", "\u0301\n\u0301", "Another"]
    path.write_text("\n\n".join([*short, documents[0]]), encoding="utf-8")
    build(tmp_path / "out", path, holdout_fraction=0.0)
    metadata = read_metadata(str(tmp_path / "out" / TRAIN))
    assert metadata.skipped["documents of less than two words"] == 3
    assert metadata.num_documents == 1


def test_text_of_a_single_word_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Word\n")
    with pytest.raises(UserError, match=r"at least two words.*1 documents"):
        build(tmp_path / "out", path)
    assert not list((tmp_path / "out").rglob("*.tfrecord"))


def test_holdout_fraction_that_leaves_a_split_empty_is_refused(
    documents, tmp_path
):
    path = tmp_path / "text.txt"
    path.write_text(documents[0], encoding="utf-8")
    with pytest.raises(UserError, match="holdout_fraction"):
        build(tmp_path / "out", path, holdout_fraction=1e-9)
    with pytest.raises(UserError, match="holdout_fraction"):
        build(tmp_path / "out", path, holdout_fraction=0.999999)
    assert not list((tmp_path / "out").rglob("*.tfrecord"))


def test_missing_vocabulary_is_refused(text_file, tmp_path):
    with pytest.raises(UserError, match=r"nowhere.model.*train_tokenizer"):
        build(tmp_path, text_file, spm_model_file="nowhere.model")


def test_text_on_one_line_loses_few_tokens(documents, tmp_path):
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
    num_tokens = len(Tokenizer(VOCABULARY).encode_batch([line]).ids)
    assert metadata.num_pieces - 3 * metadata.num_examples > 0.95 * num_tokens
