import pytest

from data_prep.writability import check_writable


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
