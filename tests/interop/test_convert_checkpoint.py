"""Models go from each format into each, and bad ones into none."""

import dataclasses
import gzip
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ConvertConfig, ExportConfig, ModelConfig
from albert_tf.errors import UserError
from albert_tf.interop import archive, formats, google_albert
from albert_tf.interop.convert import convert, write_run
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.interop.weight_names import list_weights
from albert_tf.runs import directory as run_directory
from albert_tf.serving.export import export
from albert_tf.training import evaluate, train
from tests.helpers import published_graph, tiny_run
from tests.interop.test_google_albert import (
    CONFIG,
    GROUPS,
    PUBLISHED_VOCABULARY,
)

ROOT = pathlib.Path(__file__).parents[2]

# With the published vocabulary.
PUBLISHED_CONFIG = {**GROUPS, "vocab_size": 30000}


@pytest.fixture(scope="module")
def run_dir(tiny_records, tmp_path_factory):
    """A run with checkpoints of steps 0, 2 and 4."""
    directory = tmp_path_factory.mktemp("converted") / "run"
    config = tiny_run.make_config(
        tiny_records,
        directory,
        num_train_steps=4,
        save_checkpoints_steps=2,
    )
    assert train.train(config) == 0
    return directory


@pytest.fixture(scope="module")
def published_dir(tmp_path_factory):
    """As in a published archive, in training, beside what else is there."""
    directory = tmp_path_factory.mktemp("published") / "albert_tiny"
    published_graph.write(
        directory / "model.ckpt-best", PUBLISHED_CONFIG, step=900, slots=True
    )
    shutil.copy(PUBLISHED_VOCABULARY, directory)
    (directory / "30k-clean.vocab").write_text("<pad>\t0\n")
    (directory / "model.ckpt-best.meta").write_bytes(b"a graph")
    return directory


def converted(source, target, to_format="auto", **more):
    convert(
        ConvertConfig(
            from_=str(source), to=str(target), to_format=to_format, **more
        )
    )
    return formats.read_weights(str(target))


def assert_same(weights, expected):
    assert weights.config == expected.config
    assert weights.sentence_objective == expected.sentence_objective
    assert weights.step == expected.step
    for kind in ("values", "slots"):
        found, wanted = getattr(weights, kind), getattr(expected, kind)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


def make_archive(path, directory):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        tar.add(directory, arcname=f"./{directory.name}")
    return path


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar"])
def test_an_archive_becomes_a_run_and_an_archive_again(
    tmp_path, published_dir, suffix
):
    archive = make_archive(tmp_path / f"albert_tiny{suffix}", published_dir)
    read = google_albert.read(str(published_dir))
    assert len(read.slots) == 2 * len(read.values)

    run = converted(archive, tmp_path / "run", verify=True)
    assert_same(run, read)
    assert run.step == 900
    vocabulary = (tmp_path / "run" / "spiece.model").read_bytes()
    assert vocabulary == PUBLISHED_VOCABULARY.read_bytes()
    assert formats.find_format(str(tmp_path / "run")) == "run"
    settings = run_directory.load_config(str(tmp_path / "run"))
    assert settings.training.output_dir == str(tmp_path / "run")

    back = converted(tmp_path / "run", tmp_path / "back", verify=True)
    assert_same(back, read)
    kept = google_albert.read(str(tmp_path / "back" / "model.ckpt-900"))
    assert_same(kept, read)


