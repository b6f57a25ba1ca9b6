"""Packing: which examples share a row, and what packed records hold."""

import unittest.mock

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from albert_tf.config import MaskingConfig, SequenceConfig
from albert_tf.errors import UserError
from albert_tf.records.features import (
    MASK_FEATURES,
    read_metadata,
    stored_features,
)
from albert_tf.records.masking import mask_rows
from data_prep import packing
from data_prep.packing import BestFit, largest_mask_counts, pack_rows
from data_prep.segments import EVAL, TRAIN
from tests.helpers import small_builds
from tests.helpers.small_builds import build, read_files

LENGTH, PREDICTIONS, EXAMPLES = 40, 7, 4
SHAPE = MaskingConfig(
    max_seq_length=LENGTH,
    max_predictions_per_seq=PREDICTIONS,
    max_examples_per_row=EXAMPLES,
    masked_lm_prob=0.15,
    ngram=1,
)

# --- best fit ----------------------------------------------------------------


def pack(lengths, masked, shape=SHAPE, batch_size=1000):
    best_fit = BestFit(shape)
    rows = []
    for begin in range(0, len(lengths), batch_size):
        batch = slice(begin, begin + batch_size)
        rows += best_fit.add(lengths[batch], masked[batch])
    return rows + best_fit.close()


def pack_plainly(lengths, masked, max_open, max_age):
    """Best fit by a search of all rows."""
    complete, open_rows = [], []

    def count(values, row):
        return sum(values[i] for i in row)

    for number in range(len(lengths)):
        rows = [
            row
            for row in open_rows
            if count(lengths, [*row, number]) <= LENGTH
            and count(masked, [*row, number]) <= PREDICTIONS + EXAMPLES - 1
        ]
        if rows:
            # Of several rows with equal room, the one that was changed first.
            row = max(rows, key=lambda row: (count(lengths, row), -row[-1]))
            open_rows.remove(row)
        else:
            row = []
            old = sorted(r for r in open_rows if number - r[0] > max_age)
            complete += old
            open_rows = [r for r in open_rows if r not in old]
        row = [*row, number]
        if len(row) == EXAMPLES or LENGTH - count(lengths, row) < 4:
            complete.append(row)
            continue
        if len(open_rows) == max_open:
            fullest = max(
                open_rows, key=lambda row: (count(lengths, row), -row[-1])
            )
            open_rows.remove(fullest)
            complete.append(fullest)
        open_rows.append(row)
    return complete + sorted(open_rows)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    examples=st.lists(
        st.tuples(st.integers(4, LENGTH), st.integers(0, PREDICTIONS)),
        max_size=60,
    ),
    size=st.integers(1, 20),
    max_open=st.sampled_from([2, 5, 64]),
    max_age=st.sampled_from([3, 20, 2048]),
)
def test_an_example_goes_to_the_row_with_the_least_sufficient_room(
    examples, size, max_open, max_age
):
    """Few rows are open, and none for long. The sizes of the batches have no
    influence."""
    lengths = [length for length, _ in examples]
    masked = [num_masked for _, num_masked in examples]
    expected = pack_plainly(lengths, masked, max_open, max_age)
    with (
        unittest.mock.patch.object(packing, "_MAX_OPEN_ROWS", max_open),
        unittest.mock.patch.object(packing, "_MAX_AGE", max_age),
    ):
        assert pack(lengths, masked, batch_size=size) == expected


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    st.lists(st.integers(5, 512), min_size=1, max_size=40),
    st.sampled_from([2, 3, 8]),
)
def test_masks_of_ordinary_examples_do_not_change_the_rows(lengths, num):
    """An example of n tokens has max(1, round(0.15 n)) masks. The P + K - 1
    slots of a row hold those of K examples."""
    shape = SequenceConfig(max_examples_per_row=num)
    masked = [max(1, round(0.15 * length)) for length in lengths]
    assert pack(lengths, masked, shape) == pack(
        lengths, [0] * len(lengths), shape
    )


# --- limits of masks ---------------------------------------------------------


