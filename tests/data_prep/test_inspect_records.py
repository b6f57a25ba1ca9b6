"""The inspector: intact records pass, and each fault is named."""

import gzip
import pathlib
import re
import shutil

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.io import tfrecord
from albert_tf.records.features import MASK_FEATURES, MASK_ID
from albert_tf.records.tokenization import Tokenizer
from data_prep import inspect_records, inspection
from tests.helpers import small_builds
from tests.helpers.inspected_records import (
    LENGTH,
    PREDICTIONS,
    SHARD,
    VOCABULARY,
    digest_shards,
    edit_all,
    edit_metadata,
    line_of,
    make_example,
    offset_of,
    read_contents,
    read_features,
    write_contents,
)
from tests.helpers.inspected_records import set_value as put

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


def test_statistics_of_intact_records_are_those_of_their_rows(
    demo_records, packed, inspect
):
    """The expected values come from messages that TensorFlow parses."""
    for directory in demo_records, packed:
        rows = [
            read_features(content)
            for path in sorted(directory.glob("*.tfrecord"))
            for content in read_contents(path)
        ]
        ids = np.array([row["input_ids"] for row in rows])
        numbers = np.array([row["input_mask"] for row in rows])
        weights = np.array([row["masked_lm_weights"] for row in rows])
        in_row, slots = np.nonzero(weights)
        columns = np.array([row["masked_lm_positions"] for row in rows])
        masked = in_row, columns[in_row, slots]
        originals = np.array([row["masked_lm_ids"] for row in rows])[
            in_row, slots
        ]
        is_mask, kept = ids[masked] == MASK_ID, ids[masked] == originals
        num_tokens = (numbers > 0).sum()
        status, output = inspect(directory, num_examples=40)
        assert status == 0
        assert "all checks passed" in output
        for verdict, name, found in (
            ("pass", "records  ", f"{len(rows):,}"),
            ("pass", "examples  ", f"{numbers.max(axis=1).sum():,}"),
            ("pass", "tokens  ", f"{num_tokens:,}"),
            ("pass", "masked tokens  ", f"{len(originals):,}"),
            ("note", "positions filled", f"{np.mean(numbers > 0):.1%}"),
            ("note", "fraction masked", f"{len(originals) / num_tokens:.2%}"),
            ("pass", r"masked tokens: \[MASK", f"{np.mean(is_mask):.2%}"),
            ("pass", "masked tokens: kept", f"{np.mean(kept):.2%}"),
            (
                "pass",
                "masked tokens: random",
                f"{np.mean(~is_mask & ~kept):.2%}",
            ),
        ):
            seen, line = line_of(name, output)
            assert seen == verdict, line
            assert found in line
    assert f"up to {SLOTS} examples per record" in output
    assert ", number 2 in its record: " in output


# --- records -----------------------------------------------------------------

ALL = slice(None)


def _last(features):
    return sum(features["input_mask"]) - 1


def _middle(features):
    return features["input_ids"].index(3)


def _visible(features):
    """The position of an ordinary token that is not masked."""
    return next(
        position
        for position in range(1, LENGTH)
        if position not in features["masked_lm_positions"]
        and features["input_ids"][position] > 4
    )


def _is_fit(features):
    """Whether there is padding, and room before the first [SEP], and the first
    word is not masked."""
    return (
        _last(features) < LENGTH - 2
        and _middle(features) >= 5
        and 1 not in features["masked_lm_positions"]
    )


