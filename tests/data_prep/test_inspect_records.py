"""Intact and damaged records; the inspector must report each kind of damage."""

import gzip
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.io import tfrecord as tfrecord_files
from albert_tf.records.features import (
    MASK_FEATURES,
    MASK_ID,
    read_metadata,
)
from albert_tf.records.masking import mask_batch
from albert_tf.records.tokenization import Tokenizer
from data_prep import build_tfrecords, inspect_records
from data_prep.config import (
    InspectConfig,
    RecordsConfig,
)
from data_prep.inspection.checks import RecordRules, check_examples
from data_prep.inspection.statistics import (
    empty_statistics,
    judge_statistics,
)
from data_prep.inspection.text import show_example
from data_prep.words import find_words

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"
VOCABULARY = "tests/testdata/30k-clean.model"
LENGTH, PREDICTIONS = 64, 20
SHARD = "train-00001-of-00003.tfrecord"


def build(output_dir, **settings):
    """Records of the first 200 KB of the demo, in train/."""
    text = output_dir.parent / "text.txt"
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        text.write_text(file.read(200_000), encoding="utf-8")
    build_tfrecords.main(
        RecordsConfig(
            **{
                "input_file": (str(text),),
                "output_dir": str(output_dir),
                "spm_model_file": VOCABULARY,
                "max_seq_length": LENGTH,
                "max_predictions_per_seq": PREDICTIONS,
                "dupe_factor": 2,
                "num_shards": 3,
                "num_workers": 1,
                **settings,
            }
        )
    )
    return output_dir / "train"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("built") / "records")


@pytest.fixture
def records(built, tmp_path):
    """A copy of the records that a test can damage."""
    return pathlib.Path(shutil.copytree(built, tmp_path / "train"))


@pytest.fixture
def inspect(capsys):
    """A function that returns the exit status and the printed text."""

    def run(*paths, **settings):
        config = InspectConfig(
            input_file=tuple(map(str, paths)),
            **{"num_workers": 1, "num_examples": 0, **settings},
        )
        status = inspect_records.main(config)
        return status, capsys.readouterr().out

    return run


def read_contents(path):
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def write_contents(path, contents):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in contents:
            writer.write(content)


def offset_of(contents, number):
    """Where a record begins; each record before it has 16 bytes of framing."""
    return sum(len(content) + 16 for content in contents[:number])


def read_features(content):
    example = tf.train.Example.FromString(content)
    return {
        name: list(feature.float_list.value or feature.int64_list.value)
        for name, feature in example.features.feature.items()
    }


def make_example(features):
    example = tf.train.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return example.SerializeToString()


def edit_all(directory, edit):
    """Applies `edit(features)` to all records, and updates the checksums."""
    for path in sorted(directory.glob("*.tfrecord")):
        contents = []
        for content in read_contents(path):
            features = read_features(content)
            edit(features)
            contents.append(make_example(features))
        write_contents(path, contents)
    edit_metadata(directory, checksums=digest_shards(directory))


def digest_shards(directory):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.glob("*.tfrecord"))
    }


def edit_metadata(directory, **changes):
    path = directory / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata.update(changes)
    path.write_text(json.dumps(metadata))


def read_json(directory):
    return json.loads((directory / "metadata.json").read_text())


def line_of(name, output):
    """The result in a line of the table, and the line."""
    (line,) = re.findall(rf"^(?:pass|FAIL|note)  {name}.*$", output, re.M)
    return line[:4], line


def test_intact_records_pass(built, inspect):
    """No fault is reported, and all lines with an expected value are judged."""
    status, output = inspect(built)
    assert status == 0, output
    assert "FAIL" not in output
    assert "fault" not in output.replace("faulty", "")
    judged = set(re.findall(r"^pass  (.*?)  ", output, re.M))
    assert judged >= {
        "vocabulary",
        "shards",
        "records of each shard",
        "damaged or faulty records",
        "records",
        "tokens",
        "masked tokens",
        "label 1",
        "fraction masked",
        "masked tokens: [MASK]",
        "masked tokens: kept",
        "masked tokens: random",
    }
    noted = set(re.findall(r"^note  (.*?)  ", output, re.M))
    assert noted >= {"fraction <unk>", "positions filled"}