def random_rows(rng, word_length, num_rows=60, length=48):
    """`[CLS] A [SEP] B [SEP]`, of words of up to `word_length` tokens."""
    ids = np.zeros((num_rows, length), np.int32)
    boundary = np.zeros((num_rows, length), np.int32)
    for row in range(num_rows):
        size = rng.integers(5, length + 1)
        # Some tokens are <unk>, 1.
        ids[row, :size] = np.where(
            rng.random(size) < 0.1, 1, rng.integers(5, 99, size)
        )
        begin = 0
        while begin < size:
            boundary[row, begin] = 1
            begin += rng.integers(1, word_length + 1)
        separator = rng.integers(2, size - 2)
        ids[row, [0, separator, size - 1]] = 2, 3, 3
    return ids, boundary


@pytest.mark.parametrize("word_length", [1, 4, 20])
@pytest.mark.parametrize("ngram", [1, 3])
def test_no_key_masks_more_tokens_than_the_limit(word_length, ngram):
    """In over a quarter of the rows, some key masks as many."""
    config = MaskingConfig(
        max_seq_length=48, max_predictions_per_seq=9, ngram=ngram
    )
    rng = np.random.default_rng(0)
    ids, boundary = random_rows(rng, word_length)
    limits = largest_mask_counts(ids, boundary, config)
    rows = {
        "input_ids": ids,
        "input_mask": (ids > 0).astype(np.int32),
        "token_boundary": boundary,
    }
    most = np.zeros(len(ids), np.int64)
    for _ in range(300):
        keys = rng.integers(0, 2**64, (len(ids), 1), np.uint64)
        masked = mask_rows(rows, keys, 99, config)
        most = np.maximum(
            most, masked["masked_lm_weights"].sum(axis=1).astype(np.int64)
        )
    assert (most <= limits).all()
    assert np.mean(most == limits) > 0.25
    budgets = np.rint(0.15 * (ids > 0).sum(axis=1)).clip(1, 9)
    if word_length == 20:
        assert np.mean(most > budgets) > 0.1


# --- packed rows -------------------------------------------------------------


def random_examples(rng, lengths, masking):
    """Features of unpacked records, with up to PREDICTIONS masks."""
    lengths = np.array(lengths)[:, np.newaxis]
    size = len(lengths)
    is_token = np.arange(LENGTH) < lengths
    features = {
        "input_ids": rng.integers(5, 99, (size, LENGTH)) * is_token,
        "input_mask": is_token.astype(np.int64),
        "segment_ids": rng.integers(0, 2, (size, LENGTH)) * is_token,
        # Each token is a word, so dynamic masking masks the budget.
        "token_boundary": is_token.astype(np.int64),
        "next_sentence_labels": rng.integers(0, 2, (size, 1)),
    }
    if masking == "static":
        shape = size, PREDICTIONS
        used = np.arange(PREDICTIONS) < rng.integers(
            0, PREDICTIONS + 1, (size, 1)
        )
        positions = np.sort(rng.integers(0, 2**30, shape) % lengths)
        features |= {
            "masked_lm_positions": positions * used,
            "masked_lm_ids": rng.integers(5, 99, shape) * used,
            "masked_lm_weights": used.astype(np.float32),
        }
    return features