def test_what_is_unpacked_does_not_stay(tmp_path, published_dir, monkeypatch):
    """But for the vocabulary, which others read later."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    archive = make_archive(tmp_path / "a.tgz", published_dir)
    weights = formats.read_weights(str(archive))
    left = [path for path in place.rglob("*") if path.is_file()]
    assert left == [pathlib.Path(weights.vocabulary)]
    assert weights.source == str(archive)


@pytest.mark.slow
def test_a_run_goes_out_and_comes_back_bit_by_bit(tmp_path, run_dir):
    trained = formats.read_weights(str(run_dir))
    assert trained.step == 4
    assert len(trained.slots) == 2 * len(trained.values)
    moments = [v for name, v in trained.slots.items() if name.endswith("/m")]
    assert all(moment.any() for moment in moments)

    published = converted(run_dir, tmp_path / "published")
    assert_same(published, trained)
    assert_same(converted(tmp_path / "published", tmp_path / "run"), trained)

    converted(run_dir, tmp_path / "folder", "hugging_face")
    back = converted(tmp_path / "folder", tmp_path / "again")
    without_training = dataclasses.replace(trained, slots={}, step=0)
    assert_same(back, without_training)


def test_any_checkpoint_of_a_run_can_be_taken(tmp_path, run_dir):
    source, run_dir = run_dir, tmp_path / "run"
    shutil.copytree(source, run_dir)
    shutil.rmtree(run_dir / "best")
    shutil.copytree(
        run_dir / "checkpoints" / "step-00000002",
        run_dir / "best" / "step-00000002",
    )

    def read(part="", step=0):
        return formats.read_weights(f"{run_dir}{part}", step)

    assert read("/best").step == 2
    assert read("/best/step-00000002/").step == 2
    assert read("/checkpoints").step == 4
    assert read("/checkpoints/step-00000002").step == 2
    assert read(step=2).step == 2
    path = "albert/pooler/kernel"
    # Step 0 by its path, since as a setting 0 is the newest.
    first = read("/checkpoints/step-00000000")
    assert first.step == 0
    assert not np.array_equal(first.values[path], read().values[path])
    for step in (2, 4):
        reader = tf.train.load_checkpoint(
            str(run_dir / "checkpoints" / f"step-{step:08d}" / "variables")
        )
        np.testing.assert_array_equal(
            read(step=step).values[path], reader.get_tensor(path)
        )
    with pytest.raises(UserError, match=r"Received: 3\..*There are: .*2, 4"):
        read(step=3)
    shutil.rmtree(run_dir / "best")
    shutil.copytree(
        run_dir / "checkpoints" / "step-00000000",
        run_dir / "best" / "step-00000000",
    )
    assert read("/best").step == 0


def test_a_step_beside_a_path_of_one_checkpoint_is_refused(
    tmp_path, run_dir, published_dir
):
    """Even of its own: who gives both may mean either."""
    converted(published_dir, tmp_path / "folder", "hugging_face")
    for path in (
        run_dir / "checkpoints" / "step-00000002",
        run_dir / "best",
        published_dir / "model.ckpt-best",
        published_dir / "model.ckpt-best.index",
        tmp_path / "folder",
    ):
        match = f"checkpoint_step must be omitted .*Received: 4, and {path}"
        with pytest.raises(UserError, match=match):
            formats.read_weights(str(path), 4)


def test_a_folder_is_no_run_for_its_name(tmp_path, published_dir):
    """Such as the best of several, beside the config of all of them."""
    converted(published_dir, tmp_path / "all" / "best", "hugging_face")
    shutil.copy(tmp_path / "all" / "best" / "config.json", tmp_path / "all")
    found = formats.find_format(str(tmp_path / "all" / "best"))
    assert found == "hugging_face"


@pytest.mark.slow
def test_a_converted_run_is_evaluated_and_exported(
    tmp_path, run_dir, tiny_records, capsys
):
    """And gives what the run gives that it came from."""
    converted(run_dir, tmp_path / "published")
    converted(tmp_path / "published", tmp_path / "run")

    def figures_of(directory):
        capsys.readouterr()
        evaluate.evaluate_run(tiny_run.make_config(tiny_records, directory))
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    figures = figures_of(tmp_path / "run")
    assert figures["step"] == 4
    assert figures == figures_of(run_dir)

    export(
        ExportConfig(
            run_dir=str(tmp_path / "run"), export_dir=str(tmp_path / "export")
        )
    )
    assets = tmp_path / "export" / "assets.extra"
    vocabulary = (assets / "spiece.model").read_bytes()
    assert vocabulary == (run_dir / "spiece.model").read_bytes()


def test_a_converted_run_is_none_that_goes_on(tmp_path, run_dir, tiny_records):
    """Its settings are not known, nor where it is in its data."""
    converted(run_dir, tmp_path / "published")
    converted(tmp_path / "published", tmp_path / "run")
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", allow_config_change=True
    )
    with pytest.raises(
        UserError, match=r"must hold the variables of this.*--init_checkpoint"
    ):
        train.train(config)


def test_unshared_layers_become_groups_where_others_know_no_else(tmp_path):
    config = ModelConfig.from_dict({**CONFIG, "parameter_sharing": "attention"})
    values = {
        weight.path: np.full(weight.shape, number, np.float32)
        for number, weight in enumerate(list_weights(config))
    }
    weights = ModelWeights(config, "sop", values, step=6)
    write_run(weights, str(tmp_path / "run"), str(tmp_path / "run"))
    published = converted(tmp_path / "run", tmp_path / "out", verify=True)
    assert published.config.num_hidden_groups == 3
    assert published.step == 6


@pytest.mark.parametrize("objective", ["none", "nsp"])
def test_the_sentence_objective_goes_along(tmp_path, objective):
    """But that sentences follow each other no published model says."""
    config = ModelConfig.from_dict(CONFIG)
    values = {
        weight.path: np.full(weight.shape, number, np.float32)
        for number, weight in enumerate(list_weights(config, objective))
    }
    weights = ModelWeights(config, objective, values, step=3)
    write_run(weights, str(tmp_path / "run"), str(tmp_path / "run"))
    assert_same(formats.read_weights(str(tmp_path / "run")), weights)
    back = converted(tmp_path / "run", tmp_path / "out", verify=True)
    assert back.sentence_objective == {"none": "none", "nsp": "sop"}[objective]
    again = converted(tmp_path / "out", tmp_path / "again", verify=True)
    assert again.sentence_objective == back.sentence_objective


@pytest.mark.slow
def test_the_command_tells_what_it_read(tmp_path, published_dir):
    command = [sys.executable, "-m", "albert_tf.convert_checkpoint"]
    command += [f"--from={published_dir}", f"--to={tmp_path / 'run'}"]
    done = subprocess.run(
        [*command, "--verify"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # E=4, H=6, I=10, V=30000, 9 positions; a block has 4 square products, two
    # LayerNorms and the feed-forward layer; there are 2 x 2 of them.
    block = 4 * (6 * 6 + 6) + 2 * 2 * 6 + (6 * 10 + 10) + (10 * 6 + 6)
    embeddings = (30000 + 2 + 9) * 4 + 2 * 4 + (4 * 6 + 6)
    heads = (6 * 4 + 4) + 2 * 4 + 30000 + (6 * 6 + 6) + (2 * 6 + 2)
    assert f"{embeddings + 4 * block + heads:,} parameters" in done.stdout
    assert "step                900" in done.stdout
    assert "moments             of 80 variables" in done.stdout
    assert f"{published_dir / 'model.ckpt-best'} (published)" in done.stdout
    assert "all 240 arrays are equal, bit for bit" in done.stdout

    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 1
    error = again.stderr.splitlines()[-1]
    assert error.startswith("error: --to must be new, or an empty directory.")


def test_settings_that_make_no_sense_are_refused(tmp_path, published_dir):
    with pytest.raises(UserError, match="--from is required"):
        convert(ConvertConfig(to="x"))
    with pytest.raises(UserError, match="--to is required"):
        convert(ConvertConfig(from_="x"))
    converted(published_dir, tmp_path / "run")
    with pytest.raises(UserError, match="another format where --from is a run"):
        converted(tmp_path / "run", tmp_path / "copy", "run")
    (tmp_path / "empty").mkdir()
    converted(tmp_path / "run", tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "run"]


def test_a_link_to_an_empty_directory_is_filled(tmp_path, published_dir):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    converted(published_dir, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "config.json").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "link"]


def test_what_another_writes_meanwhile_stays(
    tmp_path, published_dir, monkeypatch
):
    """To convert the largest models takes minutes."""
    write = google_albert.write

    def write_as_another_does(weights, directory):
        write(weights, directory)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "file").write_text("another's")

    monkeypatch.setattr(google_albert, "write", write_as_another_does)
    with pytest.raises(UserError, match="--to must be new"):
        converted(published_dir, tmp_path / "out", "published")
    assert (tmp_path / "out" / "file").read_text() == "another's"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_model_is_not_removed_to_be_written_again(
    tmp_path, published_dir, monkeypatch
):
    """What a conversion leaves that was killed may be all there is."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(published_dir, tmp_path / "out.partial")
    match = r"Received: .*Choose another --to"
    refused("out.partial", tmp_path, match)
    refused(tmp_path / "out.partial" / "model.ckpt-best", tmp_path, match)


