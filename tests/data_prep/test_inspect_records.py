"""The inspector: intact records pass, and each fault is named."""

import gzip
import pathlib
import re
import shutil

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.records.features import MASK_FEATURES, MASK_ID
from albert_tf.records.tokenization import Tokenizer
from data_prep import inspect_records
from tests.helpers import small_builds
from tests.helpers.inspected_records import (
    LENGTH,
    SHARD,
    VOCABULARY,
    digest_shards,
    edit_metadata,
    make_example,
    read_contents,
    read_features,
    write_contents,
)

SLOTS = 4
GOOGLE_RECORDS = (
    pathlib.Path(__file__).parents[1] / "testdata/google-records-20.tfrecord.gz"
)


@pytest.fixture(scope="module")
def packed(documents, tmp_path_factory):
    """Packed records of short examples, some words unknown, in one shard."""
    directory = tmp_path_factory.mktemp("short")
    text = directory / "text.txt"
    words = "\n".join(documents).replace(" the ", " \u0436 ")
    lines = words.split("\n")[:400]
    text.write_text("\n\n".join(lines), encoding="utf-8")
    settings = {
        "packing": "best_fit",
        "max_examples_per_row": SLOTS,
        "num_shards": 1,
    }
    return small_builds.build(directory / "out", text, **settings) / "train"


def test_counts_are_those_of_the_rows(demo_records, packed, inspect):
    """The expected values come from messages that TensorFlow parses."""
    for directory in demo_records, packed:
        rows = [
            read_features(content)
            for path in sorted(directory.glob("*.tfrecord"))
            for content in read_contents(path)
        ]
        numbers = np.array([row["input_mask"] for row in rows])
        num_masked = sum(sum(row["masked_lm_weights"]) for row in rows)
        num_tokens = np.count_nonzero(numbers)
        status, output = inspect(directory, num_examples=40)
        assert status == 0
        assert "all checks passed" in output
        for name, expected in (
            ("records", f"{len(rows):,}"),
            ("examples", f"{numbers.max(axis=1).sum():,}"),
            ("tokens", f"{num_tokens:,}"),
            ("positions filled", f"{num_tokens / numbers.size:.1%}"),
            ("tokens masked", f"{num_masked / num_tokens:.2%}"),
        ):
            assert re.findall(rf"^{name}  +(.*)$", output, re.M) == [expected]
        assert output.count("\nexample ") == 40
    assert f"up to {SLOTS} examples per record" in output


# --- records -----------------------------------------------------------------

# A feature, a position, a value, and what the inspector says.
EDITS = [
    ("input_ids", 5, 30000, r"input_ids must be from 0 to 29999.* to 30000"),
    ("input_ids", 5, -1, r"input_ids must be .* Received: -1 to \d+"),
    ("input_ids", 0, 101, r"input_ids must begin with \[CLS\], 2.* 101"),
    ("input_mask", 3, 2, "input_mask must be from 0 to 1"),
    ("segment_ids", 3, 2, "segment_ids must be from 0 to 1"),
    ("token_boundary", 3, 2, "token_boundary must be from 0 to 1"),
    ("masked_lm_positions", 1, LENGTH, "masked_lm_positions must .* 0 to 63"),
    ("masked_lm_ids", 1, 30000, "masked_lm_ids must be from 0 to 29999"),
    ("masked_lm_weights", 1, float("nan"), "weights must be from 0 to 1.* nan"),
    ("next_sentence_labels", 0, 2, "next_sentence_labels must be from 0 to 1"),
    ("segment_ids", slice(1, None), [], "segment_ids"),
    ("next_sentence_labels", 0, 0.5, "labels.*[Dd]ata types? don't match"),
]
PACKED_EDITS = [
    ("input_mask", 3, SLOTS + 1, "input_mask must be from 0 to 4"),
    ("next_sentence_positions", 1, 64, "positions must be from 0 to 63"),
    ("next_sentence_weights", 1, 2.0, "weights must be from 0 to 1"),
    ("next_sentence_labels", 1, 2, "labels must be from 0 to 1"),
]


