"""The examples in docstrings, run as a reader would run them."""

import doctest
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PATHS = [
    path
    for package in ("albert_tf", "data_prep", "tpu")
    for path in sorted((ROOT / package).rglob("*.py"))
]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in PATHS
    if re.search(r">>> (?!.*\+SKIP)", path.read_text())
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name, tmp_path, monkeypatch):
    module = importlib.import_module(name.removesuffix(".__init__"))
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(
        module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert tried and not failed
    assert not list(tmp_path.iterdir())
