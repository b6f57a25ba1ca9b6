import json
import shutil

import pytest

from albert_tf.errors import UserError
from data_prep.builder import directory
from data_prep.results import check_writable
from tests.helpers.small_builds import build, read_files


def fill(output_dir):
    """Writes the files of an interrupted build, and a file of a user."""
    for name in (
        "train/train-00000-of-00001.tfrecord",
        "train/train-00000-of-00001.tfrecord.partial",
        "eval/metadata.json",
        "unfinished/train-00000-of-00001.tfrecord.json",
    ):
        path = output_dir / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    (output_dir / "train" / "notes.txt").write_text("a user's")
    (output_dir / "unfinished.json").write_text('{"inputs_sha256": "ab"}')


@pytest.mark.parametrize("name", ["a[1]", "a*"])
def test_only_the_shards_and_notes_of_another_build_are_removed(tmp_path, name):
    """As a glob, `name` matches the other directory, whose records stay."""
    own, other = tmp_path / name, tmp_path / "a1"
    for output_dir in (own, other):
        output_dir.mkdir()
        fill(output_dir)
    before = read_files(other)
    directory.begin_build(str(own), {"inputs_sha256": "cd"})
    assert read_files(own) == {
        "train/notes.txt": b"a user's",
        "unfinished.json": b'{"inputs_sha256": "cd"}',
    }
    assert read_files(other) == before


def test_another_unfinished_build_is_replaced_only_with_overwrite(tmp_path):
    """Here of another version of a library, and of other text."""
    fill(tmp_path)
    first, upgraded = (
        {"versions": {"unicode": number}, "settings": {"unicode": number}}
        for number in ("14", "15")
    )
    first["inputs_sha256"] = "ab"
    (tmp_path / "unfinished.json").write_text(json.dumps(first))
    for other, message in (
        (upgraded, "unicode was 14 and is 15"),
        ({"inputs_sha256": "ef"}, "the text, or the version"),
    ):
        message = rf"unfinished\.json.*Different: {message}.*or .*--overwrite"
        arguments = (str(tmp_path), {**first, **other}, [])
        with pytest.raises(UserError, match=message):
            directory.find_missing_shards(*arguments, overwrite=False)
        assert directory.find_missing_shards(*arguments, overwrite=True) is None


@pytest.mark.parametrize("content", ['{"inputs_sha256": null}', "{", "[]"])
def test_records_that_were_about_to_be_replaced_need_overwrite(
    tmp_path, content
):
    """`begin_build` was killed before or after it removed the last record. A
    build without other records needs no --overwrite."""
    fill(tmp_path)
    (tmp_path / "unfinished.json").write_text(content)
    build_id = {"inputs_sha256": "cd", "settings": {}}
    arguments = (str(tmp_path), build_id, [])
    find = directory.find_missing_shards
    with pytest.raises(UserError, match=r"about to replace.*00001\.tfrecord"):
        find(*arguments, overwrite=False)
    assert find(*arguments, overwrite=True) is None
    shutil.rmtree(tmp_path / "train")
    shutil.rmtree(tmp_path / "eval")
    assert find(*arguments, overwrite=False) is None
    directory.begin_build(str(tmp_path), build_id)
    stored = json.loads((tmp_path / "unfinished.json").read_text())
    assert stored == build_id


@pytest.fixture
def rebuild(built, text_file, tmp_path):
    """A function that builds the records of `built` again, over a copy."""
    out = tmp_path / "out"
    shutil.copytree(built, out)
    return lambda **settings: build(out, text_file, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"packing": "best_fit", "sentence_objective": "nsp", "num_workers": 2},
    ],
)
def test_missing_shards_are_built_again_with_the_same_bytes(
    settings, text_file, tmp_path
):
    """The other files are not changed. A shard whose bytes would differ from
    the metadata, e.g. after an upgrade of a library, stays missing."""
    out = build(tmp_path / "out", text_file, **settings)
    expected = read_files(out)
    names = "train/train-00001-of-00003", "eval/eval-00000-of-00001"
    shards = [out / f"{name}.tfrecord" for name in names]
    for shard in shards:
        shard.unlink()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    build(out, text_file, **settings)
    assert read_files(out) == expected
    assert kept == {path: path.stat().st_mtime_ns for path in kept}

    metadata = out / "train" / "metadata.json"
    found = json.loads(metadata.read_text())["checksums"][shards[0].name]
    metadata.write_text(metadata.read_text().replace(found, "0" * 64))
    shards[0].unlink()
    with pytest.raises(UserError, match=r"00001-of.*SHA-256.*--overwrite"):
        build(out, text_file, **settings)
    assert not shards[0].exists()
    build(out, text_file, overwrite=True, **settings)
    assert read_files(out) == expected


@pytest.mark.parametrize(
    "names",
    [
        ["eval/metadata.json"],
        ["train/spiece.model", "eval", "train/train-00001-of-00003.tfrecord"],
    ],
)
def test_missing_files_are_named_and_built_with_overwrite(
    names, rebuild, built, tmp_path, caplog
):
    for name in names:
        path = tmp_path / "out" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    before = read_files(tmp_path / "out")
    named = ".*".join(names[:2])
    with pytest.raises(UserError, match=f"no .*{named}.*--overwrite"):
        rebuild()
    assert read_files(tmp_path / "out") == before
    rebuild(overwrite=True)
    assert names[0] in caplog.text
    assert read_files(tmp_path / "out") == read_files(built)


@pytest.mark.parametrize(
    "name",
    [
        "train/train-00001-of-00003.tfrecord",
        "eval/metadata.json",
        "train/spiece.model",
    ],
)
def test_damaged_files_are_built_again_with_overwrite(
    name, rebuild, built, tmp_path, caplog
):
    path = tmp_path / "out" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 128  # not UTF-8 in metadata
    path.write_bytes(content)
    rebuild(overwrite=True)
    assert name in caplog.text
    assert read_files(tmp_path / "out") == read_files(built)


@pytest.mark.parametrize("name", ["a", "b//c/a"])
def test_the_check_leaves_no_files_or_directories(tmp_path, monkeypatch, name):
    """Of an absolute and of a relative path."""
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / name), name):
        check_writable(path)
        assert not list(tmp_path.iterdir())