@pytest.mark.parametrize(
    ("source", "shard", "edits"),
    [
        ("demo_records", SHARD, EDITS),
        ("packed", "train-00000-of-00001.tfrecord", PACKED_EDITS),
    ],
)
def test_values_out_of_range_are_named(
    request, tmp_path, inspect, source, shard, edits
):
    """As if a builder with these bugs had written the shard."""
    directory = tmp_path / "train"
    shutil.copytree(request.getfixturevalue(source), directory)
    contents = read_contents(directory / shard)
    for number, (name, position, value, _) in enumerate(edits, 3):
        features = read_features(contents[number])
        features[name][position] = value
        contents[number] = make_example(features)
    write_contents(directory / shard, contents)
    edit_metadata(directory, checksums=digest_shards(directory))
    status, output = inspect(directory)
    assert status == 1
    named = re.findall(r"^fault: (.*)$", output, re.M)
    for number, ((*_, fault), line) in enumerate(
        zip(edits, named, strict=True), 3
    ):
        assert line.startswith(f"{directory / shard}, record {number}: ")
        assert re.search(fault, line), line


# --- shards and metadata -----------------------------------------------------


def _flip(content, at):
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


# How bytes of a shard change, at the offsets of its records, and a fault.
SHARD_EDITS = [
    (lambda b, o: _flip(b, o[7]), "record 7: .* of the length"),
    (lambda b, o: _flip(b, o[7] + 12), "record 7: .* of the content"),
    (lambda b, o: b[:-20], "record {last}: must have"),
    (lambda b, o: b[: o[-2]], ""),
    (lambda b, o: b[: o[3]] + b[o[4] : o[5]] + b[o[3] : o[4]] + b[o[5] :], ""),
]


@pytest.mark.parametrize(("edit", "fault"), SHARD_EDITS)
def test_a_damaged_shard_is_found(records, inspect, edit, fault):
    """A flipped bit, a missing end or record, and records in another order."""
    path = records / SHARD
    contents = read_contents(path)
    # Each record has 16 bytes of framing.
    offsets = np.cumsum([0, *(len(content) + 16 for content in contents)])
    path.write_bytes(edit(path.read_bytes(), offsets.tolist()))
    status, output = inspect(records)
    assert status == 1
    assert f"fault: {path}: must have the SHA-256 of the metadata" in output
    if fault:
        fault = fault.format(last=len(contents) - 1)
        assert re.search(f"fault: {path}, {fault}", output)


def test_files_that_disagree_are_found(records, inspect):
    """A missing shard, one that is not listed, and an unfinished build."""
    shutil.move(records / SHARD, records / "other.tfrecord")
    (records.parent / "unfinished.json").write_text("{}")
    edit_metadata(records, vocabulary_sha256="abcd")
    status, output = inspect(records)
    assert status == 1
    assert re.findall("^fault: .*/(.*? must .*|.*build.*)$", output, re.M) == [
        "unfinished.json: the build is unfinished",
        "spiece.model: must have the SHA-256 of the metadata",
        f"{SHARD}: must exist; the metadata lists it",
        "other.tfrecord: the metadata must list it",
    ]
    (records / "spiece.model").write_bytes(b"damaged")
    with pytest.raises(UserError, match="must be a SentencePiece model"):
        inspect(records)


# --- other kinds of records --------------------------------------------------


def test_records_without_masks_are_checked(records, inspect):
    for path in records.glob("*.tfrecord"):
        contents = []
        for content in read_contents(path):
            features = read_features(content)
            for name in MASK_FEATURES:
                del features[name]
            contents.append(make_example(features))
        write_contents(path, contents)
    checksums = digest_shards(records)
    edit_metadata(records, masking="dynamic", checksums=checksums)
    status, output = inspect(records, num_examples=1)
    assert status == 0, output
    assert "[MASK:" not in output


