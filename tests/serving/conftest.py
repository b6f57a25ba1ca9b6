"""Exports that the tests of this package share; no test writes to them."""

import functools
from typing import NamedTuple

import pytest
import tensorflow as tf

from albert_tf.config import ExportConfig
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.serving.export import export
from albert_tf.serving.predict import LocalClient
from data_prep.config import TokenizerConfig
from data_prep.train_tokenizer import main as train_tokenizer
from tests.helpers.exportable_run import write_records_files, write_run
from tests.helpers.exportable_task import write_task_run


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A run with checkpoints of steps 20 and 40, a vocabulary and metadata."""
    directory = tmp_path_factory.mktemp("run")
    write_run(directory)
    write_records_files(directory)
    return directory


@pytest.fixture(scope="session")
def export_dir(run_dir, tmp_path_factory):
    """An export of its newest step, with all signatures."""
    directory = tmp_path_factory.mktemp("export") / "saved_model"
    export(
        ExportConfig(run_dir=str(run_dir), export_dir=str(directory), top_k=4)
    )
    return directory


@pytest.fixture(scope="session")
def export_without_text(run_dir, tmp_path_factory):
    """An export with --notext_signatures."""
    directory = tmp_path_factory.mktemp("export") / "without_text"
    export(
        ExportConfig(
            run_dir=str(run_dir),
            export_dir=str(directory),
            text_signatures=False,
        )
    )
    return directory


@pytest.fixture(scope="session")
def nsp_export_dir(tmp_path_factory):
    """An export of a bfloat16 NSP run whose records have no metadata."""
    return _export_objective(tmp_path_factory.mktemp("nsp"), "nsp")


@pytest.fixture(scope="session")
def none_export_dir(tmp_path_factory):
    """As `nsp_export_dir`, without a sentence objective."""
    return _export_objective(tmp_path_factory.mktemp("none"), "none")


def _export_objective(directory, objective):
    run_dir = directory / "run"
    write_run(run_dir, objective, steps=(20,), precision="mixed_bfloat16")
    write_records_files(run_dir)
    (run_dir / "records_metadata.json").unlink()
    export(
        ExportConfig(
            run_dir=str(run_dir), export_dir=str(directory / "saved_model")
        )
    )
    return directory / "saved_model"


@pytest.fixture(scope="session")
def served(export_dir):
    """The export, loaded."""
    return tf.saved_model.load(str(export_dir))


@pytest.fixture(scope="session")
def nsp_served(nsp_export_dir):
    """The NSP export, loaded."""
    return tf.saved_model.load(str(nsp_export_dir))


@pytest.fixture(scope="session")
def none_served(none_export_dir):
    """The export without a sentence head, loaded."""
    return tf.saved_model.load(str(none_export_dir))


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
    client: LocalClient


@pytest.fixture(scope="session")
def exported_task(tmp_path_factory):
    """A function: the `ExportedTask` of a name in `exportable_task.HEADS`."""

    @functools.cache
    def of(name):
        directory = tmp_path_factory.mktemp(name)
        weights = write_task_run(name, directory / "run")
        saved_model = str(directory / "export")
        export(
            ExportConfig(run_dir=str(directory / "run"), export_dir=saved_model)
        )
        return ExportedTask(weights, saved_model, LocalClient(saved_model))

    return of
