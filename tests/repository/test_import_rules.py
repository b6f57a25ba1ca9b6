"""Imports point one way, as WORKSPACE.md states."""

import ast
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODULES = sorted(
    path
    for package in ("albert_tf", "data_prep")
    for path in (ROOT / package).rglob("*.py")
)


def read_rule():
    """Package name -> the packages it may import, from WORKSPACE.md.

    `a < {b, c} < d` lets b and c import a, and d import a, b and c. A line
    `x uses a, b only` lists the packages of x one by one. Modules directly in
    albert_tf/ are commands, and may import everything.
    """
    text = (ROOT / "WORKSPACE.md").read_text()
    (block,) = re.findall(r"^    errors <.*?(?=\n\n)", text, re.M | re.S)
    order, *exceptions = block.splitlines()
    allowed, earlier = {}, set()
    for tier in order.split("<"):
        names = set(re.findall(r"\w+", tier))
        allowed |= {name: earlier | {name} for name in names}
        earlier |= names
    for line in exceptions:
        name, uses = re.fullmatch(r"    (\w+) uses (.*) only", line).groups()
        allowed[name] = {name, *uses.split(", "), "errors", "io", "config"}
    return allowed


ALLOWED = read_rule()
WITHOUT_TENSORFLOW = {"errors", "io", "config", "records"}


def imported_by(path):
    """Dotted names that a module imports, inside functions, too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def imported_packages(path):
    """`albert_tf.modeling.layers.Block` -> `modeling`."""
    parts = (name.split(".") for name in imported_by(path))
    return {p[1] for p in parts if p[0] == "albert_tf" and len(p) > 1}


def package_of(path):
    """The package of a module of albert_tf; `commands` directly in it."""
    name = path.relative_to(ROOT / "albert_tf").parts[0].removesuffix(".py")
    is_package = (ROOT / "albert_tf" / name).is_dir()
    return name if is_package or name == "errors" else "commands"


def in_albert_tf(path):
    return path.is_relative_to(ROOT / "albert_tf")


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_only_earlier_ones(package):
    """Every package that WORKSPACE.md names must have modules."""
    paths = [
        p for p in filter(in_albert_tf, MODULES) if package_of(p) == package
    ]
    assert paths
    for path in paths:
        if package == "commands":
            continue
        forbidden = imported_packages(path) - ALLOWED[package]
        assert not forbidden, f"{path.relative_to(ROOT)} imports {forbidden}"


def test_every_package_has_a_place_in_the_rule():
    found = {package_of(path) for path in filter(in_albert_tf, MODULES)}
    assert found <= set(ALLOWED)


def test_importing_packages_for_data_does_not_load_tensorflow():
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in filter(in_albert_tf, MODULES)
        if package_of(path) in WITHOUT_TENSORFLOW and path.stem != "__init__"
    ]
    code = (
        f"import sys, {', '.join(names)}; sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_albert_tf_imports_no_other_top_level_package():
    for path in filter(in_albert_tf, MODULES):
        roots = {name.split(".")[0] for name in imported_by(path)}
        assert not roots & {"data_prep", "tpu", "tests", "benchmarks"}, path


def test_data_prep_uses_only_packages_without_tensorflow():
    for path in MODULES:
        if not in_albert_tf(path):
            assert imported_packages(path) <= WITHOUT_TENSORFLOW, path


def test_no_modules_import_each_other_in_a_circle():
    graph = {}
    for path in MODULES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        graph[name.removesuffix(".__init__")] = imported_by(path)
    graphlib.TopologicalSorter(graph).prepare()
