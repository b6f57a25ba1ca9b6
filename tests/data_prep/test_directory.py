import json
import shutil

import pytest

from albert_tf.errors import UserError
from data_prep.builder import directory
from data_prep.builder.shards import Shard
from data_prep.config import RecordsConfig
from data_prep.results import check_writable
from data_prep.text.sources import TextFile
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


def names(output_dir):
    return {p.name for p in output_dir.rglob("*") if p.is_file()}


def test_shards_and_notes_of_another_build_are_removed(tmp_path):
    fill(tmp_path)
    directory.begin_build(str(tmp_path), {"inputs_sha256": "cd"})
    assert names(tmp_path) == {"notes.txt", "unfinished.json"}
    stored = json.loads((tmp_path / "unfinished.json").read_text())
    assert stored == {"inputs_sha256": "cd"}


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?"])
def test_the_records_of_a_directory_with_a_similar_name_are_kept(
    tmp_path, name
):
    """As a glob, `name` matches the other directory."""
    own, other = tmp_path / name, tmp_path / "a1"
    for output_dir in (own, other):
        output_dir.mkdir()
        fill(output_dir)
    before = read_files(other)
    directory.begin_build(str(own), {"inputs_sha256": "cd"})
    assert names(own) == {"notes.txt", "unfinished.json"}
    assert read_files(other) == before


def test_unfinished_build_is_not_up_to_date(tmp_path):
    fill(tmp_path)
    (tmp_path / "train" / "metadata.json").write_text('{"inputs_sha256": "ab"}')
    (tmp_path / "train" / "spiece.model").write_text("")
    shards = [Shard("train", f"{tmp_path}/train/train-00000-of-00001.tfrecord")]
    arguments = (str(tmp_path), {"inputs_sha256": "ab"}, shards)
    find = directory.find_missing_shards
    assert find(*arguments, overwrite=False) is None
    (tmp_path / "unfinished.json").unlink()
    assert find(*arguments, overwrite=False) == []
    for other in (
        {"inputs_sha256": "cd"},
        {
            "inputs_sha256": "ab",
            "packing": "best_fit",
            "max_examples_per_row": 8,
        },
    ):
        settings = {"packing": "best_fit", "x": 1}
        build_id = {**other, "settings": settings}
        arguments = (str(tmp_path), build_id, shards)
        message = "Different: packing was none and is best_fit.*--overwrite"
        with pytest.raises(UserError, match=message):
            find(*arguments, overwrite=False)
        assert find(*arguments, overwrite=True) is None
    (tmp_path / "train" / "metadata.json").unlink()
    with pytest.raises(UserError, match=r"metadata\.json, which is miss"):
        find(*arguments, overwrite=False)


def test_another_unfinished_build_is_replaced_only_with_overwrite(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "train-00000-of-00002.tfrecord").write_text("")
    first = {
        "inputs_sha256": "ab",
        "versions": {"unicode": "14"},
        "settings": {"seed": 1, "ngram": 3, "unicode": "14"},
    }
    upgraded = {
        **first,
        "versions": {"unicode": "15"},
        "settings": {**first["settings"], "unicode": "15"},
    }
    other = {"inputs_sha256": "cd", "settings": {"seed": 2, "ngram": 3}}
    (tmp_path / "unfinished.json").write_text(json.dumps(first))
    before = names(tmp_path)

    def find(build_id, overwrite=False):
        return directory.find_missing_shards(
            str(tmp_path), build_id, [], overwrite=overwrite
        )

    assert find(first) is None
    message = r"unfinished\.json.*seed was 1 and is 2\. Cont.*or .*--overwrite"
    with pytest.raises(UserError, match=message):
        find(other)
    with pytest.raises(UserError, match=r"Different: unicode was 14 and is 15"):
        find(upgraded)
    with pytest.raises(UserError, match="Different: the text, or the version"):
        find({**first, "inputs_sha256": "ef"})
    assert names(tmp_path) == before
    assert find(other, overwrite=True) is None


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
    "name",
    [
        "eval/metadata.json",
        "train/spiece.model",
        "eval",
    ],
)
def test_missing_files_are_named_and_built_with_overwrite(
    name, rebuild, built, tmp_path, caplog
):
    path = tmp_path / "out" / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    before = read_files(tmp_path / "out")
    with pytest.raises(UserError, match=f"no .*{name}.*--overwrite"):
        rebuild()
    assert read_files(tmp_path / "out") == before
    rebuild(overwrite=True)
    assert name in caplog.text
    assert read_files(tmp_path / "out") == read_files(built)


@pytest.mark.parametrize(
    "name",
    [
        "train/train-00001-of-00003.tfrecord",
        "eval/eval-00000-of-00001.tfrecord",
        "eval/metadata.json",
        "train/metadata.json",
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


def test_missing_files_other_than_shards_are_named(rebuild, tmp_path):
    shutil.rmtree(tmp_path / "out" / "eval")
    for name in ("train-00001-of-00003.tfrecord", "spiece.model"):
        (tmp_path / "out" / "train" / name).unlink()
    with pytest.raises(UserError, match=r"no \S+train/spiece.model, .*eval/"):
        rebuild()


def test_each_requested_split_must_have_examples():
    held_out = RecordsConfig(holdout_fraction=0.5)
    sources = [TextFile(f"{name}.txt", 7) for name in "abcde"]
    check = directory.check_not_empty
    check(held_out, {"train": 1, "eval": 1}, {}, sources)
    check(RecordsConfig(), {"train": 1}, {}, sources)
    for found in ({"train": 5}, {"eval": 5}):
        with pytest.raises(UserError, match="holdout_fraction"):
            check(held_out, found, {}, sources)
    expected = r"two words.*7 lines, in a.txt, b.txt, c.txt and 2 more"
    with pytest.raises(UserError, match=expected):
        check(RecordsConfig(), {}, {"lines": 7}, sources)


@pytest.mark.parametrize("name", ["a", "b/c/a", "b//a", "b/a"])
def test_the_check_leaves_no_files_or_directories(tmp_path, monkeypatch, name):
    """Of an absolute and of a relative path."""
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / name), name):
        check_writable(path)
        assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "text.txt").write_text("")
    for name in ("text.txt/a", "text.txt/b/c/a"):
        with pytest.raises(OSError, match=r"text\.txt"):
            check_writable(str(tmp_path / name))
