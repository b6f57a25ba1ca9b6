"""Settings of the commands that compile for a TPU slice."""

import dataclasses

from albert_tf.config import Config, PretrainingConfig, setting
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class CompileCheckConfig(Config):
    """Settings of `python -m tpu.compile_check`.

    Example:
        >>> config = CompileCheckConfig(
        ...     topology="v5e:4x4", sweep=True, sweep_batch_sizes=("8", "64")
        ... )
        >>> config.batch_sizes()
        (8, 64)
        >>> CompileCheckConfig(output_file="sweep.png")
        Traceback (most recent call last):
        albert_tf.errors.UserError: output_file needs --sweep.
        Received: sweep.png.
    """

    run: PretrainingConfig = dataclasses.field(
        default_factory=PretrainingConfig
    )
    topology: str = setting(
        "",
        "Slice to compile for, by version and shape, e.g. v5e:16x16 or "
        "v4:4x4x8, or by accelerator type, e.g. v5litepod-256.",
    )
    quick: bool = setting(
        False,
        "Compile with little optimization, in a quarter of the time. The "
        "memory estimate is then correct to within a few per cent, and there "
        "is no estimate of the step time.",
    )
    json: bool = setting(
        False,
        "Print JSON instead of text: an object, or a list with --sweep.",
    )
    sweep: bool = setting(
        False,
        "Compare the batch sizes of sweep_batch_sizes, with and without "
        "--remat, and with and without dropout: 4 compilations per batch size.",
    )
    sweep_batch_sizes: tuple[str, ...] = setting(
        ("8", "16", "32"),
        "Micro-batch sizes to compare, in records per core, comma-separated, "
        "e.g. 8,16,32.",
    )
    output_file: str = setting(
        "",
        "PNG file to draw the sweep to, e.g. build/sweep.png; needs --sweep.",
    )

    def check(self) -> None:
        if self.output_file and not self.sweep:
            raise UserError(
                "output_file needs --sweep", received=self.output_file
            )
        if self.output_file and not self.output_file.endswith(".png"):
            raise UserError(
                "output_file must end in .png", received=self.output_file
            )
        self.batch_sizes()

    def batch_sizes(self) -> tuple[int, ...]:
        """`sweep_batch_sizes` as numbers.

        Raises:
            UserError: If one is not a positive integer.
        """
        if not self.sweep_batch_sizes or not all(
            text.isdecimal() and int(text) for text in self.sweep_batch_sizes
        ):
            raise UserError(
                "sweep_batch_sizes must be positive integers",
                received=",".join(self.sweep_batch_sizes),
                remedy="Example: --sweep_batch_sizes=8,16,32",
            )
        return tuple(map(int, self.sweep_batch_sizes))


@dataclasses.dataclass(frozen=True)
class CompileRecipesConfig(Config):
    """Settings of `python -m tpu.compile_recipes`.

    Example:
        >>> CompileRecipesConfig(recipe=("base_v2_125k",), quick=True).recipe
        ('base_v2_125k',)
    """

    recipe: tuple[str, ...] = setting(
        (),
        "Recipes in configs/pretrain to compile, comma-separated, without "
        ".flags, e.g. base_v2_125k,large_v2_3m. Default: all recipes with a "
        "command for a TPU, tpu/launch.sh run, in their comment.",
    )
    quick: bool = setting(
        False, "Estimate only the memory, in a quarter of the time."
    )
    accept_worse: bool = setting(
        False,
        "Also write an estimate whose cycles, memory, copies, HBM traffic or "
        "bytes in the all-reduce are more than 3 % above those in "
        "tpu/compiled.json, e.g. after a change that is worth its cost.",
    )
    table_only: bool = setting(
        False,
        "Compile nothing: only write the table in tpu/COMPILED.md from "
        "tpu/compiled.json, e.g. after a change of its columns.",
    )

    def check(self) -> None:
        if self.table_only and self.recipe:
            raise UserError(
                "table_only writes all rows, so it does not take --recipe",
                received=",".join(self.recipe),
            )
