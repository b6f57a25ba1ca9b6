"""Settings of the commands that compile for a TPU slice."""

import dataclasses

from albert_tf.config import Config, PretrainingConfig, setting


@dataclasses.dataclass(frozen=True)
class CompileCheckConfig(Config):
    """Settings of `python -m tpu.compile_check`."""

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
    json: bool = setting(False, "Print JSON instead of text.")


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
