"""Links, paths, flags, commands and generated tables of the documents."""

import ast
import glob
import importlib
import pathlib
import re
import runpy
import shlex
import signal

import pytest
from absl import flags as absl_flags

from albert_tf.config import flags
from albert_tf.errors import RETRY_STATUS, UserError
from albert_tf.io import shipped

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("", "docs/", "data_prep/*/", "models/*/", "tests/testdata/")
    for path in ROOT.glob(f"{folder}*.md")
)
# The log and the changelog name what has been removed.
PRESENT = sorted({*DOCUMENTS} - {"docs/log.md", "CHANGELOG.md"})
PACKAGES = ("albert_tf", "benchmarks", "data_prep", "tpu")
COMMANDS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if re.search(r"^    flags\.run\(", path.read_text(), re.M)
}
# Flags that the text of documents mentions without a command of this project.
OTHER_FLAGS = {"help", "flagfile", "network", "na-prob-file", "na-prob-thresh"}
OTHER_FLAGS |= {"logdir", "soft-delete-duration", "no-deps", "reserved", "spot"}
OTHER_FLAGS |= {"valid-until-duration", "accelerator-type"}
OTHER_FLAGS |= {"metadata", "format"}


def read(document):
    return (ROOT / document).read_text()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", read(document)):
        assert ((ROOT / document).parent / target).exists(), target


def expand(pattern):
    """The names that a pattern with braces stands for, as in a shell."""
    braces = re.search("{(.*?)}", pattern)
    if not braces:
        return [pattern]
    return [
        name
        for choice in braces[1].split(",")
        for name in expand(pattern.replace(braces[0], choice, 1))
    ]


RECIPES = sorted(
    str(path.relative_to(ROOT)) for path in ROOT.glob("configs/**/*.flags")
)


@pytest.mark.parametrize("document", [*PRESENT, *RECIPES])
def test_paths_of_the_repository_exist(document):
    folders = "albert_tf|benchmarks|configs|constraints|data_prep|docs|models"
    for path in re.findall(
        rf"(?<![\w/.-])(?:{folders}|tests|tpu)/[\w./*{{}},-]*[\w*}}]",
        read(document),
    ):
        for name in expand(path):
            assert glob.glob(str(ROOT / name)), path


def test_the_modules_of_the_map_exist():
    for path in re.findall("`([a-z_]+/[a-z_]+)(?:.py)?`", read("WORKSPACE.md")):
        assert any(
            [*ROOT.glob(f"{package}{path}*")]
            for package in ("", "albert_tf/", "data_prep/")
        ), path


def commands_in(text):
    """(program, arguments) of each command of this project in a text.

    Commands are indented. Placeholders (`...`, `$NAME`) are left out.
    """
    lines = "\n".join(re.findall("^    .*$", text, re.M))
    lines = re.sub(r"\\\n", " ", lines)
    for module, rest in re.findall(r"python -m ([\w.]+)(?=\s|$)(.*)", lines):
        if f"{module}.__main__" in COMMANDS:
            module += ".__main__"
        if module not in COMMANDS:
            assert module.split(".")[0] not in PACKAGES, module
            continue
        words = shlex.split(
            re.sub(r"\$\([^)]*\)|->.*", "", rest), comments=True
        )
        yield (
            module,
            [w for w in words if "..." not in w and "=$" not in w],
        )


def config_class_of(module):
    """The class whose settings are the flags of a command."""
    (passed,) = re.findall(
        r"^    flags\.run\(\w+, (.*)\)", COMMANDS[module].read_text(), re.M
    )
    return getattr(importlib.import_module(module), passed)


def parse(config_class, arguments):
    values = absl_flags.FlagValues()
    flags.define(config_class, values)
    words = ["command", *shipped.expand(arguments)]
    assert len(values(words)) == 1, arguments


TEXTS = {name: read(name) for name in PRESENT} | {
    name: ast.get_docstring(ast.parse(path.read_text()), clean=False)
    for name, path in COMMANDS.items()
}


@pytest.mark.parametrize(
    "source", [name for name, text in TEXTS.items() if [*commands_in(text)]]
)
def test_commands_have_flags_that_exist(source, monkeypatch):
    """Also those of recipes that they name, and their types."""
    monkeypatch.chdir(ROOT)
    for program, words in commands_in(TEXTS[source]):
        parse(config_class_of(program), words)


def test_flags_in_the_text_exist():
    known = {*OTHER_FLAGS}
    for module in COMMANDS:
        values = absl_flags.FlagValues()
        flags.define(config_class_of(module), values)
        known |= set(values)
    unknown = {
        (document, name)
        for document in PRESENT
        for name in re.findall(
            r"(?<![\w-])--(?!xla)(\w[\w-]*)",
            re.sub("^    .*$", "", read(document), flags=re.M),
        )
        if name not in known and name.removeprefix("no") not in known
    }
    assert not unknown


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if d.startswith("docs/")]
)
def test_generated_tables_are_fresh(document):
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))["generate"]
    assert generate(read(document)) == read(document), "run make docs"


def test_the_table_of_exit_statuses_has_those_of_the_code():
    from albert_tf.cluster.preemption import PREEMPTED_STATUS

    listed = re.findall(r"^\| (\d+) \|", read("docs/runs.md"), re.M)
    assert {*map(int, listed)} == {
        *(0, UserError.exit_status, RETRY_STATUS),
        *(flags.EXIT_INTERRUPTED, flags.EXIT_CLOSED_PIPE, PREEMPTED_STATUS),
        128 + signal.SIGABRT,
    }


def test_the_table_of_metrics_has_those_that_runs_log():
    from albert_tf.training.progress import TIMING_METRICS

    table = read("docs/runs.md").split("## Metrics")[1].split("\n\n")[1]
    listed = set(re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|$)", table, re.M))
    assert set(TIMING_METRICS) < listed
    code = "".join(path.read_text() for path in ROOT.glob("albert_tf/**/*.py"))
    assert not [name for name in listed if f'"{name}"' not in code]
