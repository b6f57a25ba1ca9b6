"""The format of a model is found from its path, and unsafe ones are refused."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.interop import formats
from albert_tf.runs.checkpoints import model_variables
from albert_tf.runs.rollback import Rollback, Rollbacks
from albert_tf.runs.trained_model import load_run
from tests.helpers import google_albert_graph
from tests.helpers.conversion import (
    converted,
    make_archive,
    refused,
    write_published,
)
from tests.helpers.exports import (
    MODEL,
    write_records_files,
    write_run,
)
from tests.helpers.google_albert_graph import CONFIG


def test_any_checkpoint_of_a_run_can_be_read(tmp_path, run_dir):
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
    # By its path, since the setting 0 means the newest.
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
    with pytest.raises(
        UserError, match=r"Received: 3\..*Available steps: .*2, 4"
    ):
        read(step=3)
    shutil.rmtree(run_dir / "best")
    shutil.copytree(
        run_dir / "checkpoints" / "step-00000000",
        run_dir / "best" / "step-00000000",
    )
    assert read("/best").step == 0


def test_a_best_checkpoint_that_a_rollback_has_discarded_is_refused(
    tmp_path, run_dir
):
    source, run_dir = run_dir, tmp_path / "run"
    shutil.copytree(source, run_dir)
    best = run_dir / "best"
    assert formats.read_weights(str(best)).step == 4
    Rollbacks.read(str(run_dir)).add(Rollback(6, 2, 4, 1.0, "nan"))
    with pytest.raises(UserError, match=f"{best} must hold a checkpoint"):
        formats.read_weights(str(best))


def test_a_step_with_a_path_of_one_checkpoint_is_refused(
    tmp_path, run_dir, google_albert_dir
):
    """Such a path leaves no choice of a step."""
    converted(google_albert_dir, tmp_path / "folder", "hugging_face")
    for path in (
        run_dir / "checkpoints" / "step-00000002",
        run_dir / "best",
        google_albert_dir / "model.ckpt-best",
        google_albert_dir / "model.ckpt-best.index",
        tmp_path / "folder",
    ):
        match = f"checkpoint_step must be omitted .*Received: 4, and {path}"
        with pytest.raises(UserError, match=match):
            formats.read_weights(str(path), 4)


def test_a_folder_named_best_is_not_a_run(tmp_path, google_albert_dir):
    """Even if its parent has a config.json."""
    converted(google_albert_dir, tmp_path / "all" / "best", "hugging_face")
    shutil.copy(tmp_path / "all" / "best" / "config.json", tmp_path / "all")
    found = formats.find_format(str(tmp_path / "all" / "best"))
    assert found == "hugging_face"


def test_a_path_without_a_model_is_refused(tmp_path):
    refused(tmp_path / "none", tmp_path, "none, which does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", tmp_path, "empty, with no files")
    (tmp_path / "text.txt").write_text("text")
    refused(tmp_path / "text.txt", tmp_path, r"Received: .*text\.txt")


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "weights.pt", "tf_model.h5", "last.ckpt"]
)
def test_formats_that_can_run_code_are_refused_by_suffix(tmp_path, name):
    """As a file, and in a folder with a config."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / name).write_bytes(b"\x80\x04.")
    match = rf"cannot run code.*Received: .*{name}.*save_pretrained"
    refused(folder / name, tmp_path, match)
    refused(folder, tmp_path, match)


def test_a_vocabulary_of_another_size_is_refused(tmp_path, google_albert_dir):
    folder = tmp_path / "model"
    shutil.copytree(google_albert_dir, folder)
    google_albert_graph.write(folder / "model.ckpt-best", CONFIG)
    match = r"30000 pieces in 30k-clean\.model, and 11"
    refused(folder, tmp_path, match)
    refused(make_archive(tmp_path / "a.tar", folder), tmp_path, match)


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


def test_truncated_checkpoints_of_a_run_are_skipped(tmp_path, run_dir):
    shutil.copytree(run_dir, tmp_path / "run")
    parent = tmp_path / "run" / "checkpoints"
    data = "variables.data-00000-of-00001"
    os.truncate(parent / "step-00000004" / data, 1000)
    assert formats.read_weights(str(tmp_path / "run")).step == 2
    for directory in parent.iterdir():
        os.truncate(directory / data, 1000)
    refused(
        tmp_path / "run" / "checkpoints",
        tmp_path,
        "must be (intact|hugging_face)",
    )


# --- loading ----------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One model in every format: format -> path."""
    directory = tmp_path_factory.mktemp("models")
    paths = {"run": directory / "run"}
    write_run(paths["run"])
    write_records_files(paths["run"])
    weights = formats.read_weights(str(paths["run"]))
    paths["published"] = directory / "published"
    write_published(weights, paths["published"])
    paths["hugging_face"] = directory / "hugging_face"
    converted(paths["run"], paths["hugging_face"])
    return paths


def values_of(model):
    return {n: v.numpy() for n, v in model_variables(model).items()}


@pytest.mark.parametrize("found", ["run", "published", "hugging_face"])
def test_each_format_gives_the_same_model_and_tokenizer(models, found):
    _, expected, _ = load_run(str(models["run"]))
    model, tokenizer = formats.load(str(models[found]))
    assert model.config == MODEL
    loaded, values = values_of(model), values_of(expected)
    assert set(loaded) == set(values)
    for name, value in values.items():
        np.testing.assert_array_equal(loaded[name], value)
    assert tokenizer.vocab_size == MODEL.vocab_size
    assert tokenizer.do_lower_case


@pytest.mark.parametrize(
    ("found", "settings_file"),
    [
        ("run", "records_metadata.json"),
        ("hugging_face", "tokenizer_config.json"),
    ],
)
def test_a_cased_vocabulary_stays_cased(
    models, found, settings_file, tmp_path, caplog
):
    """But a run that is converted from a folder does not record the case."""
    source = tmp_path / "cased"
    shutil.copytree(models[found], source)
    path = source / settings_file
    settings = json.loads(path.read_text()) | {"do_lower_case": False}
    path.write_text(json.dumps(settings))
    assert not formats.load(str(source)).tokenizer.do_lower_case
    assert "will convert text to lower case" not in caplog.text
    converted(source, tmp_path / "folder", "hugging_face")
    folder = str(tmp_path / "folder")
    assert not formats.load(folder).tokenizer.do_lower_case
    assert "keeps upper case: records" in caplog.text
    converted(folder, tmp_path / "run")
    assert f"{tmp_path / 'run'} will not record" in caplog.text
    assert formats.load(str(tmp_path / "run")).tokenizer.do_lower_case


def test_a_model_without_a_vocabulary_is_refused(models, tmp_path):
    shutil.copytree(models["run"], tmp_path / "run")
    (tmp_path / "run" / "spiece.model").unlink()
    with pytest.raises(UserError, match=r"vocabulary, spiece\.model"):
        formats.load(str(tmp_path / "run"))
