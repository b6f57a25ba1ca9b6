"""Fixtures of the tests of builds: a text and its records."""

import collections
import gzip
import pathlib
import shutil
import unittest.mock

import pytest

from albert_tf.errors import UserError
from data_prep import inspect_records, text
from data_prep.config import InspectConfig
from tests.helpers import inspected_records
from tests.helpers.small_builds import build

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"


@pytest.fixture(scope="session")
def documents():
    """The first documents of the sample corpus, 0.4 MB."""
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        return file.read(400_000).split("\n\n")[:-1]


@pytest.fixture(scope="session")
def text_file(documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def built(text_file, tmp_path_factory):
    return build(tmp_path_factory.mktemp("records") / "out", text_file)


@pytest.fixture(scope="session")
def demo_records(tmp_path_factory):
    """Static records, for the inspector; see `inspected_records`."""
    return inspected_records.build(tmp_path_factory.mktemp("demo") / "records")


@pytest.fixture
def records(demo_records, tmp_path):
    """A copy of `demo_records` that a test can damage."""
    return pathlib.Path(shutil.copytree(demo_records, tmp_path / "train"))


@pytest.fixture
def inspect(capsys):
    """A function that returns the exit status and the printed text."""

    def run(*paths, **settings):
        config = InspectConfig(
            input_file=tuple(map(str, paths)),
            **{"num_examples": 0, **settings},
        )
        status = inspect_records.main(config)
        return status, capsys.readouterr().out

    return run


def read_text(config):
    """Checks text and reads it: what the check returns, the documents, and
    counts of what was skipped.

    The check must refuse unreadable input, and the progress must end at the
    stored bytes.
    """
    checked = text.check_inputs(text.find_inputs(config), config)
    skipped = collections.Counter()
    with unittest.mock.patch.object(text, "show_progress") as show_progress:
        try:
            documents = list(checked.read_documents("reading", skipped))
        except UserError as error:
            raise AssertionError("the check has not found it") from error
    update = show_progress().__enter__().update
    reported = sum(call.args[0] for call in update.call_args_list)
    assert reported == checked.num_bytes
    return checked, documents, skipped