def unpack(rows):
    """The features of the examples in packed rows, by number."""
    examples = {}
    for r, mask in enumerate(rows["input_mask"]):
        row = {name: values[r] for name, values in rows.items()}
        assert not mask[np.count_nonzero(mask) :].any()
        for slot in np.flatnonzero(row["next_sentence_weights"]):
            places = np.flatnonzero(mask == slot + 1)
            begin = row["next_sentence_positions"][slot]
            assert places.tolist() == list(range(begin, begin + len(places)))
            names = "input_ids", "segment_ids", "token_boundary"
            example = {name: row[name][places] for name in names}
            example["input_mask"] = np.ones(len(places))
            label = row["next_sentence_labels"][[slot]]
            example["next_sentence_labels"] = label
            if "masked_lm_weights" in rows:
                is_own = mask[row["masked_lm_positions"]] == slot + 1
                is_own &= row["masked_lm_weights"] > 0
                example |= {n: row[n][is_own] for n in MASK_FEATURES}
                example["masked_lm_positions"] -= begin
            examples[int(row["example_numbers"][slot])] = example
    return examples


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.integers(4, LENGTH), min_size=1, max_size=60),
    st.integers(1, 20),
    st.sampled_from(["static", "dynamic"]),
    st.integers(0, 2**32 - 1),
)
def test_packed_rows_hold_the_unpacked_examples(lengths, size, masking, seed):
    """Each once, whatever the sizes of the batches."""
    features = random_examples(np.random.default_rng(seed), lengths, masking)
    batches = [
        {name: values[i : i + size] for name, values in features.items()}
        for i in range(0, len(lengths), size)
    ]
    made = list(pack_rows(batches, SHAPE))
    rows = {name: np.concatenate([r[name] for r in made]) for name in made[0]}
    declared = stored_features(masking, "best_fit")
    assert {name: v.shape[1] for name, v in rows.items()} == {
        feature.name: feature.length(SHAPE) for feature in declared
    }
    unpacked = unpack(rows)
    assert sorted(unpacked) == list(range(len(lengths)))
    for number, example in unpacked.items():
        assert example.keys() == features.keys()
        for name, values in example.items():
            expected = features[name][number]
            padded = np.pad(values, (0, len(expected) - len(values)))
            np.testing.assert_array_equal(padded, expected, err_msg=name)


# --- packed records ----------------------------------------------------------

# So few examples per row that some rows reach this limit before their length.
PACKED = {"packing": "best_fit", "max_examples_per_row": 3}


@pytest.fixture(scope="module")
def text(documents, tmp_path_factory):
    """Documents of one to four sentences, most of them shorter than a row."""
    lines = "\n".join(documents).split("\n")[:700]
    ends = np.cumsum(np.random.default_rng(0).integers(1, 5, len(lines)))
    parts = np.split(lines, ends[ends < len(lines)])
    path = tmp_path_factory.mktemp("text") / "short.txt"
    path.write_text("\n\n".join(map("\n".join, parts)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def built(text, tmp_path_factory):
    return build(tmp_path_factory.mktemp("built") / "out", text)


@pytest.fixture(scope="module")
def packed(text, tmp_path_factory):
    return build(tmp_path_factory.mktemp("packed") / "out", text, **PACKED)


def test_packed_records_are_nearly_full_rows_of_the_same_examples(
    packed, built
):
    """Evaluation records are not packed."""
    metadata = read_metadata(str(packed / TRAIN))
    unpacked = read_metadata(str(built / TRAIN))
    assert metadata.num_rows == sum(metadata.shards.values())
    assert metadata.num_rows < unpacked.num_rows == unpacked.num_examples
    assert (metadata.packing, metadata.max_examples_per_row) == ("best_fit", 3)
    assert metadata.fill == pytest.approx(
        unpacked.num_pieces / (metadata.num_rows * small_builds.LENGTH)
    )
    # Rows that are open at the end of a shard keep their padding.
    assert metadata.fill > 0.94
    assert unpacked.fill < 0.8
    for name in ("num_examples", "num_pieces", "num_masked", "inputs_sha256"):
        assert getattr(metadata, name) == getattr(unpacked, name)
    assert read_files(packed / EVAL) == read_files(built / EVAL)


def test_a_build_replaces_one_of_another_packing(packed, text, tmp_path):
    """Workers have no influence. Repeating the packed build writes nothing."""
    out = build(tmp_path / "out", text, max_examples_per_row=2)
    unpacked = read_files(out)
    message = "Different: packing was 'none' and is 'best_fit'.*--overwrite"
    with pytest.raises(UserError, match=message):
        build(out, text, **PACKED)
    assert read_files(out) == unpacked
    build(out, text, overwrite=True, num_workers=2, **PACKED)
    assert read_files(out) == read_files(packed)
    written = {p: p.stat().st_mtime_ns for p in out.rglob("*.tfrecord")}
    build(out, text, **PACKED)
    assert written == {p: p.stat().st_mtime_ns for p in written}
