"""The notebooks of docs/ run from top to bottom, here with few steps."""

import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first_model", "fine_tuning"])
def test_a_notebook_runs_and_ends_in_a_picture(name, tmp_path, monkeypatch):
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    book = nbformat.read(ROOT / "docs" / f"{name}.ipynb", 4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code)
    # Programs of the training that are not fused compile sooner.
    for old, new in (
        (r"^steps = \d+$", "steps = 8"),
        ("^    steps_per_loop", "    jit_compile=False, steps_per_loop"),
    ):
        (cell,) = (c for c in code if re.search(old, c.source, re.M))
        cell.source = re.sub(old, new, cell.source, flags=re.M)
    nbclient.NotebookClient(
        book,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    assert "image/png" in code[-1].outputs[-1].data
    tables = [
        output.data.get("text/html", "")
        for cell in code
        for output in cell.outputs
        if "data" in output
    ]
    assert any("<td>8</td>" in table for table in tables)
