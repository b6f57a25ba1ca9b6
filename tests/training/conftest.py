"""Fixture: a finished run."""

import pytest

from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.shared_directory import build_once


@pytest.fixture(scope="session")
def source(tiny_records, tmp_path_factory):
    """A finished run of 12 steps, which all test workers share.

    Tests must not change it.
    """

    def train_source(directory):
        train(tiny_run.make_config(tiny_records, directory / "run"))

    return build_once(tmp_path_factory, "source", train_source) / "run"
