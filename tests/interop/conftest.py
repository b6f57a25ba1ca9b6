"""A model that the tests of this package share; no test writes to it."""

import shutil

import pytest

from tests.helpers import google_albert_graph
from tests.helpers.google_albert_graph import GROUPS
from tests.helpers.shared_directory import build_once
from tests.helpers.tiny_albert import VOCABULARY


@pytest.fixture(scope="session")
def google_albert_dir(tmp_path_factory):
    """A directory as in a published archive, with moments and other files."""

    def write(directory):
        directory = directory / "albert_tiny"
        google_albert_graph.write(
            directory / "model.ckpt-best",
            {**GROUPS, "vocab_size": 30000},
            step=900,
            slots=True,
        )
        shutil.copy(VOCABULARY, directory)
        (directory / "30k-clean.vocab").write_text("<pad>\t0\n")
        (directory / "model.ckpt-best.meta").write_bytes(b"a graph")

    return build_once(tmp_path_factory, "interop_model", write) / "albert_tiny"
