"""Archives with a model are read, and dangerous ones are refused."""

import gzip
import io
import pathlib
import shutil
import tarfile

import pytest

from albert_tf.interop import archive, formats, google_albert
from albert_tf.runs.directory import load_config
from tests.helpers.conversion import (
    assert_same,
    converted,
    make_archive,
    refused,
)
from tests.helpers.tiny_albert import VOCABULARY


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar"])
def test_an_archive_is_converted_to_a_run(tmp_path, google_albert_dir, suffix):
    archive = make_archive(tmp_path / f"albert_tiny{suffix}", google_albert_dir)
    read = google_albert.read(str(google_albert_dir))
    assert len(read.slots) == 2 * len(read.values)

    run = converted(archive, tmp_path / "run", verify=True)
    assert_same(run, read)
    assert run.step == 900
    vocabulary = (tmp_path / "run" / "spiece.model").read_bytes()
    assert vocabulary == VOCABULARY.read_bytes()
    assert formats.find_format(str(tmp_path / "run")) == "run"
    settings = load_config(str(tmp_path / "run"))
    assert settings.training.output_dir == str(tmp_path / "run")


def test_unpacked_files_are_removed(tmp_path, google_albert_dir, monkeypatch):
    """Except the vocabulary, which is read later."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    archive = make_archive(tmp_path / "a.tgz", google_albert_dir)
    weights = formats.read_weights(str(archive))
    left = [path for path in place.rglob("*") if path.is_file()]
    assert left == [pathlib.Path(weights.vocabulary)]
    assert weights.source == str(archive)


def archive_of(path, *members):
    """Writes a tar with any members, which no command would write."""
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def entry(name, kind=tarfile.REGTYPE, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize("name", ["a/../../b.model", "../b.index"])
def test_an_archive_with_paths_out_of_it_is_refused(tmp_path, name):
    archive = archive_of(
        tmp_path / "a.tar.gz",
        (entry("a/albert_config.json"), b"{}"),
        (entry(name), b"1"),
    )
    refused(archive, tmp_path, f"Received: '{name}': .* outside the dest")


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "a/c.model"),
        (tarfile.CHRTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_are_not_unpacked(tmp_path, kind, target):
    path = archive_of(
        tmp_path / "a.tar.gz",
        (entry("a/c.index"), b"1"),
        (entry("a/b.model", kind, target), b""),
        (entry("/a/d.model"), b"2"),
    )
    with archive.unpacked(str(path)) as directory:
        found = sorted(p.name for p in pathlib.Path(directory).iterdir())
    assert found == ["c.index", "d.model"]


def test_an_archive_above_a_limit_is_refused(tmp_path, monkeypatch):
    large = archive_of(
        tmp_path / "large.tar.gz", (entry("a/b.data-0-of-1"), bytes(10**6))
    )
    monkeypatch.setattr(archive, "MAX_BYTES", 10**6 - 1)
    refused(large, tmp_path, "999999 bytes.*Received: 1 files with 1000000 b")
    monkeypatch.setattr(archive, "MAX_FILES", 2)
    many = archive_of(
        tmp_path / "many.tar.gz", *[(entry(f"a/{n}"), b"") for n in range(3)]
    )
    refused(many, tmp_path, "at most 2 files.*Received: 3 files")
    monkeypatch.setattr(archive, "MAX_SMALL_BYTES", 5)
    config = archive_of(
        tmp_path / "config.tar.gz", (entry("a/albert_config.json"), b"{     }")
    )
    refused(config, tmp_path, r"albert_config\.json in .* 5 bytes.*Received: 7")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_header_above_the_limit_is_refused(tmp_path, kind):
    """A name of gigabytes compresses to megabytes."""
    member = entry("a/" + "b" * 2**20)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=kind) as tar:
        tar.addfile(member)
    assert (tmp_path / "a.tar.gz").stat().st_size < 10_000
    refused(
        tmp_path / "a.tar.gz", tmp_path, r"at most 1048576 bytes.*: 10485\d\d"
    )


def test_names_that_no_file_can_have_are_refused(tmp_path):
    long = archive_of(tmp_path / "a.tgz", (entry("a" * 256 + "/b.model"), b""))
    refused(long, tmp_path, "names of files inside it.*File name too long")
    member = entry("a")
    member.pax_headers = {"path": "a\0/b.model"}
    with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.PAX_FORMAT) as f:
        f.addfile(member)
    refused(
        tmp_path / "b.tar", tmp_path, r"Received: 'a\\x00/b\.model': .* null"
    )
    inside = archive_of(
        tmp_path / "c.tgz",
        (entry("checkpoint"), b""),
        (entry("checkpoint/b.model"), b""),
    )
    refused(
        inside, tmp_path, r"Received: 'checkpoint/b\.model': .*Not a directory"
    )
    (tmp_path / "d.tar").mkdir()
    refused(tmp_path / "d.tar", tmp_path, "Received: a directory")


def test_a_damaged_archive_is_refused(tmp_path, google_albert_dir):
    archive = make_archive(tmp_path / "a.tar.gz", google_albert_dir)
    content = archive.read_bytes()
    for damaged in (content[: len(content) // 2], content[:30], b"text", b""):
        archive.write_bytes(damaged)
        refused(
            archive, tmp_path, "must be a complete archive|must hold one chec"
        )
    other = tmp_path / "other"
    other.mkdir()
    (other / "weights.txt").write_text("1")
    refused(
        make_archive(tmp_path / "b.tgz", other), tmp_path, r"no file \*\.in"
    )
    refused(tmp_path / "c.tar", tmp_path, r"c\.tar must exist")
    plain = tmp_path / "plain.tar"
    plain.write_bytes(gzip.decompress(content)[:-20000])
    refused(plain, tmp_path, "must be a complete archive")


def test_several_models_in_one_archive_are_refused(tmp_path, google_albert_dir):
    both = tmp_path / "both"
    for name in ("one", "two"):
        shutil.copytree(google_albert_dir, both / name)
    archive = make_archive(tmp_path / "a.tar", both)
    refused(archive, tmp_path, r"one/model\.ckpt-best\.index, both/two/model")