# What the inspector says, and edits of a record of one example: the feature,
# the position, and the value.
EDITS = [
    (r"_ids\[\d+\] .* to 29999. Received: 3", ("input_ids", _visible, 30000)),
    (r"_mask\[3\] must be 1. Received: 0", ("input_mask", 3, 0)),
    (r"_ids\[63\] must be 0, as it is unused", ("input_ids", 63, 7)),
    (r"input_ids\[0\] must be \[CLS\]", ("input_ids", 0, 10)),
    (r"must be a token other than \[CLS\]", ("input_ids", _visible, 2)),
    (r"than <pad> and \[MASK\], .*: 4", ("input_ids", _visible, 4)),
    (r"the last of 2 \[SEP\] of its example", ("input_ids", _visible, 3)),
    (
        r"must be \[SEP\], 3, as the last token. Received: 10",
        ("input_ids", _last, 10),
        ("input_ids", _visible, 3),
    ),
    (
        "a segment, which must not be empty. Received: 3",
        ("input_ids", _middle, 10),
        ("input_ids", 1, 3),
    ),
    (r"segment_ids\[\d+\] must be 0. Received: 1", ("segment_ids", _middle, 1)),
    (
        r"token_boundary\[\d+\] must be [01]\. ",
        ("token_boundary", _visible, lambda f, i: 1 - f["token_boundary"][i]),
    ),
    ("boundary.* from 0 to 1. Received: 2", ("token_boundary", 2, 2)),
    (
        r"_positions\[1\] must be more than the one before",
        ("masked_lm_positions", ALL, [7] * PREDICTIONS),
    ),
    (r"between \[CLS\] and.* Received: 0", ("masked_lm_positions", 0, 0)),
    (
        r"positions\[1\] .*between \[CLS\] and the last \[SEP\]",
        ("masked_lm_positions", 1, lambda f, i: _last(f)),
    ),
    (r"_positions\[19\] must be 0, as", ("masked_lm_positions", -1, 9)),
    (r"ids\[0\] must be from 5 to 29999.*: 1", ("masked_lm_ids", 0, 1)),
    (r"weights\[0\] must be 1.*: 0.5", ("masked_lm_weights", 0, 0.5)),
    (
        r"4, or at least 5 at a masked position. Received: 3",
        ("input_ids", lambda f: f["masked_lm_positions"][0], 3),
    ),
    (r"labels\[0\] must be from 0 to 1", ("next_sentence_labels", 0, 2)),
    ("segment_ids: 64 .* int64. Received: none", ("segment_ids", ALL, None)),
    ("more: must not exist. Received: 1 values", ("more", ALL, [1])),
    (
        "Received: 1 values of type float32",
        ("next_sentence_labels", ALL, [0.0]),
    ),
]


def _is_fit_packed(features):
    """Two examples, then padding."""
    return (
        sum(features["next_sentence_weights"]) == 2
        and features["input_mask"][-1] == 0
        and features["example_numbers"][0] > 0
    )


def _second(features):
    return features["next_sentence_positions"][1]


def _second_mask(features):
    """The slot of the first masked token of the second example."""
    positions = features["masked_lm_positions"]
    return next(i for i, p in enumerate(positions) if p >= _second(features))


def _skip_a_number(features, _):
    numbers = enumerate(features["input_mask"])
    return [2 * n if p >= _second(features) else n for p, n in numbers]


_MOVE = ("next_sentence_positions", 1, lambda f, i: _second(f) + 1)

# As above, for a record of two examples, with slots for four.
PACKED_EDITS = [
    (
        r"_mask\[\d+\] must be 2.*: 4",
        ("input_mask", ALL, _skip_a_number),
    ),
    (
        r"_mask\[\d+\] must be 1. Received: 0",
        ("input_mask", lambda f: _second(f) - 1, 0),
    ),
    (r"next_sentence_positions\[1\] must be", _MOVE),
    # Numbers, positions and weights agree, but the token is not [CLS].
    (r"input_ids\[\d+\] must be \[CLS\], 2", ("input_mask", _second, 1), _MOVE),
    (r"weights\[2\] must be 0", ("next_sentence_weights", 2, 1.0)),
    (r"numbers\[3\] must be 0, as", ("example_numbers", 3, 9)),
    (r"example_numbers\[1\] must be more than", ("example_numbers", 1, 0)),
    (r"labels\[1\] must be from 0 to 1", ("next_sentence_labels", 1, 2)),
    (r"positions\[0\] must be that of a token", ("masked_lm_positions", 0, 64)),
    (
        r"masked_lm_positions\[\d+\] .*between \[CLS\]",
        ("masked_lm_positions", _second_mask, lambda f, i: _second(f)),
    ),
    (
        "next_sentence_positions: 4 values .* Received: none",
        ("next_sentence_positions", ALL, None),
    ),
]