def test_records_of_google_research_are_checked_without_metadata(
    tmp_path, inspect
):
    """Their examples are text if their vocabulary is next to them."""
    path = tmp_path / "tf_examples.tfrecord-0"
    path.write_bytes(gzip.decompress(GOOGLE_RECORDS.read_bytes()))
    status, output = inspect(path, num_examples=1)
    assert status == 0, output
    assert re.search(r"^records +20$", output, re.M)
    assert re.search(r"A: +\d+ ", output) and re.search(r"MASK:\d", output)
    shutil.copy(VOCABULARY, tmp_path / "spiece.model")
    assert re.search(r"\[MASK:[a-z]+\]", inspect(path, num_examples=1)[1])
    contents = read_contents(path)
    features = read_features(contents[3])
    features["input_ids"][7] = 30000
    contents[3] = make_example(features)
    write_contents(path, contents)
    status, output = inspect(path)
    assert status == 1
    assert f"{path}, record 3: input_ids must be from 0 to 29999" in output


def test_input_without_records_is_refused(tmp_path, inspect):
    """Text, records of other names, compressed records, no files."""
    path = tmp_path / "a.tfrecord"
    path.write_text("Plain text.")
    with pytest.raises(UserError, match="must hold TFRecords"):
        inspect(path)
    write_contents(path, [make_example({"input_word_ids": [2, 7, 3]})])
    with pytest.raises(UserError, match=r"with input_ids.*a\.tfrecord"):
        inspect(path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(
        UserError, match=r"a\.tfrecord: the file is compressed.*gzip -d"
    ):
        inspect(path)
    with pytest.raises(UserError, match="must match records"):
        inspect(tmp_path / "*.none")
    with pytest.raises(UserError, match="input_file is required"):
        inspect()


# --- printed examples and the command ----------------------------------------


def test_masks_are_marked_in_the_text():
    """Masked, kept and replaced tokens, a word of two tokens, `<unk>`."""
    tokenizer = Tokenizer(VOCABULARY)
    first, second = (
        tokenizer.encode_batch([text]).ids.tolist()
        for text in ("The quick fox jumps.", "Unbelievably \N{SNOWMAN} lazy")
    )
    restored = np.array([2, *first, 3, *second, 3])
    pieces = [tokenizer.id_to_piece(int(i)).strip("\u2581") for i in restored]
    quick, fox, jumps, lazy = map(
        pieces.index, ("quick", "fox", "jumps", "lazy")
    )
    shown = restored.copy()
    shown[[quick, fox]] = MASK_ID, restored[lazy]
    is_masked = np.isin(np.arange(len(restored)), (quick, fox, jumps))
    tokens = np.stack([restored, shown, is_masked], axis=1)
    text = inspect_records.show_example(tokens, 1, tokenizer, "sop")
    assert text.splitlines() == [
        f"{len(restored)} tokens, 3 masked; label 1, swapped",
        "  A:  the [MASK:quick] [fox->lazy] [kept:jumps].",
        "  B:  unbelievably \u2581<unk> lazy",
    ]
    ids = inspect_records.show_example(tokens, 1, None, "").splitlines()
    assert ids[0].endswith("label 1")
    assert f"[MASK:{restored[quick]}]" in ids[1]


def test_several_directories_are_read(demo_records, tmp_path, inspect):
    """The name of the directory may be a glob; a file may be named, too."""
    directory = tmp_path / "records[1]"
    for split in ("train", "eval"):
        shutil.copytree(demo_records, directory / split)
    status, output = inspect(directory, num_examples=1)
    assert status == 0, output
    for split in ("train", "eval"):
        assert f"\n{directory}/{split}: {LENGTH} tokens" in output
    assert output.count("\nexample 0: ") == 2
    status, output = inspect(directory / "train" / SHARD)
    assert status == 0, output