def test_statistics_are_those_of_the_records(built, inspect):
    """The test counts the messages that TensorFlow parses."""
    examples = [
        read_features(content)
        for path in sorted(built.glob("*.tfrecord"))
        for content in read_contents(path)
    ]
    ids = np.array([e["input_ids"] for e in examples])
    weights = np.array([e["masked_lm_weights"] for e in examples])
    rows, slots = np.nonzero(weights)
    columns = np.array([e["masked_lm_positions"] for e in examples])[
        rows, slots
    ]
    originals = np.array([e["masked_lm_ids"] for e in examples])[rows, slots]
    shown = ids[rows, columns]
    restored = ids.copy()
    restored[rows, columns] = originals
    num_tokens = int(np.sum([e["input_mask"] for e in examples]))
    label = np.mean([e["next_sentence_labels"] for e in examples])
    unknown = (restored == 1).sum() / (restored >= 5).sum()
    is_mask, kept = shown == MASK_ID, shown == originals
    wanted = {
        "records  ": f"{len(examples):,}",
        "tokens  ": f"{num_tokens:,}",
        "masked tokens  ": f"{len(rows):,}",
        "label 1": f"{100 * label:.2f} %",
        "fraction masked": f"{100 * len(rows) / num_tokens:.2f} %",
        r"masked tokens: \[MASK": f"{100 * np.mean(is_mask):.2f} %",
        "masked tokens: kept": f"{100 * np.mean(kept):.2f} %",
        "masked tokens: random": f"{100 * np.mean(~is_mask & ~kept):.2f} %",
        "fraction <unk>": f"{100 * unknown:.2f} %",
        "positions filled": f"{100 * num_tokens / ids.size:.2f} %",
    }
    _, output = inspect(built)
    for name, found in wanted.items():
        assert found in line_of(name, output)[1]


# --- shards ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte", "fault", "is_last"),
    [
        (0, "length", True),
        (8, "length", True),
        (12, "content", False),
        (-1, "content", False),
    ],
    ids=["length", "length's checksum", "content", "content's checksum"],
)
def test_a_flipped_bit_is_found(records, inspect, byte, fault, is_last):
    """In each of the four fields of a record. The records after a damaged
    length are unreadable."""
    path = records / SHARD
    contents = read_contents(path)
    begin = offset_of(contents, 7)
    flipped = bytearray(path.read_bytes())
    flipped[begin + byte if byte >= 0 else offset_of(contents, 8) - 1] ^= 4
    path.write_bytes(flipped)
    status, output = inspect(records)
    assert status == 1
    where = f"{path}, record 7 at byte {begin}: "
    assert re.search(f"{re.escape(where)}.*checksum of the {fault}", output)
    counted = f"must hold {len(contents)} records, as in the metadata"
    assert (counted in output) == is_last
    assert line_of("damaged or faulty records", output)[1].split()[5] == "1"


def test_a_shard_cut_short_is_found(records, inspect):
    path = records / SHARD
    contents = read_contents(path)
    last = len(contents) - 1
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    status, output = inspect(records)
    assert status == 1
    where = f"{path}, record {last} at byte {offset_of(contents, last)}: must"
    assert where in output
    # Cut between two records, the file has no damaged record.
    path.write_bytes(content[: offset_of(contents, last)])
    status, output = inspect(records)
    assert status == 1
    assert (
        f"{path}: must hold {last + 1} records, as in the metadata. "
        f"Received: {last}"
    ) in output


def test_records_in_another_order_are_found_by_the_checksum(records, inspect):
    edit_metadata(records, checksums=digest_shards(records))
    assert inspect(records)[0] == 0
    path = records / SHARD
    contents = read_contents(path)
    contents[3], contents[5] = contents[5], contents[3]
    write_contents(path, contents)
    status, output = inspect(records)
    assert status == 1
    assert f"{path}: must have the SHA-256 of the metadata" in output
    assert line_of("checksums", output)[0] == "FAIL"
    assert line_of("damaged or faulty", output)[0] == "pass"


