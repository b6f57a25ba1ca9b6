r"""Compile every recipe for the slice that it names, for docs/tpu.md.

    python -m tpu.compile_recipes
    python -m tpu.compile_recipes --recipe=base_v2_125k,large_v2_3m --quick

After each recipe, the results in tpu/compiled.json are updated, so the command
may be interrupted, and recipes may be compiled one by one. `make docs` writes
them into docs/tpu.md.
"""

import dataclasses
import json
import pathlib
import re
import shlex
from typing import NamedTuple

import tensorflow as tf
from absl import flags as absl_flags
from absl import logging

from albert_tf.config import (
    PretrainingConfig,
    flags,
)
from albert_tf.errors import UserError
from albert_tf.io import files
from tpu import topologies
from tpu.config import (
    CompileRecipesConfig,
)
from tpu.estimates import (
    estimate_apart,
)

ROOT = pathlib.Path(__file__).parent.parent
RECIPES = ROOT / "configs" / "pretrain"
FOUND = ROOT / "tpu" / "compiled.json"

_COMMAND = re.compile(r"^#   tpu/launch.sh run((?: .*\\\n#)*.*)", re.M)


class Recipe(NamedTuple):
    """What the command in the comment of a recipe says.

    Attributes:
        run: The settings of the run.
        where: The slice of `--accelerator_type`.
        compiler_flags: Flags of libtpu, separated by spaces, of
            `--libtpu_init_args`; "" without it.
    """

    run: PretrainingConfig
    where: topologies.Slice
    compiler_flags: str = ""


def read_recipe(name: str) -> Recipe | None:
    """Reads a recipe and its comment.

    Returns:
        None if the comment has no command `tpu/launch.sh run`.
    """
    text = (RECIPES / f"{name}.flags").read_text(encoding="utf-8")
    command = _COMMAND.search(text)
    if command is None:
        return None
    words = shlex.split(command[1].replace("\\\n#", ""))
    end = words.index("--")
    of_slice = dict(word.lstrip("-").split("=", 1) for word in words[:end])
    flag_values = absl_flags.FlagValues()
    flags.define(PretrainingConfig, flag_values)
    # As tpu/on_host.sh does.
    flag_values(["run_pretraining", "--strategy=tpu", *words[end + 1 :]])
    return Recipe(
        flags.parse(PretrainingConfig, flag_values),
        topologies.parse(of_slice["accelerator_type"]),
        of_slice.get("libtpu_init_args", ""),
    )


def main(config: CompileRecipesConfig) -> None:
    """Compiles recipes, and writes the results."""
    every = sorted(path.stem for path in RECIPES.glob("*.flags"))
    unknown = set(config.recipe) - set(every)
    if unknown:
        raise UserError(
            "recipe must be the name of a file in configs/pretrain, without "
            ".flags",
            received=", ".join(sorted(unknown)),
            remedy=f"Recipes: {', '.join(every)}.",
        )
    # TensorFlow only traces programs, so it needs no GPU.
    tf.config.set_visible_devices([], "GPU")
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    for name in config.recipe or every:
        recipe = read_recipe(name)
        if recipe is None:
            logging.info("skipping %s: it has no command for a TPU", name)
            continue
        run, where, compiler_flags = recipe
        logging.info("%s, for %s", name, where)
        one = estimate_apart(
            run, where, quick=config.quick, compiler_flags=compiler_flags
        )
        found[name] = dataclasses.asdict(
            dataclasses.replace(one, compiler_flags=compiler_flags)
        )
        content = json.dumps(found, indent=1, sort_keys=True) + "\n"
        files.write_bytes(str(FOUND), content.encode())


if __name__ == "__main__":
    flags.run(main, CompileRecipesConfig)
