import os

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.io import faults, files


def test_a_full_disk_leaves_the_old_file(small_disk):
    path = small_disk / "config.json"
    files.write_text(str(path), "old")
    with pytest.raises(OSError) as error:
        files.write_text(str(path), "new" * small_disk.free())
    assert faults.is_full_disk(error.value)
    assert path.read_text() == "old"


def test_a_full_disk_is_recognised_in_tensorflows_error(small_disk):
    with (
        pytest.raises(tf.errors.ResourceExhaustedError) as error,
        tf.io.gfile.GFile(str(small_disk / "shard"), "wb") as file,
    ):
        file.write(bytes(2 * small_disk.free()))
    assert faults.is_full_disk(error.value)

    out_of_memory = tf.errors.ResourceExhaustedError(None, None, "OOM")
    assert not faults.is_full_disk(out_of_memory)


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """Otherwise a power failure leaves incomplete files of complete names."""
    fsync, replace = os.fsync, os.replace
    on_disk = set()

    def record_fsync(descriptor):
        fsync(descriptor)
        on_disk.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def check_replace(source, target):
        assert source in on_disk
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", check_replace)
    files.write_text(str(tmp_path / "a"), "text")
    assert (tmp_path / "a").exists()


def test_a_failed_block_leaves_no_file_of_the_final_name(tmp_path):
    path = tmp_path / "new" / "shard"
    with pytest.raises(KeyError), files.atomic_write(str(path)) as file:
        file.write(b"half")
        raise KeyError
    assert not path.exists()
    with files.atomic_write(str(path)) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    assert [p.name for p in path.parent.iterdir()] == ["shard"]


def test_remote_files_go_through_tensorflow(tmp_path):
    """With file://, which TensorFlow reads and this module takes as remote."""
    root = f"file://{tmp_path}"
    path = f"{root}/a/b.txt"
    files.make_directories(f"{root}/a")
    files.write_text(path, "text")
    assert (tmp_path / "a" / "b.txt").read_text() == "text"
    assert files.exists(path)
    assert files.count_bytes(path) == 4
    assert files.find(f"{root}/a/*") == [path]
    assert files.find(f"{root}/*") == []
    with files.open_existing(path) as file:
        assert file.read() == "text"
    files.remove(path)
    files.remove(path)
    assert not files.exists(path)
    with pytest.raises(FileNotFoundError):
        files.open_existing(path)
    files.remove_directory(f"{root}/a")
    files.remove_directory(f"{root}/a")
    assert not list(tmp_path.iterdir())


def test_two_asterisks_match_any_number_of_directories(tmp_path, monkeypatch):
    """Each file once, also with links to parent directories; none of .b."""
    for name in ("a/b", ".b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "up").symlink_to("..")
        (tmp_path / name / "up_again").symlink_to("..")
    (tmp_path / ".b" / "3.txt").touch()
    paths = [tmp_path / "0.txt", tmp_path / "a/1.txt", tmp_path / "a/b/2.txt"]
    for path in paths:
        path.touch()
    for pattern in ("**/*.txt", "**/**/*.txt", "**"):
        assert files.find(f"{tmp_path}/{pattern}") == [str(p) for p in paths]
    assert files.find(f"{tmp_path}/*/*.txt") == [str(paths[1])]
    monkeypatch.chdir(tmp_path)
    for pattern in ("**/*.txt", "**"):
        assert files.find(pattern) == ["0.txt", "a/1.txt", "a/b/2.txt"]


def test_two_asterisks_are_refused_in_remote_patterns(tmp_path):
    """TensorFlow would find the files of one depth only."""
    with pytest.raises(UserError, match=r"without \*\*.*gs://b/\*\*/c\.txt"):
        files.find("gs://b/**/c.txt")
    (tmp_path / "a.txt").touch()
    path = f"file://{tmp_path}/a.txt"
    assert files.find(f"file://{tmp_path}/**.txt") == [path]


@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize("name", ["a[1]", "a*", "a?"])
def test_the_directory_of_listed_files_is_not_a_glob(tmp_path, prefix, name):
    """The path of another directory matches it."""
    for directory in (name, "a1"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "b.txt").touch()
    directory = f"{prefix}{tmp_path}/{name}"
    assert files.list_files(directory, "*.txt") == [f"{directory}/b.txt"]
    assert files.list_files(directory, "b.txt") == [f"{directory}/b.txt"]
    if not prefix:  # the path of a local file may contain brackets
        assert files.find(f"{directory}/b.txt") == [f"{directory}/b.txt"]


def test_missing_or_incomplete_json_is_named(tmp_path):
    path = str(tmp_path / "metadata.json")
    assert files.load_json_if_any(path) is None
    with pytest.raises(UserError, match=r"metadata\.json must exist"):
        files.load_json(path)
    files.write_text(path, '{"half":')
    with pytest.raises(UserError, match=r"metadata\.json must be JSON"):
        files.load_json_if_any(path)


def test_a_name_that_no_file_can_have_does_not_exist():
    assert not files.exists("a\0b")


@pytest.mark.parametrize("is_empty_directory", [False, True])
def test_of_two_writers_of_a_directory_the_first_to_end_is_kept(
    tmp_path, is_empty_directory
):
    """With its own files; the other one is refused."""
    target = tmp_path / "export"
    if is_empty_directory:
        target.mkdir()
    first = files.new_directory(str(target), "export_dir")
    place = first.__enter__()
    files.write_text(f"{place}/weights", "first")
    second = files.new_directory(str(target), "export_dir")
    files.write_text(f"{second.__enter__()}/weights", "second")
    files.write_text(f"{place}/labels", "first")
    first.__exit__(None, None, None)
    with pytest.raises(UserError, match=r"export_dir must be new.*exists"):
        second.__exit__(None, None, None)
    assert {p.name: p.read_text() for p in target.iterdir()} == {
        "weights": "first",
        "labels": "first",
    }
    assert [*tmp_path.iterdir()] == [target]


def test_the_present_directory_may_be_the_target(tmp_path, monkeypatch):
    target = tmp_path / "export"
    target.mkdir()
    monkeypatch.chdir(target)
    with files.new_directory(".", "export_dir") as partial:
        files.write_text(f"{partial}/weights", "new")
    assert (target / "weights").read_text() == "new"
    assert [*tmp_path.iterdir()] == [target]