def test_the_checksum_covers_the_complete_file(records, inspect, monkeypatch):
    """Even if the first length is damaged and no record is readable."""
    monkeypatch.setattr(tfrecord_files, "_BUFFER_BYTES", 1000)
    path = records / SHARD
    flipped = bytearray(path.read_bytes())
    flipped[0] ^= 1
    path.write_bytes(flipped)
    edit_metadata(records, checksums=digest_shards(records))
    status, output = inspect(records)
    assert status == 1
    assert line_of("checksums", output)[0] == "pass"


def test_missing_and_extra_shards_are_found(records, inspect):
    shutil.move(records / SHARD, records / "other.tfrecord")
    status, output = inspect(records)
    assert status == 1
    assert f"{records / SHARD}: must exist" in output
    assert f"{records / 'other.tfrecord'}: must not exist" in output
    assert line_of("shards", output)[0] == "FAIL"


def test_a_part_of_the_shards_can_be_inspected(records, inspect):
    """Totals are not judged then; statistics of the shard are."""
    status, output = inspect(records / SHARD)
    assert status == 0
    assert "3, 1 of them inspected" in line_of("shards", output)[1]
    assert line_of("tokens  ", output)[0] == "note"
    assert line_of("label 1", output)[0] == "pass"


def test_an_unfinished_build_is_found(records, inspect):
    (records.parent / "unfinished.json").write_text("{}")
    (records / "x.tfrecord.partial").touch()
    status, output = inspect(records)
    assert status == 1
    assert "the build is unfinished" in output
    assert "x.tfrecord.partial: must not exist" in output


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"num_examples": 5}, "records  "),
        ({"num_pieces": 5}, "tokens  "),
        ({"num_masked": 5}, "masked tokens  "),
        ({"vocabulary_sha256": "abcd"}, "vocabulary"),
    ],
)
def test_metadata_that_disagrees_is_found(records, inspect, changes, failed):
    edit_metadata(records, **changes)
    status, output = inspect(records)
    assert status == 1
    assert [line[:4] for line in output.splitlines()].count("FAIL") == 1
    assert line_of(failed, output)[0] == "FAIL"


def test_a_damaged_vocabulary_is_found(records, inspect):
    (records / "spiece.model").write_bytes(b"damaged")
    status, output = inspect(records)
    assert status == 1
    assert line_of("vocabulary", output)[0] == "FAIL"


# --- records -----------------------------------------------------------------


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


def _set(name, position, value):
    def edit(features):
        i = position(features) if callable(position) else position
        v = value(features, i) if callable(value) else value
        features[name][i] = v

    return edit


def _swap_positions(features):
    for name in ("masked_lm_positions", "masked_lm_ids"):
        values = features[name]
        values[0], values[1] = values[1], values[0]


def _move_weight(features):
    features["masked_lm_weights"][0] = 0.0
    features["masked_lm_weights"][len(features["masked_lm_weights"]) - 1] = 1.0


def _empty_first_segment(features):
    """`[CLS] [SEP] B [SEP]`."""
    middle, last = _middle(features), _last(features)
    cut = middle - 1
    for name in ("input_ids", "input_mask", "segment_ids", "token_boundary"):
        kept = features[name][:1] + features[name][middle : last + 1]
        features[name] = kept + [0] * (LENGTH - len(kept))
    slots = [
        (position - cut, token)
        for position, token, weight in zip(
            *(features[name] for name in MASK_FEATURES), strict=True
        )
        if weight and position > middle
    ]
    spare = [0] * (PREDICTIONS - len(slots))
    features["masked_lm_positions"] = [p for p, _ in slots] + spare
    features["masked_lm_ids"] = [i for _, i in slots] + spare
    features["masked_lm_weights"] = [1.0] * len(slots) + [0.0] * len(spare)


