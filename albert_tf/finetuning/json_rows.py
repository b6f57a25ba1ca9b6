"""Reads rows from the JSON files of SQuAD and RACE: one for each question."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from albert_tf.errors import UserError
from albert_tf.finetuning.example_types import ExampleSet
from albert_tf.finetuning.tables import Row, read_text
from albert_tf.io import files


def read_squad(examples: ExampleSet) -> list[Row]:
    """Reads a file of SQuAD 1.1 or 2.0, or your own file in their format.

    Returns:
        Rows with `is_impossible`, False for files of SQuAD 1.1.

    Raises:
        UserError: If the file has another format; or for squad_v2, if it is a
            file of SQuAD 1.1.
    """
    path = examples.source
    with _format_of(path, "in the format of SQuAD"):
        rows = [
            Row(str(entry["id"]), {"context": context, **entry})
            for article in json.loads(read_text(path))["data"]
            for paragraph in article["paragraphs"]
            for context in [paragraph["context"]]
            for entry in paragraph["qas"]
        ]
    for name, values, _ in rows:
        if "answers" not in values or "is_impossible" in values:
            continue
        if examples.task.name == "squad_v2":
            raise UserError(
                f"questions of {path} must have is_impossible",
                received=f"none in {name}",
                remedy="Use --task=squad_v1 for files of SQuAD 1.1.",
            )
        values["is_impossible"] = False
    return rows


def read_race(directories: list[str]) -> list[Row]:
    """Reads all files `*.txt` of directories, with a passage in each.

    Raises:
        UserError: If a directory has no files, or a file another format.
    """
    rows = []
    for directory in directories:
        paths = files.list_files(directory, "*.txt")
        if not paths:
            raise UserError(
                f"{directory} must have files *.txt of RACE",
                received="none",
                remedy="Name a directory of RACE: it contains train, dev and "
                "test; these contain middle and high, which contain the files.",
            )
        for path in paths:
            # A passage per line; the official files have one line each.
            for line in filter(str.strip, read_text(path).split("\n")):
                rows += read_passage(path, line)
    return rows


def read_passage(path: str, content: str | Mapping[str, Any]) -> list[Row]:
    """Reads the questions about a passage of RACE.

    Args:
        path: Where the passage comes from.
        content: The passage, as JSON or as its values.

    Raises:
        UserError: If the passage has another format.
    """
    with _format_of(path, "of RACE"):
        passage = json.loads(content) if isinstance(content, str) else content
        names = ("questions", "options", "answers")
        lists = {name: passage[name] for name in names if name in passage}
        rows = [
            dict(zip(lists, values, strict=True))
            | {"id": f"{passage['id']}-{i}", "article": passage["article"]}
            for i, values in enumerate(zip(*lists.values(), strict=True))
        ]
        return [Row(row["id"], row) for row in rows]


@contextlib.contextmanager
def _format_of(path: str, name: str) -> Iterator[None]:
    """Turns errors in parsing into errors that name the format."""
    try:
        yield
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} must be a JSON file {name}",
            received=f"no {error}"
            if isinstance(error, KeyError)
            else f"{type(error).__name__}: {error}",
        ) from None
