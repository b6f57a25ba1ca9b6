"""Damaged records of a run whose records have moved."""

import json
import shutil

import numpy as np
import pytest

from albert_tf.input.corrupt_records import CorruptRecord, CorruptRecords
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.damaged_records import damage_content
from tests.helpers.newest_checkpoint import read_variables
from tests.helpers.run_processes import lines_without_timing


@pytest.mark.slow
@pytest.mark.parametrize("has_checksum", [True, False])
def test_damaged_records_are_still_known_after_a_move(
    tiny_records, tmp_path, has_checksum
):
    """Without checksum, as earlier versions noted them."""
    shutil.copytree(tiny_records, tmp_path / "here")
    for shard in (tmp_path / "here/train").glob("*.tfrecord"):
        damage_content(shard, 17)

    def config(records, run):
        return tiny_run.make_config(
            tmp_path / records, tmp_path / run, on_corrupt_record="skip"
        )

    train(config("here", "alone"))
    # A run that has ended after step 4.
    shutil.copytree(tmp_path / "alone", tmp_path / "moved")
    for step in (8, 12):
        shutil.rmtree(tmp_path / f"moved/checkpoints/step-{step:08d}")
    notes = tmp_path / "moved/corrupt_records.json"
    noted = json.loads(notes.read_text())
    if not has_checksum:
        for note in noted:
            note.pop("checksum", None)
        notes.write_text(json.dumps(noted))
    (tmp_path / "here").rename(tmp_path / "there")

    train(config("there", "moved"))
    assert json.loads(notes.read_text()) == noted
    moved, alone = tmp_path / "moved", tmp_path / "alone"
    assert lines_without_timing(moved) == lines_without_timing(alone)
    expected = read_variables(alone)
    for name, value in read_variables(moved).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_moved_file_is_found_by_name_checksum_and_directory():
    known = CorruptRecords(
        "",
        [
            CorruptRecord("/a/wiki/0.tfrecord", 3, "", "sum of wiki"),
            CorruptRecord("/a/books/0.tfrecord", 5, ""),
            CorruptRecord("/b/news/0.tfrecord", 7, ""),
            CorruptRecord("/a/wiki/1.tfrecord", 9, "", "another sum"),
        ],
    )
    assert known.in_files(
        {
            "/b/articles/0.tfrecord": "sum of wiki",
            "/b/books/0.tfrecord": "sum of books",
            "/b/news/0.tfrecord": "sum of news",
            "/b/wiki/1.tfrecord": "sum of 1",
        }
    ) == {
        "/b/articles/0.tfrecord": frozenset({3}),
        "/b/books/0.tfrecord": frozenset({5}),
        "/b/news/0.tfrecord": frozenset({7}),
    }


def test_a_note_that_fits_several_files_applies_to_none():
    known = CorruptRecords("", [CorruptRecord("/a/wiki/0.tfrecord", 3, "")])
    assert not known.in_files({"/b/0.tfrecord": "", "/c/0.tfrecord": ""})
