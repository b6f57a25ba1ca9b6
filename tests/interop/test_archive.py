"""Archives with a model are read, and dangerous ones are refused."""

import gzip
import io
import pathlib
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
def test_an_archive_is_converted_to_a_run(
    tmp_path, google_albert_dir, suffix, monkeypatch
):
    """Its files are removed, except the vocabulary, which is read later."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    path = make_archive(tmp_path / f"albert_tiny{suffix}", google_albert_dir)
    read = google_albert.read(str(google_albert_dir))
    assert len(read.slots) == 2 * len(read.values)

    run = converted(path, tmp_path / "run", verify=True)

    assert_same(run, read)
    assert run.step == 900
    vocabulary = (tmp_path / "run" / "spiece.model").read_bytes()
    assert vocabulary == VOCABULARY.read_bytes()
    settings = load_config(str(tmp_path / "run"))
    assert settings.training.output_dir == str(tmp_path / "run")
    left = [path.name for path in place.rglob("*") if path.is_file()]
    assert left == ["30k-clean.model"]
    assert formats.read_weights(str(path)).source == str(path)


def entry(name, content=b"", kind=tarfile.REGTYPE, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, len(content)
    return member, content


def archive_of(path, *members, kind=tarfile.DEFAULT_FORMAT):
    """Writes a tar with any members, which no command would write."""
    mode = "w" if path.suffix == ".tar" else "w:gz"
    with tarfile.open(path, mode, format=kind) as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    return path


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
        entry("a/c.index", b"1"),
        entry("a/b.model", b"", kind, target),
        entry("/a/d.model", b"2"),
    )
    with archive.unpacked(str(path)) as directory:
        found = sorted(p.name for p in pathlib.Path(directory).iterdir())
    assert found == ["c.index", "d.model"]


LIMITS = {"MAX_BYTES": 10**6 - 1, "MAX_FILES": 2, "MAX_SMALL_BYTES": 6}
WITH_NUL = entry("a")
WITH_NUL[0].pax_headers = {"path": "a\0/b.model"}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([entry("a/../../b.model")], r": '\.\./b.* outside the dest"),
        ([entry("../b.index", b"1")], r": '\.\./b.* outside the dest"),
        ([entry("a/b.data-0", bytes(10**6))], "most 999999 bytes.* 1000000"),
        ([entry(f"a/{n}") for n in range(3)], "at most 2 files. Received: 3"),
        (
            [entry("a/albert_config.json", b"{     }")],
            r"albert_config\.json in .* 6 bytes. Received: 7",
        ),
        ([entry("a" * 256 + "/b.model")], "unpacked.*File name too long"),
        ([WITH_NUL], "names of files inside it.* null"),
        ([entry("checkpoint"), entry("checkpoint/b.model")], "Not a directory"),
        ([entry("weights.txt")], r"no file \*\.in"),
        ([entry("1/a.index"), entry("2/b.index")], "1/a.index, 2/b.index"),
    ],
)
@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_dangerous_archive_is_refused(
    tmp_path, monkeypatch, suffix, members, message
):
    for name, limit in LIMITS.items():
        monkeypatch.setattr(archive, name, limit)
    path = tmp_path / f"a.{suffix}"
    archive_of(path, *members, kind=tarfile.PAX_FORMAT)
    refused(path, tmp_path, message)


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_header_above_the_limit_is_refused(tmp_path, kind):
    """A name of gigabytes compresses to megabytes."""
    path = archive_of(
        tmp_path / "a.tar.gz", entry("a/" + "b" * 2**20), kind=kind
    )
    assert path.stat().st_size < 10_000
    refused(path, tmp_path, r"at most 1048576 bytes.*: 10485\d\d")


def test_a_damaged_archive_is_refused(tmp_path, google_albert_dir):
    path = make_archive(tmp_path / "a.tar.gz", google_albert_dir)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:30], b"text", b""):
        path.write_bytes(damaged)
        refused(path, tmp_path, "must be a complete archive|must hold one chec")
    plain = tmp_path / "plain.tar"
    plain.write_bytes(gzip.decompress(content)[:-20000])
    refused(plain, tmp_path, "must be a complete archive")
    refused(tmp_path / "c.tar", tmp_path, "Received: No such file")
    (tmp_path / "d.tar").mkdir()
    refused(tmp_path / "d.tar", tmp_path, "Received: Is a directory")