def _unmask_part_of_a_word(features):
    """Unmasks the second token of a masked word of two or more."""
    boundary = features["token_boundary"]
    positions = features["masked_lm_positions"]
    slot = next(
        slot
        for slot, position in enumerate(positions)
        if position and not boundary[position] and position - 1 in positions
    )
    features["input_ids"][positions[slot]] = features["masked_lm_ids"][slot]
    for name, empty in zip(MASK_FEATURES, (0, 0, 0.0), strict=True):
        del features[name][slot]
        features[name].append(empty)


EDITS = {
    "id beyond": (
        _set("input_ids", _visible, 30000),
        r"input_ids\[\d+\] must be a token id from 0 to 29999. Received: 30000",
    ),
    "id negative": (
        _set("input_ids", _visible, -1),
        "must be a token id from 0",
    ),
    "mask with a hole": (
        _set("input_mask", 3, 0),
        r"input_mask\[3\] must be 1",
    ),
    "mask of 2": (_set("input_mask", 3, 2), r"input_mask\[3\] must be 1 .*: 2"),
    "empty": (
        lambda f: f.update({"input_mask": [0] * LENGTH}),
        "1 for at least 5 tokens. Received: 0",
    ),
    "padding": (
        _set("input_ids", LENGTH - 1, 7),
        rf"input_ids\[{LENGTH - 1}\] must be 0 after the last token",
    ),
    "no [CLS]": (_set("input_ids", 0, 10), r"input_ids\[0\] must be \[CLS\]"),
    "[CLS] twice": (
        _set("input_ids", _visible, 2),
        r"must be a token other than \[CLS\]",
    ),
    "[MASK] elsewhere": (
        _set("input_ids", _visible, 4),
        r"other than \[MASK\], since its position is not masked",
    ),
    "<pad> within": (
        _set("input_ids", _visible, 0),
        "a token other than <pad>",
    ),
    "[SEP] missing": (
        _set("input_ids", _middle, 10),
        r"input_ids must hold 2 \[SEP\], 3. Received: 1",
    ),
    "[SEP] too many": (
        _set("input_ids", _visible, 3),
        r"input_ids must hold 2 \[SEP\], 3. Received: 3",
    ),
    "[SEP] moved": (
        lambda f: (
            _set("input_ids", _last, 10)(f),
            _set("input_ids", _visible, 3)(f),
        ),
        r"must be \[SEP\], 3, as the last token. Received: 10",
    ),
    "empty segment": (_empty_first_segment, "must hold no empty segment"),
    "segment": (
        _set("segment_ids", _middle, 1),
        r"segment_ids\[\d+\] must be 0, since the first \[SEP\] is at",
    ),
    "segment behind": (
        _set("segment_ids", LENGTH - 1, 1),
        rf"segment_ids\[{LENGTH - 1}\] must be 0",
    ),
    "boundary": (
        _set(
            "token_boundary", _visible, lambda f, i: 1 - f["token_boundary"][i]
        ),
        r"token_boundary\[\d+\] must be [01] for token \d+",
    ),
    "boundary of [SEP]": (
        _set("token_boundary", _middle, 0),
        r"token_boundary\[\d+\] must be 1 for token 3",
    ),
    "boundary of 2": (_set("token_boundary", 2, 2), "must be 0 or 1"),
    "positions swapped": (
        _swap_positions,
        r"masked_lm_positions\[1\] must be greater than the previous",
    ),
    "position twice": (
        _set(
            "masked_lm_positions", 1, lambda f, i: f["masked_lm_positions"][0]
        ),
        r"masked_lm_positions\[1\] must be greater than the previous",
    ),
    "position 0": (
        _set("masked_lm_positions", 0, 0),
        r"between \[CLS\] and the last \[SEP\], from 1 to \d+. Received: 0",
    ),
    "position beyond": (
        _set("masked_lm_positions", 1, lambda f, i: _last(f)),
        r"between \[CLS\] and the last \[SEP\]",
    ),
    "position far beyond": (
        _set("masked_lm_positions", 1, 10**12),
        r"the last \[SEP\], from 1 to \d+. Received: 10{12}",
    ),
    "position of padding": (
        _set("masked_lm_positions", PREDICTIONS - 1, 9),
        rf"masked_lm_positions\[{PREDICTIONS - 1}\] must be 0 where",
    ),
    "original of padding": (
        _set("masked_lm_ids", PREDICTIONS - 1, 9),
        rf"masked_lm_ids\[{PREDICTIONS - 1}\] must be 0 where the weight is 0",
    ),
    "original special": (
        _set("masked_lm_ids", 0, 1),
        r"masked_lm_ids\[0\] must be the id of a maskable token, from 5",
    ),
    "original beyond": (
        _set("masked_lm_ids", 0, 30000),
        "the id of a maskable token, from 5 to 29999. Received: 30000",
    ),
    "weight of a half": (
        _set("masked_lm_weights", 0, 0.5),
        r"masked_lm_weights\[0\] must be 1 for each of \d+ .*Received: 0.5",
    ),
    "weight moved": (_move_weight, r"masked_lm_weights\[0\] must be 1"),
    "[SEP] shown": (
        _set("input_ids", lambda f: f["masked_lm_positions"][0], 3),
        r"must be \[MASK\], 4, or at least 5 at a masked position. Received: 3",
    ),
    "torn word": (
        _unmask_part_of_a_word,
        r"must mask complete words. Received: \d of the \d+ tokens of the "
        r"word at",
    ),
    "label": (
        _set("next_sentence_labels", 0, 2),
        r"next_sentence_labels\[0\] must be 0 or 1. Received: 2",
    ),
    "feature missing": (
        lambda f: f.pop("segment_ids"),
        "Received: segment_ids missing",
    ),
    "feature too many": (
        lambda f: f.update(more=[1]),
        "Received: more in addition",
    ),
    "length": (
        lambda f: f["input_ids"].append(0),
        "input_ids must hold 64 values. Received: 65",
    ),
    "type": (
        lambda f: f.update(next_sentence_labels=[0.0]),
        "next_sentence_labels must be of type int64. Received: float32",
    ),
}