@pytest.mark.parametrize(
    ("source", "shard", "is_fit", "edits"),
    [
        ("demo_records", SHARD, _is_fit, EDITS),
        (
            "packed",
            "train-00000-of-00001.tfrecord",
            _is_fit_packed,
            PACKED_EDITS,
        ),
    ],
)
def test_faulty_records_are_named(
    request, tmp_path, inspect, monkeypatch, source, shard, is_fit, edits
):
    """Each edit changes a copy of one record, which replaces another record."""
    for module in (inspection, inspect_records):
        monkeypatch.setattr(module, "MAX_FAULTS", 100)
    directory = tmp_path / "train"
    shutil.copytree(request.getfixturevalue(source), directory)
    contents = read_contents(directory / shard)
    fit = next(c for c in contents if is_fit(read_features(c)))
    for number, (_, *changes) in enumerate(edits, 3):
        features = read_features(fit)
        for change in changes:
            put(*change)(features)
        contents[number] = make_example(features)
    write_contents(directory / shard, contents)
    # As if a builder with these bugs had written the shard.
    edit_metadata(directory, checksums=digest_shards(directory))
    status, output = inspect(directory)
    assert status == 1
    named = re.findall(r"^fault: (.*)$", output, re.M)
    for number, ((fault, *_), line) in enumerate(
        zip(edits, named, strict=True), 3
    ):
        where = f"record {number} at byte {offset_of(contents, number)}: "
        assert line.startswith(f"{directory / shard}, {where}")
        assert re.search(fault, line), line


def test_faults_are_sorted_by_record_and_limited(records, inspect, monkeypatch):
    """Damage, and faults in the content of earlier and later records."""
    path = records / SHARD
    contents = read_contents(path)
    contents[2] = contents[9] = b"no message at all"
    write_contents(path, contents)
    flipped = bytearray(path.read_bytes())
    flipped[offset_of(contents, 7) + 20] ^= 1
    path.write_bytes(flipped)
    edit_metadata(records, checksums=digest_shards(records))
    _, output = inspect(records)
    assert re.findall(r"^fault: .* record (\d+)", output, re.M) == list("279")
    for module in (inspection, inspect_records):
        monkeypatch.setattr(module, "MAX_FAULTS", 1)
    status, output = inspect(records)
    assert status == 1
    assert re.findall(r"^fault: .* record (\d+)", output, re.M) == ["2"]
    assert "must be a tf.train.Example" in output
    assert "and 2 more faults" in output


# --- shards and metadata -----------------------------------------------------


def _flip(content, at):
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


# How bytes of a shard change, at the offsets of its records, and a fault.
SHARD_EDITS = [
    (lambda b, o: _flip(b, o[7]), "record 7 at byte {o[7]}: .* of the length"),
    (
        lambda b, o: _flip(b, o[7] + 12),
        "record 7 at byte {o[7]}: .* of the content",
    ),
    (lambda b, o: b[:-20], "record {last} at byte {cut}: must"),
    (lambda b, o: b[: o[-2]], ""),
    (lambda b, o: b[: o[3]] + b[o[4] : o[5]] + b[o[3] : o[4]] + b[o[5] :], ""),
]


@pytest.mark.parametrize(("edit", "fault"), SHARD_EDITS)
def test_a_damaged_shard_is_found(records, inspect, monkeypatch, edit, fault):
    """A flipped bit, a missing end or record, and records in another order."""
    path = records / SHARD
    contents = read_contents(path)
    last = len(contents) - 1
    o = [offset_of(contents, number) for number in range(last + 2)]
    path.write_bytes(edit(path.read_bytes(), o))
    status, output = inspect(records)
    assert status == 1
    assert f"fault: {path}: must have the SHA-256 of the metadata" in output
    if fault:
        fault = fault.format(o=o, last=last, cut=o[last])
        assert re.search(f"fault: {path}, {fault}", output)
    # The digest is that of all bytes, even if no later record is readable.
    monkeypatch.setattr(tfrecord, "_BUFFER_BYTES", 1000)
    edit_metadata(records, checksums=digest_shards(records))
    assert "SHA-256" not in inspect(records)[1]


def _move_shard(directory):
    shutil.move(directory / SHARD, directory / "other.tfrecord")
    (directory.parent / "unfinished.json").write_text("{}")


def _show_masks_alone(features):
    for position, weight in zip(
        features["masked_lm_positions"],
        features["masked_lm_weights"],
        strict=True,
    ):
        if weight:
            features["input_ids"][position] = MASK_ID


