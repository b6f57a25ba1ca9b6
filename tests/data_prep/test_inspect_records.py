"""The inspector's output on intact records and on other kinds of records."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.records.features import (
    MASK_FEATURES,
    MASK_ID,
)
from albert_tf.records.tokenization import Tokenizer
from data_prep import inspect_records
from data_prep.inspection.shards import Example
from tests.helpers.inspected_records import (
    LENGTH,
    SHARD,
    VOCABULARY,
    edit_all,
    edit_metadata,
    line_of,
    make_example,
    offset_of,
    read_contents,
    read_features,
    set_value,
    swap_positions,
    write_contents,
)


def test_intact_records_pass(demo_records, inspect):
    """No fault is reported, and all lines with an expected value are judged."""
    status, output = inspect(demo_records)
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
        "masked tokens: [MASK]",
        "masked tokens: kept",
        "masked tokens: random",
    }
    noted = set(re.findall(r"^note  (.*?)  ", output, re.M))
    assert noted >= {"fraction <unk>", "positions filled"}


def test_statistics_are_those_of_the_records(demo_records, inspect):
    """The expected values come from messages that TensorFlow parses."""
    examples = [
        read_features(content)
        for path in sorted(demo_records.glob("*.tfrecord"))
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
    _, output = inspect(demo_records)
    for name, found in wanted.items():
        assert found in line_of(name, output)[1]


# --- statistics --------------------------------------------------------------


@pytest.mark.parametrize("label", [0, 1])
def test_labels_out_of_balance_are_found(records, inspect, label):
    edit_all(records, set_value("next_sentence_labels", 0, label))
    status, output = inspect(records)
    assert status == 1
    assert line_of("label 1", output)[0] == "FAIL"
    assert [line[:4] for line in output.splitlines()].count("FAIL") == 1
    # Equal documents have equal labels, so they widen the tolerance.
    edit_metadata(records, num_duplicate_documents=9_999)
    status, output = inspect(records)
    assert (status, line_of("label 1", output)[0]) == (0, "pass")


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
    assert "other than <pad> and [MASK]" in output


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
    swap_positions(features)
    contents[3] = make_example(features)
    write_contents(path, contents)
    status, output = inspect(path, **settings)
    assert status == 1
    assert f"{path}, record 3 at byte {offset_of(contents, 3)}" in output


def test_a_directory_whose_name_is_a_glob_is_inspected(
    records, tmp_path, inspect
):
    own = tmp_path / "records[1]"
    shutil.copytree(records, own / "train")
    (own / "train" / "left.partial").touch()
    status, output = inspect(own)
    assert status == 1
    assert f"fault: {own}/train/left.partial: must not exist" in output
    assert line_of("shards  ", output)[0] == "pass"


def test_a_part_of_the_shards_can_be_inspected(records, inspect):
    """Totals are not judged then; statistics of the shard are."""
    status, output = inspect(records / SHARD)
    assert status == 0
    assert "3, 1 inspected" in line_of("shards", output)[1]
    assert line_of("tokens  ", output)[0] == "note"
    assert line_of("label 1", output)[0] == "pass"


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
    restored = np.array([2, *first, 3, *second, 3])
    pieces = [tokenizer.id_to_piece(int(i)).strip("\u2581") for i in restored]
    quick, fox, jumps, lazy = map(
        pieces.index, ("quick", "fox", "jumps", "lazy")
    )
    shown = restored.copy()
    shown[[quick, fox]] = MASK_ID, restored[lazy]
    is_masked = np.isin(np.arange(len(restored)), (quick, fox, jumps))
    example = Example(restored, shown, is_masked, label=1)
    assert inspect_records.show_example(
        example, tokenizer, "sop"
    ).splitlines() == [
        f"{len(restored)} tokens, 3 masked; label 1, swapped",
        "  A:  the [MASK:quick] [fox->lazy] [kept:jumps].",
        "  B:  unbelievably \u2581<unk> lazy",
    ]
    ids = inspect_records.show_example(example, None, "").splitlines()
    assert ids[0].endswith("label 1")
    assert f"[MASK:{restored[quick]}]" in ids[1]


def test_several_directories_are_read_and_drawn(
    demo_records, tmp_path, inspect
):
    """In two processes, with the output of one."""
    directory = tmp_path / "records"
    for split in ("train", "eval"):
        shutil.copytree(demo_records, directory / split)
    picture = tmp_path / "picture.png"
    settings = {"output_file": str(picture), "num_examples": 1}
    status, output = inspect(directory, num_workers=2, **settings)
    assert status == 0, output
    assert (status, output) == inspect(directory, **settings)
    for split in ("train", "eval"):
        assert f"\n{directory}/{split}: {LENGTH} tokens" in output
    assert output.count("\nexample 0, ") == 2
    assert "all checks passed" in output
    height, width, _ = tf.io.decode_png(picture.read_bytes()).shape
    assert (height, width) == (750, 1400)


def test_a_picture_that_cannot_be_written_is_refused_first(
    demo_records, inspect, monkeypatch
):
    """Before the records are read."""
    monkeypatch.setattr(inspect_records, "_inspect_shards", None)
    with pytest.raises(OSError, match=SHARD):
        inspect(demo_records, output_file=str(demo_records / SHARD / "below"))