def _is_fit(features):
    """Whether there is padding, and a masked word of two tokens."""
    if _last(features) >= LENGTH - 2 or _middle(features) < 5:
        return False
    try:
        _unmask_part_of_a_word({k: list(v) for k, v in features.items()})
    except StopIteration:
        return False
    return True


@pytest.fixture(scope="module")
def fit_record(built):
    """The number of a record in SHARD to which all edits apply."""
    contents = read_contents(built / SHARD)
    return next(
        number
        for number, content in enumerate(contents)
        if number > 2 and _is_fit(read_features(content))
    )


@pytest.mark.parametrize("name", EDITS)
def test_a_faulty_record_is_named(records, fit_record, inspect, name):
    edit, fault = EDITS[name]
    path = records / SHARD
    contents = read_contents(path)
    features = read_features(contents[fit_record])
    edit(features)
    contents[fit_record] = make_example(features)
    write_contents(path, contents)
    # The checksum is that of a builder with this bug.
    edit_metadata(records, checksums=digest_shards(records))
    status, output = inspect(records)
    assert status == 1
    (named,) = re.findall(r"^fault: (.*)$", output, re.M)
    begin = offset_of(contents, fit_record)
    assert named.startswith(f"{path}, record {fit_record} at byte {begin}: ")
    assert re.search(fault, named), named


def test_faults_are_sorted_by_record(records, inspect):
    """Damage is found before faults in the content of earlier records."""
    path = records / SHARD
    contents = read_contents(path)
    contents[2] = b"no message at all"
    write_contents(path, contents)
    flipped = bytearray(path.read_bytes())
    flipped[offset_of(contents, 7) + 20] ^= 1
    path.write_bytes(flipped)
    edit_metadata(records, checksums=digest_shards(records))
    _, output = inspect(records)
    assert re.findall(r"^fault: .* record (\d+)", output, re.M) == ["2", "7"]
    _, output = inspect(records, max_faults=1)
    assert re.findall(r"^fault: .* record (\d+)", output, re.M) == ["2"]
    assert "and 1 more faults" in output


