"""The vocabulary of google-research/albert, which the tests here share."""

import pathlib

import pytest

from albert_tf.records.tokenization import Tokenizer

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"


@pytest.fixture(scope="session")
def vocabulary_file():
    return str(TESTDATA / "30k-clean.model")


@pytest.fixture(scope="session")
def tokenizer(vocabulary_file):
    return Tokenizer(vocabulary_file)
