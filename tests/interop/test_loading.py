import json
import shutil

import numpy as np
import pytest

from albert_tf.config import ConvertConfig
from albert_tf.errors import UserError
from albert_tf.interop.convert import convert
from albert_tf.interop.loading import load
from albert_tf.runs.checkpoints import model_variables
from albert_tf.runs.trained_model import load_run
from tests.helpers.exportable_run import (
    MODEL,
    write_records_files,
    write_run,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One model in every format: format -> path."""
    directory = tmp_path_factory.mktemp("models")
    paths = {"run": directory / "run"}
    write_run(paths["run"])
    write_records_files(paths["run"])
    for name in ("published", "hugging_face"):
        paths[name] = directory / name
        convert(
            ConvertConfig(
                from_=str(paths["run"]), to=str(paths[name]), to_format=name
            )
        )
    return paths


def values_of(model):
    return {n: v.numpy() for n, v in model_variables(model).items()}


@pytest.mark.parametrize("found", ["run", "published", "hugging_face"])
def test_each_format_gives_the_same_model_and_tokenizer(models, found):
    _, expected, _ = load_run(str(models["run"]))
    model, tokenizer = load(str(models[found]))
    assert model.config == MODEL
    loaded, values = values_of(model), values_of(expected)
    assert set(loaded) == set(values)
    for name, value in values.items():
        np.testing.assert_array_equal(loaded[name], value)
    assert tokenizer.vocab_size == MODEL.vocab_size
    assert tokenizer.do_lower_case


def test_a_step_is_chosen_by_its_number_or_its_path(models):
    run_dir = str(models["run"])
    _, expected, _ = load_run(run_dir, 20)
    newest, _ = load(run_dir)
    for model, _ in (
        load(run_dir, checkpoint_step=20),
        load(f"{run_dir}/checkpoints/step-00000020"),
    ):
        bias = model.masked_lm.output_bias.numpy()
        np.testing.assert_array_equal(
            bias, expected.masked_lm.output_bias.numpy()
        )
        assert np.abs(bias - newest.masked_lm.output_bias.numpy()).max() > 0.1


@pytest.mark.parametrize(
    ("found", "settings_file"),
    [
        ("run", "records_metadata.json"),
        ("hugging_face", "tokenizer_config.json"),
    ],
)
def test_a_cased_vocabulary_stays_cased(models, found, settings_file, tmp_path):
    shutil.copytree(models[found], tmp_path / "cased")
    path = tmp_path / "cased" / settings_file
    settings = json.loads(path.read_text()) | {"do_lower_case": False}
    path.write_text(json.dumps(settings))
    assert not load(str(tmp_path / "cased")).tokenizer.do_lower_case


def test_only_a_conversion_warns_that_it_loses_the_case(
    models, tmp_path, caplog
):
    folder, run = tmp_path / "folder", tmp_path / "run"
    shutil.copytree(models["hugging_face"], folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"do_lower_case": False}
    path.write_text(json.dumps(settings))

    load(str(folder))
    assert "lower case" not in caplog.text
    convert(ConvertConfig(from_=str(folder), to=str(run)))
    assert f"{run} will not record" in caplog.text
    assert load(str(run)).tokenizer.do_lower_case


def test_a_model_without_a_vocabulary_is_refused(models, tmp_path):
    shutil.copytree(models["run"], tmp_path / "run")
    (tmp_path / "run" / "spiece.model").unlink()
    with pytest.raises(UserError, match=r"vocabulary, spiece\.model"):
        load(str(tmp_path / "run"))
