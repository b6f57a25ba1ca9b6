"""Fixtures of the tests of builds: a text, and the records of it."""

import gzip

import pytest

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
