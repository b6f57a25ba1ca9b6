import json

import pytest

from albert_tf.errors import UserError
from data_prep.builder import directory as records_directory
from data_prep.config import RecordsConfig
from data_prep.text.files import TextFile


def fill(directory):
    """What an interrupted build leaves."""
    for name in (
        "train/train-00000-of-00001.tfrecord",
        "train/train-00000-of-00001.tfrecord.partial",
        "eval/metadata.json",
        "unfinished/train-00000-of-00001.tfrecord.json",
    ):
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    (directory / "train" / "notes.txt").write_text("a user's")
    (directory / "unfinished.json").write_text('{"inputs_sha256": "ab"}')


def names(directory):
    return {p.name for p in directory.rglob("*") if p.is_file()}


def test_a_build_keeps_its_own_shards(tmp_path):
    fill(tmp_path)
    before = names(tmp_path)
    records_directory.make_room(str(tmp_path), "ab")
    assert names(tmp_path) == before


def test_another_build_s_shards_and_notes_go(tmp_path):
    fill(tmp_path)
    records_directory.make_room(str(tmp_path), "cd")
    assert names(tmp_path) == {"notes.txt", "unfinished.json"}
    stored = json.loads((tmp_path / "unfinished.json").read_text())
    assert stored == {"inputs_sha256": "cd"}


def test_an_unfinished_build_is_not_up_to_date(tmp_path):
    fill(tmp_path)
    (tmp_path / "train" / "metadata.json").write_text('{"inputs_sha256": "ab"}')
    arguments = (str(tmp_path), "ab")
    assert not records_directory.is_up_to_date(*arguments, overwrite=False)
    (tmp_path / "unfinished.json").unlink()
    assert records_directory.is_up_to_date(*arguments, overwrite=False)
    with pytest.raises(UserError, match=r"other settings.*--overwrite"):
        records_directory.is_up_to_date(str(tmp_path), "cd", overwrite=False)
    assert not records_directory.is_up_to_date(
        str(tmp_path), "cd", overwrite=True
    )


def test_each_split_wanted_must_have_examples():
    held_out = RecordsConfig(holdout_fraction=0.5)
    sources = [TextFile(f"{name}.txt", 7) for name in "abcde"]
    check = records_directory.check_not_empty
    check(held_out, {"train": 1, "eval": 1}, {}, sources)
    check(RecordsConfig(), {"train": 1}, {}, sources)
    for found in ({"train": 5}, {"eval": 5}):
        with pytest.raises(UserError, match="holdout_fraction"):
            check(held_out, found, {}, sources)
    expected = r"two words.*7 lines, in a.txt, b.txt, c.txt and 2 more"
    with pytest.raises(UserError, match=expected):
        check(RecordsConfig(), {}, {"lines": 7}, sources)
