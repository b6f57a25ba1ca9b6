"""Exports that the tests of this package share; no test writes to them.

The first worker of pytest-xdist that needs an export makes it for all.
"""

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
from tests.helpers.exports import (
    task_weights,
    write_records_files,
    write_run,
    write_task_run,
)
from tests.helpers.shared_directory import build_once


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A run with checkpoints of steps 20 and 40, a vocabulary and metadata."""

    def write(directory):
        write_run(directory)
        write_records_files(directory)

    return build_once(tmp_path_factory, "pretrained_run", write)


@pytest.fixture(scope="session")
def exported(run_dir, tmp_path_factory):
    """A function: the export of a pretrained run.

    "sop" has all signatures and `top_k=4`. "nsp" is of a bfloat16 run whose
    records have no metadata.
    """

    @functools.cache
    def of(name):
        def build(directory):
            source, settings = run_dir, {"top_k": 4}
            if name == "nsp":
                source, settings = directory / "run", {}
                write_run(source, name, steps=(20,), precision="mixed_bfloat16")
                write_records_files(source)
                (source / "records_metadata.json").unlink()
            settings["export_dir"] = str(directory / "saved_model")
            export(ExportConfig(run_dir=str(source), **settings))

        directory = build_once(tmp_path_factory, f"exported_{name}", build)
        return directory / "saved_model"

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

    def build(directory):
        train_tokenizer(
            TokenizerConfig(
                input_file=("tests/testdata/multilingual-*.txt",),
                model_prefix=str(directory / "spm"),
                vocab_size=1500,
                vocabulary_kind="self_contained",
                byte_fallback=True,
                character_coverage=0.98,
            )
        )

    directory = build_once(tmp_path_factory, "self_contained", build)
    return str(directory / "spm.model")


class ExportedTask(NamedTuple):
    """A fine-tuned model, and its export, loaded."""

    weights: ModelWeights
    saved_model_dir: str
    model: ExportedModel


@pytest.fixture(scope="session")
def exported_task(tmp_path_factory):
    """A function: the `ExportedTask` of a name in `HEADS`."""

    @functools.cache
    def of(name):
        def build(directory):
            write_task_run(name, directory / "run")
            where = {"run_dir": f"{directory}/run"}
            export(ExportConfig(**where, export_dir=f"{directory}/export"))

        directory = build_once(tmp_path_factory, f"exported_{name}", build)
        saved_model, weights = f"{directory}/export", task_weights(name)
        return ExportedTask(weights, saved_model, ExportedModel(saved_model))

    return of
