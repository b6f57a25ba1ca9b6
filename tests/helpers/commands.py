"""The commands of this project, found in its source."""

import importlib
import pathlib
import re

from albert_tf.config import flag_name, settings_by_path

ROOT = pathlib.Path(__file__).parents[2]


def find_commands():
    """Name of each command -> config class, main function, name for python -m.

    Without benchmarks.
    """
    found = {}
    for package in ("albert_tf", "data_prep", "tpu"):
        for path in sorted((ROOT / package).rglob("*.py")):
            call = re.search(
                r"^    flags\.run\((\w+), (\w+)\)", path.read_text(), re.M
            )
            if call:
                parts = path.relative_to(ROOT).with_suffix("").parts
                module = importlib.import_module(".".join(parts))
                name = parts[-2] if parts[-1] == "__main__" else parts[-1]
                assert name not in found
                found[name] = (
                    *(getattr(module, call[2]), getattr(module, call[1])),
                    module.__name__.removesuffix(".__main__"),
                )
    return found


def settings_of(config_class):
    """Name -> field of each setting with a flag of its own."""
    return {
        flag_name(field.name): field
        for path, field in settings_by_path(config_class).items()
        if field.metadata["has_flag"] and "model." not in path
    }
