"""Fixtures of the tests of run directories: a run with a checkpoint."""

import functools

import pytest

from tests.helpers import tiny_run
from tests.helpers.changed_runs import FIRST, SECOND, begin


@pytest.fixture
def run(tiny_records, tmp_path):
    """A run in tmp_path/run; its settings, with changes by setting."""
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
    """A run on one shard, and from step 6 on two; like `run`."""
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