def test_a_record_that_is_not_a_message_is_named(records, inspect):
    path = records / SHARD
    contents = read_contents(path)
    contents[2] = b"no message at all"
    write_contents(path, contents)
    status, output = inspect(records)
    assert status == 1
    assert "record 2 at byte" in output
    assert "must be a tf.train.Example" in output


@pytest.mark.parametrize(
    ("masked_lm_prob", "fault"),
    [
        (0.08, "must be 1 for at most 5 of 64 tokens. Received: 10"),
        (0.3, r"must be 1 for more of \d+ tokens: \d+ of the budget of \d+"),
    ],
)
def test_another_fraction_of_masked_tokens_is_found(
    records, inspect, masked_lm_prob, fault
):
    """The records have 0.15 * 64 = 9.6 masked tokens; 0.08 * 64 is 5.1."""
    edit_metadata(records, masked_lm_prob=masked_lm_prob)
    status, output = inspect(records, max_faults=1000)
    assert status == 1
    assert re.search(f"masked_lm_weights {fault}", output)


def mask_words_of_four(masked_lm_prob, ngram):
    """Features of 500 examples of 75 tokens; all words have 4 tokens."""
    segment = [1, 0, 0, 0] * 9
    boundary = np.array([[1, *segment, 1, *segment, 1, 0, 0, 0, 0, 0]] * 500)
    restored = np.full(boundary.shape, 7, np.int32)
    restored[:, 0] = 2
    restored[:, [37, 74]] = 3
    restored[:, 75:] = 0
    masked = mask_batch(
        restored,
        boundary,
        np.arange(500, dtype=np.uint64),
        vocab_size=100,
        max_predictions_per_seq=12,
        masked_lm_prob=masked_lm_prob,
        ngram=ngram,
    )
    return {
        "input_ids": masked.input_ids,
        "input_mask": (restored > 0).astype(np.int32),
        "segment_ids": np.array([[0] * 38 + [1] * 37 + [0] * 5] * 500),
        "token_boundary": boundary,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.ids,
        "masked_lm_weights": masked.weights,
        "next_sentence_labels": np.zeros((500, 1), np.int32),
    }


def count_faults(features, masked_lm_prob, ngram):
    rules = RecordRules(80, 12, "static", 100, "sop", masked_lm_prob, ngram)
    return len(check_examples(features, rules).faults)


@pytest.mark.parametrize("ngram", [1, 3])
@pytest.mark.parametrize("masked_lm_prob", [0.02, 0.15])
def test_masks_of_the_masking_rule_are_never_refused(ngram, masked_lm_prob):
    """The budgets of 75 tokens, 2 and 11, are no multiples of 4: a span
    exceeds the budget, or much of the budget is unused."""
    features = mask_words_of_four(masked_lm_prob, ngram)
    assert count_faults(features, masked_lm_prob, ngram) == 0


def test_too_few_masked_tokens_are_refused_if_any_span_fits():
    """After 4 of a budget of 11, another word of 4 tokens fits. With an ngram
    of 1 it must be masked; with 2, all remaining spans may have 8 tokens."""
    features = mask_words_of_four(0.04, 1)  # a budget of 3: one word
    assert features["masked_lm_weights"].sum(axis=1).tolist() == [4] * 500
    assert count_faults(features, 0.04, 1) == 0
    assert count_faults(features, 0.15, 1) == 500
    assert count_faults(features, 0.15, 2) == 0


def test_faults_beyond_the_limit_are_counted(records, inspect):
    edit_all(records, _set("input_ids", 0, 10))
    num_records = read_json(records)["num_examples"]
    status, output = inspect(records, max_faults=3)
    assert status == 1
    assert len(re.findall("^fault: ", output, re.M)) == 3
    assert f"and {num_records - 3:,} more faults" in output


# --- statistics --------------------------------------------------------------


@pytest.mark.parametrize("label", [0, 1])
def test_labels_out_of_balance_are_found(records, inspect, label):
    edit_all(records, _set("next_sentence_labels", 0, label))
    status, output = inspect(records)
    assert status == 1
    assert line_of("label 1", output)[0] == "FAIL"
    assert [line[:4] for line in output.splitlines()].count("FAIL") == 1


