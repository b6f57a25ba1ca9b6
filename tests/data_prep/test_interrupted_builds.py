import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import unicodedata

import pytest

from albert_tf.errors import UserError
from data_prep import build as builder
from data_prep import build_tfrecords
from data_prep.directory import SCRATCH_DIR
from data_prep.segments import TRAIN
from tests.helpers.small_builds import build, make_config, read_files


def tree_of(directory):
    """Returns the content of files by path, and None for directories."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        if path.is_file()
        else None
        for path in directory.rglob("*")
    }


@pytest.mark.slow
def test_build_killed_before_any_change_of_a_file_gives_the_same_records(
    documents, tiny_records, tmp_path, monkeypatch
):
    """The build replaces another, which was killed after its last shard. Its
    training records are packed, and its evaluation records are not."""
    path = tmp_path / "text.txt"
    lines = documents[3].split("\n")
    parts = ["\n".join(lines[i : i + 5]) for i in range(0, len(lines), 5)]
    path.write_text("\n\n".join([*parts, parts[0]]), encoding="utf-8")
    # A vocabulary of 400 pieces, which is loaded quickly.
    vocabulary = str(tiny_records / "train" / "spiece.model")
    config = make_config(
        tmp_path / "expected",
        path,
        num_shards=1,
        spm_model_file=vocabulary,
        packing="best_fit",
        overwrite=True,
    )
    build_tfrecords.main(config)
    killed = tmp_path / "killed"
    other = killed / "before"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(builder.files, "remove", interrupt_at_the_end)
        build(other, path, num_shards=2, seed=1, spm_model_file=vocabulary)
    # The names of its shards differ in train/, and are equal in eval/.
    assert (other / "train" / "train-00000-of-00002.tfrecord").exists()
    notes = {p.name for p in (other / "unfinished").iterdir()}
    assert "eval-00000-of-00001.tfrecord.json" in notes

    settings = dataclasses.asdict(config)
    del settings["output_dir"], settings["num_workers"]
    subprocess.run(
        [
            sys.executable,
            "tests/helpers/killed_builds.py",
            str(killed),
            json.dumps(settings),
        ],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=True,
    )
    expected = tree_of(tmp_path / "expected")
    ended = {int(p.name): p for p in killed.iterdir() if p != other}
    assert len(ended) > 60
    for number in range(1, len(ended) + 1):
        assert tree_of(ended[number]) == expected, number


def interrupt_at_the_end(path):
    """In place of `files.remove`; a build removes this file last."""
    if path.endswith("unfinished.json"):
        raise KeyboardInterrupt
    os.remove(path)


def interrupt(*arguments):
    raise KeyboardInterrupt(arguments)


def test_a_complete_build_removes_scratch_files_of_earlier_ones(
    documents, tmp_path
):
    path = tmp_path / "text.txt"
    path.write_text("Word.", encoding="utf-8")
    other = tmp_path / "out" / SCRATCH_DIR / "other" / "units"
    other.mkdir(parents=True)
    with pytest.raises(UserError, match="at least two words"):
        build(tmp_path / "out", path, holdout_fraction=0.0)
    assert other.exists()
    path.write_text(documents[0], encoding="utf-8")
    build(tmp_path / "out", path, holdout_fraction=0.0)
    assert os.listdir(tmp_path / "out") == ["train"]


def test_scratch_dir_keeps_files_of_others(built, text_file, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "mine").write_text("")
    out = build(tmp_path / "out", text_file, scratch_dir=str(scratch))
    assert read_files(out) == read_files(built)
    assert [p.name for p in scratch.iterdir()] == ["mine"]


def interrupted_at(call, function):
    """Returns a function that raises KeyboardInterrupt at a call, and a list
    of the last arguments of the earlier calls."""
    calls = []

    def called(*arguments):
        if len(calls) == call:
            raise KeyboardInterrupt
        calls.append(arguments[-1])
        return function(*arguments)

    return called, calls


def unit_of(path, *_):
    return int(pathlib.Path(path).stem)


def test_text_that_changes_during_a_build_is_in_no_record(
    documents, tmp_path, monkeypatch
):
    """Also if the build is run again with the text that was checked."""
    path = tmp_path / "text.txt"
    first, other = "\n\n".join(documents[:4]), "\n\n".join(documents[1:9])
    path.write_text(first, encoding="utf-8")
    check = builder.text.check_inputs

    def check_and_change(*arguments):
        checked = check(*arguments)
        path.write_text(other, encoding="utf-8")
        return checked

    monkeypatch.setattr(builder, "_SMALLEST_UNIT", 2000)
    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=r"text\.txt must not change"),
    ):
        patch.setattr(builder.text, "check_inputs", check_and_change)
        build(tmp_path / "out", path, holdout_fraction=0)
    assert list(tmp_path.rglob("*.spill")) and not list(
        tmp_path.rglob("*.tfrecord")
    )
    path.write_text(first, encoding="utf-8")
    for name in ("out", "other"):
        build(tmp_path / name, path, holdout_fraction=0)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "other")


def test_finished_units_are_not_made_again(text_file, tmp_path, monkeypatch):
    """The first build is interrupted after two of five units. A build with
    another version of Unicode, also interrupted, does not continue it."""
    config = make_config(tmp_path / "out", text_file)
    make_unit = builder.make_unit
    version = unicodedata.unidata_version
    for call, unicode, units in (
        (2, version, [0, 1]),
        (1, "0.0", [0]),
        (None, version, [2, 3, 4]),
    ):
        monkeypatch.setattr(unicodedata, "unidata_version", unicode)
        interrupted, tasks = interrupted_at(call, make_unit)
        monkeypatch.setattr(builder, "make_unit", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            build_tfrecords.main(config)
        assert [unit_of(*task) for task in tasks] == units


def test_finished_shards_are_not_written_again(
    text_file, tmp_path, monkeypatch
):
    """The first build is interrupted after two of ten shards. A build of
    other settings then is refused, and changes nothing. One of the finished
    shards is removed, e.g. since it is damaged."""
    config = make_config(tmp_path / "out", text_file, num_shards=9)
    write_shard = builder.write_shard
    shards = tmp_path / "out" / TRAIN
    found = []
    for call, number in ((2, 2), (None, 9)):
        interrupted, tasks = interrupted_at(call, write_shard)
        monkeypatch.setattr(builder, "write_shard", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            build_tfrecords.main(config)
        assert len(tasks) == number
        complete = shards.glob("*.tfrecord")
        found.append({path: path.stat().st_mtime_ns for path in complete})
        monkeypatch.setattr(builder, "write_shard", write_shard)
        if call:
            before = tree_of(tmp_path / "out")
            with pytest.raises(UserError, match="num_shards was 9 and is 8"):
                build(tmp_path / "out", text_file, num_shards=8)
            assert tree_of(tmp_path / "out") == before
            removed = shards / "train-00000-of-00009.tfrecord"
            removed.unlink()
            del found[0][removed]
    assert [len(written) for written in found] == [1, 9]
    assert found[0].items() <= found[1].items()
    other = build(tmp_path / "other", text_file, num_shards=9)
    assert read_files(tmp_path / "out") == read_files(other)
