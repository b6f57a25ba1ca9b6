"""Models are converted from each format into each."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import (
    ConvertConfig,
    ExportConfig,
    TaskHeadConfig,
)
from albert_tf.errors import UserError
from albert_tf.interop import hugging_face
from albert_tf.interop.convert import convert, write_run
from albert_tf.interop.verify import verify
from albert_tf.serving.export import export
from albert_tf.training import evaluate, train
from tests.helpers import tiny_run
from tests.helpers.conversion import (
    converted,
    refused,
)
from tests.helpers.small_builds import read_files
from tests.helpers.tiny_albert import TINY, random_weights


@pytest.mark.slow
def test_a_converted_run_is_evaluated_and_exported(
    tmp_path, run_dir, tiny_records, capsys
):
    """Its metrics are those of the original run."""
    converted(run_dir, tmp_path / "folder")
    converted(tmp_path / "folder", tmp_path / "run")

    def metrics_of(directory):
        capsys.readouterr()
        evaluate.evaluate_run(tiny_run.make_config(tiny_records, directory))
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    metrics = metrics_of(tmp_path / "run")
    assert metrics | {"step": 4} == metrics_of(run_dir)

    export(
        ExportConfig(
            run_dir=str(tmp_path / "run"), export_dir=str(tmp_path / "export")
        )
    )
    assets = tmp_path / "export" / "assets.extra"
    vocabulary = (assets / "spiece.model").read_bytes()
    assert vocabulary == (run_dir / "spiece.model").read_bytes()


def test_a_converted_run_cannot_be_resumed(tmp_path, run_dir, tiny_records):
    """Its settings and its position in the data are unknown.

    The attempt must not change its files, e.g. its vocabulary.
    """
    converted(run_dir, tmp_path / "folder")
    converted(tmp_path / "folder", tmp_path / "run")
    before = read_files(tmp_path / "run")
    for allow in (False, True):
        config = tiny_run.make_config(
            tiny_records, tmp_path / "run", allow_config_change=allow
        )
        with pytest.raises(
            UserError, match=r"Received: a converted model.*--init_checkpoint"
        ):
            train.train(config)
    assert read_files(tmp_path / "run") == before


def test_the_command_prints_a_summary(tmp_path, google_albert_dir, capsys):
    converted(google_albert_dir, tmp_path / "run", verify=True)
    printed = capsys.readouterr().out
    # E=4, H=6, I=10, V=30000, 9 positions; a block has 4 square products, two
    # LayerNorms and the feed-forward layer; there are 2 x 2 of them.
    block = 4 * (6 * 6 + 6) + 2 * 2 * 6 + (6 * 10 + 10) + (10 * 6 + 6)
    embeddings = (30000 + 2 + 9) * 4 + 2 * 4 + (4 * 6 + 6)
    heads = (6 * 4 + 4) + 2 * 4 + 30000 + (6 * 6 + 6) + (2 * 6 + 2)
    assert f"{embeddings + 4 * block + heads:,} parameters" in printed
    assert "step                900" in printed
    assert "moments             of 80 variables" in printed
    assert f"{google_albert_dir / 'model.ckpt-best'} (published)" in printed
    assert "all 240 arrays are equal, bit for bit" in printed


def test_missing_and_contradictory_settings_are_refused(
    tmp_path, google_albert_dir
):
    run = str(tmp_path / "run")
    converted(google_albert_dir, run)
    for settings, message in (
        ({"to": "x"}, "--from is required"),
        ({"from_": "x"}, "--to is required"),
        ({"from_": run, "to": "x", "to_format": "run"}, "if --from is a run"),
        ({"to_format": "published"}, r"no longer writes.*=hugging_face"),
        ({"from_": str(google_albert_dir), "to": run}, "--to must be new, or"),
    ):
        with pytest.raises(UserError, match=message):
            convert(ConvertConfig(**settings))
    (tmp_path / "empty").mkdir()
    converted(run, tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "run"]


def test_a_link_to_an_empty_directory_is_filled(tmp_path, google_albert_dir):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    converted(google_albert_dir, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "config.json").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "link"]


def test_files_that_another_process_wrote_meanwhile_are_kept(
    tmp_path, google_albert_dir, monkeypatch
):
    """Converting the largest models takes minutes."""
    write = hugging_face.write

    def write_as_another_does(weights, directory, *more):
        write(weights, directory, *more)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "file").write_text("another's")

    monkeypatch.setattr(hugging_face, "write", write_as_another_does)
    with pytest.raises(UserError, match="--to must be new"):
        converted(google_albert_dir, tmp_path / "out", "hugging_face")
    assert (tmp_path / "out" / "file").read_text() == "another's"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_source_is_not_removed_as_a_temporary_directory(
    tmp_path, google_albert_dir, monkeypatch
):
    """A killed conversion may have left the only copy of a model."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(google_albert_dir, tmp_path / "out.partial")
    match = r"Received: .*Choose another --to"
    refused("out.partial", tmp_path, match)
    refused(tmp_path / "out.partial" / "model.ckpt-best", tmp_path, match)


def test_verify_finds_a_bit_that_changed(
    tmp_path, google_albert_dir, monkeypatch
):
    def write_wrongly(weights, *directories):
        path = "albert/pooler/bias"
        value = weights.values[path].copy()
        value[0] = np.nextafter(value[0], np.float32(9))
        values = {**weights.values, path: value}
        write_run(dataclasses.replace(weights, values=values), *directories)

    monkeypatch.setattr("albert_tf.interop.convert.write_run", write_wrongly)
    with pytest.raises(UserError, match="differences in albert/pooler/bias"):
        converted(google_albert_dir, tmp_path / "out", verify=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fact", ["head", "sentence_objective"])
def test_verify_compares_labels_and_objective(fact, tmp_path):
    """Two labels, or objectives, have the same arrays."""
    if fact == "head":
        labels = TaskHeadConfig(labels=("no", "yes"))
        weights = random_weights(TINY, "none", head=labels)
        other = TaskHeadConfig(labels=("yes", "no"))
    else:
        weights, other = random_weights(TINY, "sop"), "nsp"
    run = str(tmp_path / "run")
    write_run(weights, run, run)
    assert "equal, bit for bit" in verify(weights, run)
    with pytest.raises(UserError, match=rf"differences in {fact}\.$"):
        verify(dataclasses.replace(weights, **{fact: other}), run)


def test_a_full_disk_leaves_nothing_behind(small_disk, google_albert_dir):
    with pytest.raises((OSError, tf.errors.ResourceExhaustedError)):
        converted(google_albert_dir, small_disk / "out")
    assert not list(small_disk.iterdir())


@pytest.mark.interop
def test_verify_compares_outputs_with_transformers(
    tmp_path, google_albert_dir, capsys
):
    converted(
        google_albert_dir,
        tmp_path / "out",
        "hugging_face",
        verify=True,
        with_sentence_head=False,
    )
    printed = capsys.readouterr().out
    assert "largest difference of mlm_logits: " in printed
    assert "of sentence_logits" not in printed