def _show_masks_alone(features):
    for position, weight in zip(
        features["masked_lm_positions"],
        features["masked_lm_weights"],
        strict=True,
    ):
        if weight:
            features["input_ids"][position] = MASK_ID


def test_replacements_other_than_80_10_10_are_found(records, inspect):
    edit_all(records, _show_masks_alone)
    status, output = inspect(records)
    assert status == 1
    for kind in (r"\[MASK\]", "kept", "random"):
        assert line_of(f"masked tokens: {kind}", output)[0] == "FAIL"
    assert [line[:4] for line in output.splitlines()].count("FAIL") == 3


def test_equal_documents_widen_the_tolerance_of_the_labels(records):
    """Equal documents have equal labels. Of 10,000 examples, 4,500 with label
    1 are 10 standard deviations from a half, but 1 if 100 documents are
    equal."""
    rules = RecordRules(
        LENGTH, PREDICTIONS, "dynamic", sentence_objective="sop"
    )
    statistics = empty_statistics(rules)._replace(
        num_examples=10_000, num_label=4_500
    )

    def judge(num_duplicates):
        edit_metadata(records, num_duplicate_documents=num_duplicates)
        metadata = read_metadata(str(records))
        findings = judge_statistics(
            statistics, rules, metadata, is_complete=False
        )
        (finding,) = (f for f in findings if f.name == "label 1")
        return finding.passed, finding.expected

    assert judge(0) == (False, "50.00 %, 10.0 sigma away")
    assert judge(99) == (True, "50.00 %, 1.0 sigma away")


def test_words_and_spans_end_at_segments():
    """`[CLS] aa a [SEP] a <unk>a [SEP]`, where aa is a word of two tokens, and
    all ordinary tokens are masked."""
    restored = np.array([[2, 5, 6, 7, 3, 8, 1, 9, 3, 0]], np.int32)
    boundary = np.array([[1, 1, 0, 1, 1, 0, 1, 0, 1, 0]])
    words = find_words(restored, boundary)
    assert words.starts.tolist() == [1, 3, 5, 6]
    assert words.sizes.tolist() == [2, 1, 1, 1]
    is_masked = words.count_tokens(restored >= 5) > 0
    assert words.count_spans(is_masked, 1).tolist() == [2]
    is_masked[1] = False
    assert words.count_spans(is_masked, 1).tolist() == [2]
    is_masked[3] = False
    assert words.count_spans(is_masked, 1).tolist() == [2]
    is_masked[0] = False
    assert words.count_spans(is_masked, 1).tolist() == [1]
    is_masked[2:] = True
    assert words.count_spans(is_masked, 1).tolist() == [1]


# --- other kinds of records --------------------------------------------------


def make_dynamic(directory):
    """Restores static records to records without masks."""

    def restore(features):
        for position, token, weight in zip(
            *(features.pop(name) for name in MASK_FEATURES), strict=True
        ):
            if weight:
                features["input_ids"][position] = token

    edit_all(directory, restore)
    edit_metadata(directory, masking="dynamic", num_masked=0)


def test_records_without_masks_are_checked(records, inspect):
    make_dynamic(records)
    status, output = inspect(records, num_examples=1)
    assert status == 0, output
    assert "[MASK" not in output
    path = records / SHARD
    contents = read_contents(path)
    features = read_features(contents[4])
    features["input_ids"][2] = MASK_ID
    contents[4] = make_example(features)
    write_contents(path, contents)
    status, output = inspect(records)
    assert status == 1
    assert f"{path}, record 4 at byte" in output
    assert "other than [MASK]" in output


def make_google_albert(directory):
    """Records as google-research/albert makes them: without metadata, and with
    other word starts and labels."""
    (directory / "metadata.json").unlink()
    (directory / "spiece.model").unlink()
    path = directory / "tf_examples.tfrecord-0"
    contents = []
    for shard in sorted(directory.glob("*.tfrecord")):
        for content in read_contents(shard):
            features = read_features(content)
            features["token_boundary"] = features["input_mask"]
            features["next_sentence_labels"] = [1]
            contents.append(make_example(features))
        shard.unlink()
    write_contents(path, contents)
    return path, contents


