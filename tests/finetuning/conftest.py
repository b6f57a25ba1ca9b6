"""Fixtures of the tests of fine-tuning."""

import json
import pathlib

import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.finetuning.examples import read_examples
from albert_tf.records.tokenization import Tokenizer

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"
EXCERPTS = TESTDATA / "finetuning"


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer(str(TESTDATA / "30k-clean.model"))


@pytest.fixture(scope="session")
def squad():
    """Real questions of SQuAD 2.0: 55 with and 59 without answer."""
    path = str(EXCERPTS / "squad-v2.0-excerpt.json")
    return read_examples(TaskConfig(task="squad_v2", dev_file=path), "dev")


@pytest.fixture(scope="session")
def tiny_tasks(tiny_records, tmp_path_factory):
    """A model and examples of each kind; see `tiny_task`. Do not change it."""
    from tests.helpers import tiny_task

    directory = tiny_task.write_examples(tmp_path_factory.mktemp("tasks"))
    tiny_task.write_model(directory / "model", tiny_records)
    return directory


@pytest.fixture
def printed(capsys):
    """Reads the JSON objects that the command has printed since the last
    call."""

    def read():
        return list(map(json.loads, capsys.readouterr().out.splitlines()))

    return read
