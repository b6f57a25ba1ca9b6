import json
import os
import shutil

import pytest

from albert_tf.errors import UserError
from albert_tf.io.artifact import check_writable
from tests.helpers.small_builds import build, read_files


def fill(output_dir, description):
    """Writes the files of an interrupted build, and a file of a user."""
    for name in (
        "train/train-00000-of-00001.tfrecord",
        "train/train-00000-of-00001.tfrecord.partial",
        "eval/metadata.json",
        "unfinished/train-00000-of-00001.tfrecord.json",
    ):
        path = output_dir / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("{}")
    (output_dir / "train" / "notes.txt").write_text("a user's")
    (output_dir / "unfinished.json").write_text(json.dumps(description))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (
            {"inputs_sha256": "cd", "settings": {"unicode": "14"}},
            r"unfinished\.json.*Different: unicode was '14' and is '.*'\..*"
            "Continue that build",
        ),
        ({"inputs_sha256": "ab"}, "Different: the text, or the version"),
        ([], "Different: the text, or the version"),
    ],
)
def test_another_unfinished_build_is_replaced_only_with_overwrite(
    documents, tmp_path, description, message
):
    """Only its shards and notes are removed. As a glob, its name matches the
    other directory, whose records stay.
    """
    path = tmp_path / "text.txt"
    path.write_text(documents[0], encoding="utf-8")
    out, other = tmp_path / "a[1]", tmp_path / "a1"
    settings = {"num_shards": 1, "holdout_fraction": 0}
    for output_dir in (out, other):
        fill(output_dir, description)
    before = read_files(other)
    with pytest.raises(UserError, match=message + ".*--overwrite"):
        build(out, path, **settings)
    assert read_files(out) == before
    build(out, path, overwrite=True, **settings)
    found = read_files(out)
    assert found.pop("train/notes.txt") == b"a user's"
    assert found.keys() == {
        "train/train-00000-of-00001.tfrecord",
        "train/metadata.json",
        "train/spiece.model",
    }
    assert read_files(other) == before


@pytest.fixture
def rebuild(built, text_file, tmp_path):
    """A function that builds the records of `built` again, over a copy."""
    out = tmp_path / "out"
    shutil.copytree(built, out)
    return lambda **settings: build(out, text_file, **settings)


def test_records_of_an_earlier_version_are_not_continued(rebuild, tmp_path):
    """Neither finished nor unfinished ones; they stay."""
    out = tmp_path / "out"
    metadata = out / "train" / "metadata.json"
    stored = json.loads(metadata.read_text()) | {"inputs_sha256": "a"}
    stored["schema_version"] = 2
    unfinished = {"inputs_sha256": "a", "settings": stored}
    for path, content in (
        (metadata, stored),
        (out / "unfinished.json", unfinished),
    ):
        path.write_text(json.dumps(content))
        before = read_files(out)
        with pytest.raises(UserError, match="schema_version was 2 and is 4"):
            rebuild()
        assert read_files(out) == before


def test_missing_files_are_named_and_built_with_overwrite(
    rebuild, built, tmp_path
):
    names = "train/train-00001-of-00003.tfrecord", "train/spiece.model", "eval"
    for name in names:
        path = tmp_path / "out" / name
        remove = shutil.rmtree if path.is_dir() else os.remove
        remove(path)
    before = read_files(tmp_path / "out")
    message = f"no .*{names[0]}.*eval.*{names[1]}.*--overwrite"
    with pytest.raises(UserError, match=message):
        rebuild()
    assert read_files(tmp_path / "out") == before
    rebuild(overwrite=True)
    assert read_files(tmp_path / "out") == read_files(built)


@pytest.mark.parametrize("name", ["a", "b//c/a"])
def test_the_check_leaves_no_files_or_directories(tmp_path, monkeypatch, name):
    """Of an absolute and of a relative path."""
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / name), name):
        check_writable(path)
        assert not list(tmp_path.iterdir())
