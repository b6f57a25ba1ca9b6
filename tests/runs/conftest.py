"""Fixtures of the tests of run directories: a run with a checkpoint."""

import functools

import pytest

from tests.helpers import tiny_run
from tests.helpers.changed_runs import FIRST, SECOND, begin


@pytest.fixture
def run(tiny_records, tmp_path):
    """A run in tmp_path/run: a function that returns its settings.

    Keyword arguments of the function change settings.
    """
    settings = functools.partial(
        tiny_run.make_config,
        tiny_records,
        tmp_path / "run",
        init_checkpoint="published",
    )
    begin(settings())
    return settings


@pytest.fixture
def run_in_phases(tiny_records, tmp_path):
    """Like `run`, but the run reads one shard, and two from step 6 on."""
    settings = functools.partial(
        tiny_run.make_config,
        tiny_records,
        tmp_path / "run",
        input_file=(),
        dataset=(
            f"one={tiny_records}/train/{FIRST}",
            f"two={tiny_records}/train/{SECOND}",
        ),
        data_schedule="0:one,6:one+two",
    )
    begin(settings())
    return settings
