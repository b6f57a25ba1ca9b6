"""Small modules: one idea each."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
MOST_LINES = {"albert_tf": 400, "data_prep": 400, "tpu": 400, "tests": 500}


def test_a_long_module_says_why():
    """In its docstring, as `modeling/layers.py` does."""
    unexplained = []
    for package, limit in MOST_LINES.items():
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text()
            reason = f"longer than {limit}"
            described = ast.get_docstring(ast.parse(text)) or ""
            if text.count("\n") > limit and reason not in " ".join(
                described.split()
            ):
                unexplained.append(str(file.relative_to(ROOT)))
    assert not unexplained
