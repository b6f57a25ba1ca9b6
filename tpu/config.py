"""Settings of the commands that compile for a TPU slice."""

import dataclasses

from albert_tf.config import Config, PretrainingConfig, setting
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class CompileCheckConfig(Config):
    """`python -m tpu.compile_check`."""

    run: PretrainingConfig = dataclasses.field(
        default_factory=PretrainingConfig
    )
    topology: str = setting(
        "",
        "Slice, by version and shape, e.g. v5e:16x16 or v4:4x4x8, or by "
        "accelerator type, e.g. v5litepod-256.",
    )
    quick: bool = setting(
        False,
        "Compile with little effort: memory within some per cent, and no "
        "times, in about a fourth of the time.",
    )
    json: bool = setting(
        False, "Print JSON instead of text: an object, or a list for --sweep."
    )
    sweep: bool = setting(
        False,
        "Compare batch sizes, with and without --remat, with and without "
        "dropout: 4 compiles for each batch size.",
    )
    sweep_batch_sizes: tuple[str, ...] = setting(
        ("8", "16", "32"),
        "Examples that a core works through at a time, with commas.",
    )
    output_file: str = setting(
        "", "PNG to draw the sweep to, e.g. build/sweep.png."
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
            UserError: If one is none.
        """
        if not self.sweep_batch_sizes or not all(
            text.isdecimal() and int(text) for text in self.sweep_batch_sizes
        ):
            raise UserError(
                "sweep_batch_sizes must be numbers from 1 up",
                received=",".join(self.sweep_batch_sizes),
                remedy="Example: --sweep_batch_sizes=8,16,32",
            )
        return tuple(map(int, self.sweep_batch_sizes))


@dataclasses.dataclass(frozen=True)
class CompileRecipesConfig(Config):
    """`python -m tpu.compile_recipes`."""

    recipe: tuple[str, ...] = setting(
        (),
        "Recipes of configs/pretrain, with commas, e.g. base_v2_125k; all "
        "that name a slice if it is not given.",
    )
    quick: bool = setting(False, "Memory alone, in a fourth of the time.")
