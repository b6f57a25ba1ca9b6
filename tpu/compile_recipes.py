r"""Compile every recipe for the slice that it names, for tpu/COMPILED.md.

    python -m tpu.compile_recipes
    python -m tpu.compile_recipes --recipe=base_v2_125k,large_v2_3m --quick

After each recipe, the results in tpu/compiled.json and the table are updated,
so the command may be interrupted, and recipes may be compiled one by one. With
--table_only, nothing is compiled, and only the table is written.
"""

import dataclasses
import json
import pathlib
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

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
    LARGEST_RATIO,
    Estimate,
    estimate_apart,
)

ROOT = pathlib.Path(__file__).parent.parent
RECIPES = ROOT / "configs" / "pretrain"
FOUND = ROOT / "tpu" / "compiled.json"
TABLE = ROOT / "tpu" / "COMPILED.md"
BEGIN, END = "<!-- recipes: begin -->\n", "<!-- recipes: end -->\n"

_COMMAND = re.compile(r"^#   tpu/launch.sh run((?: .*\\\n#)*.*)", re.M)

# The fraction of the positions that hold tokens, by packing, for the text of
# the paper. In rows of 512 tokens, examples of Wikipedia of 2018 fill 51.6 %,
# those of books 81.3 %; packed, they fill 99.2 and 99.9 %. BERT's Wikipedia has
# 2,500 million words, its books have 800 million (Devlin et al., 2019, section
# 3.1): 3300 / (2500 / 0.516 + 800 / 0.813) = 0.566, and likewise 0.994.
FILL = {"none": 0.566, "best_fit": 0.994}

HEADER = """\
| recipe | slice | rows per core | HBM, GiB | of a core | step, ms | MFU | \
tokens/s per chip | chip-hours per million useful tokens | days | chip-hours | \
copies, GB | flags | compile, s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""


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


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all results."""
    lines = [_row(name, Estimate(**found[name])) for name in sorted(found)]
    return HEADER + "".join(lines)


def _row(name: str, one: Estimate) -> str:
    rows = str(one.batch_size)
    if one.gradient_accumulation_steps > 1:
        rows = f"{one.gradient_accumulation_steps} x {rows}"
    if one.remat:
        rows += ", remat"
    start = f"| {name} | {one.topology} | {rows} | "
    if one.error:
        return f"{start}does not compile | | | | | | | | | | |\n"
    assert one.peak_bytes is not None and one.compile_cpu_s is not None
    cells = [
        f"{one.peak_bytes / 2**30:.2f}",
        f"{one.peak_bytes / one.chip_memory_bytes:.0%}",
    ]
    if one.step_s and one.mfu and one.tokens_per_s_chip:
        assert one.days is not None and one.chip_hours is not None
        cells += [
            _expected(1e3 * one.step_s, ",.1f"),
            f"{one.mfu:.1%}",
            f"{one.tokens_per_s_chip:,.0f}",
            f"{1e6 / one.tokens_per_s_chip / FILL[one.packing] / 3600:#.3g}",
            _expected(one.days, ".2f"),
            _expected(one.chip_hours, ",.0f"),
        ]
    else:
        cells += ["quick", "", "", "", "", ""]
    cells += [
        f"{(one.copied_bytes or 0) / 1e9:.1f}",
        one.compiler_flags.replace("--xla_tpu_", ""),
        f"{one.compile_cpu_s:.0f}",
    ]
    return start + " | ".join(cells) + " |\n"


def _expected(value: float, form: str) -> str:
    """The range that we expect: from the estimate to its `LARGEST_RATIO`."""
    return f"{value:{form}} to {LARGEST_RATIO * value:{form}}"


def write_table(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces the table in COMPILED.md."""
    before, _, rest = TABLE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    text = f"{before}{BEGIN}\n{table(found)}\n{END}{after}"
    files.write_bytes(str(TABLE), text.encode())


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
    if config.table_only:
        write_table(found)
        return
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
        write_table(found)


if __name__ == "__main__":
    flags.run(main, CompileRecipesConfig)
