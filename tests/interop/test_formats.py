"""Models of every format are found, read and loaded."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import library
from albert_tf.errors import UserError
from albert_tf.interop import formats
from albert_tf.runs.checkpoints import model_variables
from albert_tf.runs.directory import load_run
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.conversion import change_json, converted, write_published


def test_any_checkpoint_of_a_run_can_be_read(tmp_path, source):
    run_dir = tmp_path / "run"
    shutil.copytree(source, run_dir)

    def read(part=""):
        return formats.read_weights(f"{run_dir}{part}")

    for best in 4, 0:
        name = f"step-{best:08d}"
        shutil.rmtree(run_dir / "best")
        shutil.copytree(run_dir / "checkpoints" / name, run_dir / "best" / name)
        assert read("/best").step == best
        assert read(f"/best/{name}/").step == best
    assert read("/checkpoints").step == 12
    assert read("/checkpoints/step-00000004").step == 4
    path = "albert/pooler/kernel"
    first = read("/checkpoints/step-00000000")
    assert first.step == 0
    assert not np.array_equal(first.values[path], read().values[path])
    for step in (4, 12):
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adapter_config.json", "an adapter of PEFT.*merge_and_unload"),
        ("adapter_model.safetensors", "an adapter of PEFT"),
        ("model-00001-of-00002.safetensors", "several files.*max_shard_size"),
    ],
)
def test_a_folder_without_all_weights_is_refused(name, message, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=message):
        formats.read_weights(str(tmp_path))


# Modules of sentence-transformers after the encoder, settings of the pooling,
# and what is refused; "" if nothing is.
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
MODULES = [
    (["Pooling"], MEAN | {"include_prompt": True}, ""),
    (["Pooling"], {"pooling_mode": "mean"}, ""),
    (["Pooling"], MEAN | {"pooling_mode_max_tokens": True}, "max_tokens=True"),
    (["Pooling"], {"pooling_mode_cls_token": True}, "cls_token=True"),
    (["Pooling"], {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
    (["Pooling"], {"pooling_mode": "lasttoken"}, "lasttoken"),
    (["Pooling"], {"pooling_mode": ["mean", "max"]}, "mean.*max"),
    (["Pooling"], MEAN | {"include_prompt": False}, "mean"),
    (["Pooling", "Dense"], MEAN, "Received: Dense"),
    (["Pooling", "Normalize"], MEAN, "Received: Normalize"),
]


@pytest.mark.parametrize("case", MODULES, ids=range(len(MODULES)))
def test_only_means_of_sentence_transformers_are_read(
    case, tmp_path, google_albert_dir
):
    modules, pooling, message = case
    folder = tmp_path / "hf"
    converted(google_albert_dir, folder, "hugging_face")
    described = [
        {"type": f"sentence_transformers.models.{name}", "path": name}
        for name in ("Transformer", *modules)
    ]
    (folder / "modules.json").write_text(json.dumps(described))
    (folder / "Pooling").mkdir()
    (folder / "Pooling" / "config.json").write_text(json.dumps(pooling))
    if not message:
        formats.read_weights(str(folder))
        return
    with pytest.raises(UserError, match=f"mean of their tokens.*{message}"):
        formats.read_weights(str(folder))


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_the_length_of_the_training_travels_with_the_model(
    tiny_records, tmp_path, caplog
):
    """Through folders and runs; later positions were not trained."""
    model = dataclasses.replace(tiny_run.MODEL, max_position_embeddings=50)
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", num_train_steps=2
    )
    assert train(dataclasses.replace(config, model=model)) == 0
    paths = [tmp_path / name for name in ("run", "hf", "back", "hf_again")]
    for source, target in itertools.pairwise(paths):
        converted(source, target)
    texts = ["a", "a " * 40, "a b " * 60]
    found = []
    for path in paths:
        caplog.clear()
        loaded = formats.load(str(path))
        assert loaded.model.max_seq_length == 32
        found.append(library.embed(*loaded, texts))
        assert "2 of 3 texts have more than 32 tokens" in caplog.text
        np.testing.assert_array_equal(found[-1], found[0])
    cut = library.embed(*loaded, ["a " * 30])
    np.testing.assert_array_equal(found[0][1:2], cut)
    for path in (paths[1], paths[3]):
        stored = json.loads((path / "tokenizer_config.json").read_text())
        assert stored["model_max_length"] == 32


# --- loading ----------------------------------------------------------------


@pytest.fixture(scope="module")
def models(source, tmp_path_factory):
    """One model in every format: format -> path."""
    directory = tmp_path_factory.mktemp("models")
    write_published(formats.read_weights(str(source)), directory / "published")
    converted(source, directory / "hugging_face")
    return {
        "run": source,
        "google_albert": directory / "published",
        "hugging_face": directory / "hugging_face",
    }


@pytest.mark.parametrize("found", ["run", "google_albert", "hugging_face"])
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
    """Also in a run that is converted from a folder."""
    source = tmp_path / "cased"
    shutil.copytree(models[found], source)
    change_json(source / settings_file, do_lower_case=False)
    assert not formats.load(str(source)).tokenizer.do_lower_case
    converted(source, tmp_path / "folder", "hugging_face")
    folder = str(tmp_path / "folder")
    assert not formats.load(folder).tokenizer.do_lower_case
    assert "keeps upper case: records" in caplog.text
    converted(folder, tmp_path / "run")
    assert not formats.load(str(tmp_path / "run")).tokenizer.do_lower_case


def test_a_model_without_a_vocabulary_is_refused(models, tmp_path):
    shutil.copytree(models["run"], tmp_path / "run")
    (tmp_path / "run" / "spiece.model").unlink()
    with pytest.raises(UserError, match=r"vocabulary, spiece\.model"):
        formats.load(str(tmp_path / "run"))