# An edit of a directory -> the lines of the table that fail, and faults.
EDITED_SETS = {
    "files": (
        _move_shard,
        [],
        [
            rf"/{SHARD}: must exist",
            "/other.tfrecord: must not exist",
            "the build is unfinished",
        ],
    ),
    "tokens": (lambda d: edit_metadata(d, num_pieces=5), ["tokens"], []),
    "masks": (lambda d: edit_metadata(d, num_masked=5), ["masked tokens"], []),
    "other vocabulary": (
        lambda d: edit_metadata(d, vocabulary_sha256="abcd"),
        [],
        ["/spiece.model: must have the SHA-256"],
    ),
    "damaged vocabulary": (
        lambda d: (d / "spiece.model").write_bytes(b"damaged"),
        [],
        ["/spiece.model must be a SentencePiece model"],
    ),
    "replacements": (
        lambda d: edit_all(d, _show_masks_alone),
        [f"masked tokens: {kind}" for kind in ("[MASK]", "kept", "random")],
        [],
    ),
}


@pytest.mark.parametrize("name", EDITED_SETS)
def test_files_or_statistics_that_disagree_are_found(records, inspect, name):
    edit, failed, faults = EDITED_SETS[name]
    edit(records)
    status, output = inspect(records)
    assert status == 1
    assert re.findall("^FAIL  (.*?)  ", output, re.M) == failed
    for fault in faults:
        assert fault in output
    assert output.count("\nfault:") == len(faults)


# --- other kinds of records --------------------------------------------------


def _swap_positions(features):
    for name in ("masked_lm_positions", "masked_lm_ids"):
        values = features[name]
        values[0], values[1] = values[1], values[0]


def test_records_without_masks_are_checked(records, inspect):
    def restore(features):
        for position, token, weight in zip(
            *(features.pop(name) for name in MASK_FEATURES), strict=True
        ):
            if weight:
                features["input_ids"][position] = token

    edit_all(records, restore)
    edit_metadata(records, masking="dynamic", num_masked=0)
    status, output = inspect(records, num_examples=1)
    assert status == 0, output
    assert "[MASK" not in output
    edit_all(records, put("input_ids", 2, MASK_ID))
    status, output = inspect(records)
    assert status == 1
    assert "other than <pad> and [MASK]" in output


def test_records_of_google_research_are_checked_without_metadata(
    tmp_path, inspect
):
    """Their examples are text if their vocabulary is next to them."""
    path = tmp_path / "tf_examples.tfrecord-0"
    path.write_bytes(gzip.decompress(GOOGLE_RECORDS.read_bytes()))
    status, output = inspect(path, num_examples=1)
    assert status == 0, output
    assert line_of("records  ", output)[0] == "note"
    assert line_of(r"masked tokens: \[MASK", output)[0] == "pass"
    assert re.search(r"A: +\d+ ", output) and re.search(r"MASK:\d", output)
    shutil.copy(VOCABULARY, tmp_path / "spiece.model")
    assert re.search(r"\[MASK:[a-z]+\]", inspect(path, num_examples=1)[1])
    contents = read_contents(path)
    features = read_features(contents[3])
    _swap_positions(features)
    contents[3] = make_example(features)
    write_contents(path, contents)
    status, output = inspect(path)
    assert status == 1
    assert f"{path}, record 3 at byte {offset_of(contents, 3)}" in output


def test_a_part_of_the_shards_can_be_inspected(records, inspect):
    """Totals are not judged then; statistics of the shard are."""
    status, output = inspect(records / SHARD)
    assert status == 0
    assert line_of("tokens  ", output)[0] == "note"
    assert line_of("masked tokens: kept", output)[0] == "pass"


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
    """In two processes, with the output of one. The name of the directory may
    be a glob."""
    directory = tmp_path / "records[1]"
    for split in ("train", "eval"):
        shutil.copytree(demo_records, directory / split)
    status, output = inspect(directory, num_workers=2, num_examples=1)
    assert status == 0, output
    assert (status, output) == inspect(directory, num_examples=1)
    for split in ("train", "eval"):
        assert f"\n{directory}/{split}: {LENGTH} tokens" in output
    assert output.count("\nexample 0, ") == 2