@pytest.mark.parametrize("settings", [{}, {"spm_model_file": VOCABULARY}])
def test_records_of_google_research_are_checked_without_metadata(
    records, inspect, settings
):
    path, contents = make_google_albert(records)
    status, output = inspect(path, num_examples=1, **settings)
    assert status == 0, output
    assert "no metadata" in line_of("shards", output)[1]
    for name in (
        "vocabulary",
        "records  ",
        "label 1",
        r"masked tokens: \[MASK",
    ):
        assert line_of(name, output)[0] == "note"
    if not settings:
        assert "not checked" in line_of("vocabulary", output)[1]
    features = read_features(contents[3])
    _swap_positions(features)
    contents[3] = make_example(features)
    write_contents(path, contents)
    status, output = inspect(path, **settings)
    assert status == 1
    assert f"{path}, record 3 at byte {offset_of(contents, 3)}" in output


def test_input_without_examples_is_refused(tmp_path, inspect):
    (tmp_path / "text.txt").write_text("Plain text.")
    with pytest.raises(UserError, match="must hold TFRecords"):
        inspect(tmp_path / "text.txt")
    with pytest.raises(UserError, match="must match records"):
        inspect(tmp_path / "*.tfrecord")
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
    restored = [2, *first, 3, *second, 3, 0]
    shown = list(restored)
    positions = {
        piece: restored.index(i)
        for i in restored[1:-2]
        if (piece := tokenizer.id_to_piece(i).strip("\u2581"))
    }
    masked = sorted(positions[piece] for piece in ("quick", "fox", "jumps"))
    shown[positions["quick"]] = MASK_ID
    shown[positions["fox"]] = restored[positions["lazy"]]
    example = {
        "restored": np.array(restored),
        "input_ids": np.array(shown),
        "input_mask": np.array([1] * (len(restored) - 1) + [0]),
        "masked_lm_positions": np.array([*masked, 0]),
        "masked_lm_weights": np.array([1.0, 1, 1, 0]),
        "next_sentence_labels": np.array([1]),
    }
    assert show_example(example, tokenizer, "sop").splitlines() == [
        f"{len(restored) - 1} tokens, 3 masked; label 1, swapped",
        "  A:  the [MASK:quick] [fox->lazy] [kept:jumps].",
        "  B:  unbelievably \u2581<unk> lazy",
    ]
    ids = show_example(example, None, "").splitlines()
    assert ids[0].endswith("label 1")
    assert f"[MASK:{restored[positions['quick']]}]" in ids[1]


@pytest.mark.slow
def test_the_command_reads_several_directories_and_draws(built, tmp_path):
    """In two processes, with histograms; status 0, and 1 for a fault."""
    directory = tmp_path / "records"
    for split in ("train", "eval"):
        shutil.copytree(built, directory / split)
    picture = tmp_path / "picture.png"
    command = [sys.executable, "-m", "data_prep.inspect_records"]
    command += [f"--input_file={directory}", f"--output_file={picture}"]
    done = subprocess.run(
        [*command, "--num_workers=2"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for split in ("train", "eval"):
        assert f"\n{directory}/{split}: {LENGTH} tokens" in done.stdout
    assert done.stdout.count("\nexample 0: ") == 2
    assert "all checks passed" in done.stdout
    assert "100%" in done.stderr
    height, width, _ = tf.io.decode_png(picture.read_bytes()).shape
    assert min(height, width) > 1000

    (directory / "eval" / SHARD).write_bytes(b"")
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 1
    assert f"{directory}/eval/{SHARD}: must hold" in done.stdout
    assert "NOT passed" in done.stdout


def test_output_does_not_depend_on_the_number_of_processes(built, inspect):
    assert inspect(built, num_workers=2)[1] == inspect(built)[1]
