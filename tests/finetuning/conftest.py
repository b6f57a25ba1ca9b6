"""What the tests of fine-tuning share; no test here imports TensorFlow."""

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
