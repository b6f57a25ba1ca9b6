"""Exports that the tests of this package share; no test writes to them."""

import functools
from typing import NamedTuple

import pytest
import tensorflow as tf

from albert_tf.config import ExportConfig
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.serving.export import export
from albert_tf.serving.predict import ExportedModel
from data_prep.config import TokenizerConfig
from data_prep.train_tokenizer import main as train_tokenizer
from tests.helpers.exports import write_records_files, write_run, write_task_run


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A run with checkpoints of steps 20 and 40, a vocabulary and metadata."""
    directory = tmp_path_factory.mktemp("run")
    write_run(directory)
    write_records_files(directory)
    return directory


@pytest.fixture(scope="session")
def exported(run_dir, tmp_path_factory):
    """A function: the export of a pretrained run.

    "sop" has all signatures and `top_k=4`. "nsp" is of a bfloat16 run whose
    records have no metadata.
    """

    @functools.cache
    def of(name):
        directory = tmp_path_factory.mktemp(name)
        source, settings = run_dir, {"top_k": 4}
        if name == "nsp":
            source, settings = directory / "run", {}
            write_run(source, name, steps=(20,), precision="mixed_bfloat16")
            write_records_files(source)
            (source / "records_metadata.json").unlink()
        saved_model = directory / "saved_model"
        settings |= {"run_dir": str(source), "export_dir": str(saved_model)}
        export(ExportConfig(**settings))
        return saved_model

    return of


@pytest.fixture(scope="session")
def export_dir(exported):
    """The export of an SOP run."""
    return exported("sop")


@pytest.fixture(scope="session")
def served(export_dir):
    """The export, loaded."""
    return tf.saved_model.load(str(export_dir))


@pytest.fixture(scope="session")
def self_contained(tmp_path_factory):
    """A lower-cased vocabulary with byte pieces."""
    prefix = tmp_path_factory.mktemp("vocabulary") / "spm"
    train_tokenizer(
        TokenizerConfig(
            input_file=("tests/testdata/multilingual-*.txt",),
            model_prefix=str(prefix),
            vocab_size=1500,
            vocabulary_kind="self_contained",
            byte_fallback=True,
            character_coverage=0.98,
        )
    )
    return f"{prefix}.model"


class ExportedTask(NamedTuple):
    """A fine-tuned model, and its export, loaded."""

    weights: ModelWeights
    saved_model_dir: str
    model: ExportedModel


@pytest.fixture(scope="session")
def exported_task(tmp_path_factory):
    """A function: the `ExportedTask` of a name in `exports.HEADS`."""

    @functools.cache
    def of(name):
        directory = tmp_path_factory.mktemp(name)
        weights = write_task_run(name, directory / "run")
        saved_model = str(directory / "export")
        export(
            ExportConfig(run_dir=str(directory / "run"), export_dir=saved_model)
        )
        return ExportedTask(weights, saved_model, ExportedModel(saved_model))

    return of
