"""Models of every format are found, read and loaded."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.interop import formats
from albert_tf.runs.checkpoints import model_variables
from albert_tf.runs.directory import load_run
from tests.helpers.conversion import change_json, converted, write_published


def test_any_checkpoint_of_a_run_can_be_read(tmp_path, run_dir):
    source, run_dir = run_dir, tmp_path / "run"
    shutil.copytree(source, run_dir)

    def read(part=""):
        return formats.read_weights(f"{run_dir}{part}")

    for best in 2, 0:
        name = f"step-{best:08d}"
        shutil.rmtree(run_dir / "best")
        shutil.copytree(run_dir / "checkpoints" / name, run_dir / "best" / name)
        assert read("/best").step == best
        assert read(f"/best/{name}/").step == best
    assert read("/checkpoints").step == 4
    assert read("/checkpoints/step-00000002").step == 2
    path = "albert/pooler/kernel"
    first = read("/checkpoints/step-00000000")
    assert first.step == 0
    assert not np.array_equal(first.values[path], read().values[path])
    for step in (2, 4):
        reader = tf.train.load_checkpoint(
            str(run_dir / "checkpoints" / f"step-{step:08d}" / "variables")
        )
        np.testing.assert_array_equal(
            read(f"/checkpoints/step-{step:08d}").values[path],
            reader.get_tensor(path),
        )


def test_a_folder_named_best_is_not_a_run(tmp_path, google_albert_dir):
    """Even if its parent has a config.json."""
    best = tmp_path / "all" / "best"
    converted(google_albert_dir, best, "hugging_face")
    shutil.copy(best / "config.json", tmp_path / "all")
    assert formats.find_format(str(best)) == "hugging_face"


# --- loading ----------------------------------------------------------------


@pytest.fixture(scope="module")
def models(run_dir, tmp_path_factory):
    """One model in every format: format -> path."""
    directory = tmp_path_factory.mktemp("models")
    write_published(formats.read_weights(str(run_dir)), directory / "published")
    converted(run_dir, directory / "hugging_face")
    return {
        "run": run_dir,
        "published": directory / "published",
        "hugging_face": directory / "hugging_face",
    }


@pytest.mark.parametrize("found", ["run", "published", "hugging_face"])
def test_each_format_gives_the_same_model_and_tokenizer(models, found):
    _, expected, _ = load_run(str(models["run"]))
    model, tokenizer = formats.load(str(models[found]))
    loaded, values = model_variables(model), model_variables(expected)
    assert set(loaded) == set(values)
    for name, value in values.items():
        np.testing.assert_array_equal(loaded[name], value)
    assert tokenizer.vocab_size == model.config.vocab_size
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
    change_json(source / settings_file, do_lower_case=False)
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