def refused(source, tmp_path, match, **more):
    """Converts what must be refused, and nothing may be written."""
    before = sorted(tmp_path.rglob("*"))
    for to_format in ("run", "published", "hugging_face"):
        with pytest.raises(UserError, match=match):
            converted(source, tmp_path / "out", to_format, **more)
        assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_model_is_refused(tmp_path):
    refused(tmp_path / "none", tmp_path, "there is no such file, dir")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", tmp_path, "empty, with nothing")
    (tmp_path / "text.txt").write_text("text")
    refused(tmp_path / "text.txt", tmp_path, r"Received: .*text\.txt")


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "weights.pt", "tf_model.h5", "last.ckpt"]
)
def test_what_may_hold_a_program_is_refused_by_name(tmp_path, name):
    """As a file, and as what a folder holds besides its config."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / name).write_bytes(b"\x80\x04.")
    match = rf"cannot run code.*Received: .*{name}.*save_pretrained"
    refused(folder / name, tmp_path, match)
    refused(folder, tmp_path, match)


def test_a_vocabulary_of_another_size_is_refused(tmp_path, published_dir):
    folder = tmp_path / "model"
    shutil.copytree(published_dir, folder)
    published_graph.write(folder / "model.ckpt-best", CONFIG)
    match = r"30000 pieces in 30k-clean\.model, and 11"
    refused(folder, tmp_path, match)
    refused(make_archive(tmp_path / "a.tar", folder), tmp_path, match)


def test_another_architecture_is_refused(tmp_path, published_dir):
    folder = tmp_path / "model"
    shutil.copytree(published_dir, folder)
    config = json.dumps({**PUBLISHED_CONFIG, "hidden_size": 8})
    (folder / "albert_config.json").write_text(config)
    match = r"kernel has shape \[4, 6\], not \[4, 8\] as in"
    refused(folder, tmp_path, match)


def test_a_run_of_another_architecture_is_refused(tmp_path, run_dir):
    shutil.copytree(run_dir, tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    settings = json.loads(file.read_text())
    settings["model"]["intermediate_size"] = 23
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"\[16, 24\], not \[16, 23\]"):
        converted(tmp_path / "run", tmp_path / "out")
    settings["model"]["inner_group_num"] = 2
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"inner_group_1.* is missing"):
        converted(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_torn_checkpoints_of_a_run_are_passed_over(tmp_path, run_dir):
    shutil.copytree(run_dir, tmp_path / "run")
    parent = tmp_path / "run" / "checkpoints"
    data = "variables.data-00000-of-00001"
    os.truncate(parent / "step-00000004" / data, 1000)
    assert formats.read_weights(str(tmp_path / "run")).step == 2
    for directory in parent.iterdir():
        os.truncate(directory / data, 1000)
    refused(tmp_path / "run" / "checkpoints", tmp_path, "must be (whole|anoth)")


def archive_of(path, *members):
    """A tar of members that no command would make."""
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def entry(name, kind=tarfile.REGTYPE, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("name", "kind", "target", "told"),
    [
        ("/etc/albert_config.json", tarfile.REGTYPE, "", "an absolute path"),
        ("a/../../b.model", tarfile.REGTYPE, "", ".* outside the destination"),
        ("../b.index", tarfile.REGTYPE, "", ".* outside the destination"),
        ("a/b.model", tarfile.SYMTYPE, "/etc/passwd", "a link"),
        ("a/b.model", tarfile.LNKTYPE, "a/c.model", "a link"),
        ("a/b.model", tarfile.CHRTYPE, "", ".* is a special file"),
        ("a/b.model", tarfile.FIFOTYPE, "", ".* is a special file"),
    ],
)
def test_an_archive_with_paths_out_of_it_is_refused(
    tmp_path, name, kind, target, told, monkeypatch
):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    archive = archive_of(
        tmp_path / "a.tar.gz",
        (entry("a/albert_config.json"), b"{}"),
        (entry(name, kind, target), b"" if target else b"1"),
    )
    refused(archive, tmp_path, f"Received: '{name}': {told}")


def test_an_archive_beyond_reason_is_refused(tmp_path, monkeypatch):
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
    twice = archive_of(
        tmp_path / "twice.tar.gz",
        (entry("a/checkpoint"), b"1"),
        (entry("a/./checkpoint"), b"2"),
    )
    refused(twice, tmp_path, "a/checkpoint twice")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_header_that_would_fill_the_memory_is_refused(tmp_path, kind):
    """A name of gigabytes takes megabytes in an archive."""
    member = entry("a/" + "b" * 2**20)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=kind) as tar:
        tar.addfile(member)
    assert (tmp_path / "a.tar.gz").stat().st_size < 10_000
    refused(
        tmp_path / "a.tar.gz", tmp_path, r"at most 1048576 bytes.*: 10485\d\d"
    )


def test_names_that_no_file_can_have_are_refused(tmp_path):
    long = archive_of(tmp_path / "a.tgz", (entry("a" * 256 + "/b.model"), b""))
    refused(long, tmp_path, "names that a file can have.*File name too long")
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
    refused(inside, tmp_path, r"Received: checkpoint/b\.model: Not a directory")
    (tmp_path / "d.tar").mkdir()
    refused(tmp_path / "d.tar", tmp_path, "Received: a directory")


def test_a_damaged_archive_is_refused(tmp_path, published_dir):
    archive = make_archive(tmp_path / "a.tar.gz", published_dir)
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


def test_several_models_in_one_archive_are_refused(tmp_path, published_dir):
    both = tmp_path / "both"
    for name in ("one", "two"):
        shutil.copytree(published_dir, both / name)
    archive = make_archive(tmp_path / "a.tar", both)
    refused(archive, tmp_path, r"one/model\.ckpt-best\.index, both/two/model")


def test_verify_finds_a_bit_that_changed(tmp_path, published_dir, monkeypatch):
    write = google_albert.write

    def write_wrongly(weights, directory):
        path = "albert/pooler/bias"
        value = weights.values[path].copy()
        value[0] = np.nextafter(value[0], np.float32(9))
        values = {**weights.values, path: value}
        write(dataclasses.replace(weights, values=values), directory)

    monkeypatch.setattr(google_albert, "write", write_wrongly)
    with pytest.raises(UserError, match="differences in albert/pooler/bias"):
        converted(published_dir, tmp_path / "out", "published", verify=True)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing_behind(small_disk, published_dir):
    with pytest.raises((OSError, tf.errors.ResourceExhaustedError)):
        converted(published_dir, small_disk / "out")
    assert not list(small_disk.iterdir())


@pytest.mark.interop
@pytest.mark.parametrize("with_sentence_head", [True, False])
def test_verify_asks_the_model_of_hugging_face(
    tmp_path, published_dir, capsys, with_sentence_head
):
    converted(
        published_dir,
        tmp_path / "out",
        "hugging_face",
        verify=True,
        with_sentence_head=with_sentence_head,
    )
    printed = capsys.readouterr().out
    assert "largest difference of masked_lm_logits: " in printed
    assert ("of sentence_logits" in printed) == with_sentence_head
