"""The examples in docstrings, run as a reader would run them."""

import ast
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

# Classes without an example, by reason.
PART_OF_A_RUN = "albert_tf.train and its example use it on real records"
PART_OF_FINETUNING = "run_finetuning uses it on the files of a task"
INSIDE_OF_INSPECTION = "a value that only modules of data_prep.inspection use"
WITHOUT_EXAMPLE = {
    "Evaluator": PART_OF_A_RUN,
    "Preflight": PART_OF_A_RUN,
    "Profiler": PART_OF_A_RUN,
    "Recovery": PART_OF_A_RUN,
    "Run": PART_OF_A_RUN,
    "Saver": PART_OF_A_RUN,
    "StorageChecks": PART_OF_A_RUN,
    "TrainState": PART_OF_A_RUN,
    "Trainer": PART_OF_A_RUN,
    "WarmStart": PART_OF_A_RUN,
    "BaseModel": PART_OF_FINETUNING,
    "DocumentWindows": "WindowMaker's example makes it",
    "Finetuning": PART_OF_FINETUNING,
    "Predictor": PART_OF_FINETUNING,
    "Scorer": PART_OF_FINETUNING,
    "Sweep": "starts processes; albert_tf.sweep uses it",
    "RecordsMetadata": "read_metadata has an example",
    "GrpcClient": "needs a server; RestClient has an example",
    "SliceContext": "exists only inside of a program of tpu.replica_program",
    "TextFile": "needs a file; data_prep.text.corpus reads it",
    "CheckedExamples": INSIDE_OF_INSPECTION,
    "RecordRules": INSIDE_OF_INSPECTION,
    "data_prep.inspection.record_set.RecordSet": INSIDE_OF_INSPECTION,
    "Statistics": INSIDE_OF_INSPECTION,
}


def public_classes():
    """Yields name and tree of all public classes that are not interfaces."""
    for path in PATHS:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                bases = {ast.unparse(base) for base in node.bases}
                if not bases & {"Protocol", "Exception"}:
                    parts = path.relative_to(ROOT).with_suffix("").parts
                    yield ".".join([*parts, node.name]), node


def has_behaviour(node):
    """Whether a class has methods of its own, more than fields."""
    return any(
        isinstance(child, ast.FunctionDef)
        and (child.name[0] != "_" or child.name == "__init__")
        for child in node.body
    )


def test_public_classes_with_behaviour_have_an_example():
    """`WITHOUT_EXAMPLE` lists the only exceptions."""
    missing = {
        name
        for name, node in public_classes()
        if has_behaviour(node)
        and "\nExample:\n" not in (ast.get_docstring(node) or "")
    }
    exceptions = {
        name
        for name in missing
        if name in WITHOUT_EXAMPLE or name.split(".")[-1] in WITHOUT_EXAMPLE
    }
    assert missing == exceptions
    assert len(exceptions) == len(WITHOUT_EXAMPLE)


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name, tmp_path, monkeypatch):
    module = importlib.import_module(name.removesuffix(".__init__"))
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(
        module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert tried and not failed
    assert not list(tmp_path.iterdir())
