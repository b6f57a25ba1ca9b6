"""What the package contains besides code: recipes, architectures, models.

They are found by path, e.g. configs/hardware/v5e_8.flags, or by name, e.g.
base_v2_125k, from any working directory. A clone has them in its directories
`configs/` and `models/`, an installed package in `albert_tf/`. Flag files are
read here, because they may name each other.
"""

import json
import os
import pathlib
from collections.abc import Iterable

from albert_tf.errors import UserError, did_you_mean

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
ROOT = _PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent

# Where a name is looked for.
RECIPE = ("configs/*/{}.flags", "configs/*/include/{}.flags")
ARCHITECTURE = ("configs/models/{}.json",)
MODEL = ("models/{}",)
VOCABULARY = ("models/{}/spiece.model",)
# Versions with which the package is tested.
CONSTRAINTS = ROOT / "constraints" / "tensorflow-2.21.txt"


def find(path: str, places: tuple[str, ...], directory: str = "") -> str:
    """The path of an input that the package may contain.

    Args:
        path: A path or a name. A file of the user comes before one of the
            package.
        places: Where to look for a name: one of the constants above.
        directory: A directory that comes before the working directory.

    Returns:
        A path that exists, or `path`.

    Example:
        >>> find("albert_mini_en", VOCABULARY).endswith("_en/spiece.model")
        True
        >>> find("runs/base", MODEL)
        'runs/base'
    """
    exists = os.path.exists if places == MODEL else os.path.isfile
    for own in (os.path.join(directory, path), path):
        if "://" in path or exists(own):
            return in_first_model(own, "model") if places == MODEL else own
    if "/" in path.rstrip("/"):
        places = ("{}",) if path.startswith(("configs/", "models/")) else ()
    for place in places if path.strip("./") else ():
        for found in sorted(ROOT.glob(place.format(path.rstrip("/")))):
            if exists(found):
                return str(found)
    return path


def in_first_model(path: str, part: str) -> str:
    """The "model" or "saved_model" of a first model; else the path itself."""
    summary = pathlib.Path(path, "summary.json")
    if not (
        summary.exists() and pathlib.Path(path, "first_model.json").exists()
    ):
        return path
    return os.path.join(path, json.loads(summary.read_text())[part])


def expand(
    arguments: Iterable[str], parents: tuple[str, ...] = ()
) -> list[str]:
    """Replaces each `--flagfile` by the flags of its file.

    absl opens a flag file that another one names in the working directory; here
    the directory of the other file and the names of recipes come first.

    Args:
        parents: If `arguments` are lines of a flag file, the flag files that
            lead to them, outermost first.

    Raises:
        UserError: If a flag file does not exist or contains itself.
    """
    expanded: list[str] = []
    directory = os.path.dirname(parents[-1]) if parents else ""
    remaining = iter(arguments)
    for word in remaining:
        if word == "--":
            return [*expanded, word, *remaining]
        name, equals, value = word.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            expanded.append(word)
            continue
        value = value if equals else next(remaining, "")
        path = find(os.path.expanduser(value), RECIPE, directory)
        if not os.path.isfile(path) or path in parents:
            names = [found.stem for found in ROOT.glob("configs/*/*.flags")]
            raise UserError(
                "--flagfile must be a file that does not contain itself, "
                "or the name of a recipe",
                received=value,
                remedy=did_you_mean(value, names)
                or f"{ROOT / 'configs'} has the recipes.",
            )
        text = pathlib.Path(path).read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        words = [w for w in lines if w and not w.startswith(("#", "//"))]
        expanded += expand(words, (*parents, path))
    return expanded
