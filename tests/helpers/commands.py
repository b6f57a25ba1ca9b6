"""The commands of this project, found in its source."""

import importlib
import pathlib
import re

from albert_tf.config import Config, ModelConfig, fields_with_types

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
    """Name -> field and type of each setting with a flag of its own."""
    found = {}
    for field, field_type in fields_with_types(config_class):
        if field_type is ModelConfig:
            continue
        if isinstance(field_type, type) and issubclass(field_type, Config):
            nested = settings_of(field_type)
            assert not nested.keys() & found.keys(), "declared twice"
            found |= nested
        elif field.metadata["has_flag"]:
            found[field.name.removesuffix("_")] = field, field_type
    return found
