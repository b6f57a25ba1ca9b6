r"""Estimate the fraction of the time that a recipe trains on spot slices.

    python -m tpu.goodput

A slice lives for a random time, with an exponential distribution. After each
end of a slice, it takes RESTART_S until training continues on the next one.
Without a notice, the steps since the last checkpoint are lost. With a notice,
which Google Cloud usually gives 30 s before the end, training saves a
checkpoint at its next step and loses none.

Step times are the estimates of tpu/compiled.json. The intervals between
checkpoints are those that a run of the recipe would choose.
"""

import json
import math

from absl import app

from albert_tf.config import PretrainingConfig
from albert_tf.runs.intervals import Intervals, choose
from tpu.compile_recipes import FOUND, read_recipe

# Seconds from the end of a slice to the first step on the next one: to request
# and create it, install the packages, connect, restore and compile.
RESTART_S = 600.0
# Seconds that training waits for a checkpoint to be copied to host 0, per byte:
# each chip of the host sends a part, at 1 GB/s.
CHIPS_PER_HOST = 4
COPY_S_PER_BYTE = 1e-9 / CHIPS_PER_HOST
MEAN_LIVES_H = (24, 6, 2)


def goodput(
    mean_life_s: float,
    save_s: float,
    copy_s: float = 0.0,
    restart_s: float = RESTART_S,
) -> tuple[float, float]:
    """The fraction of the time spent on steps that are kept.

    Args:
        mean_life_s: Mean life of a slice.
        save_s: Time of the steps between two checkpoints.
        copy_s: Time that training waits for a checkpoint.
        restart_s: Time from the end of a slice to the first step on the next.

    Returns:
        The fraction without a notice, and the fraction with a notice.

    Example:
        >>> without, with_notice = goodput(mean_life_s=7200, save_s=300)
        >>> round(without, 3), round(with_notice, 3)
        (0.901, 0.92)
    """
    # The probability that a slice lives long enough to train at all.
    starts = math.exp(-restart_s / mean_life_s)
    cycle_s = save_s + copy_s
    # The probability that it then lives until the next checkpoint. So the
    # number of checkpoints has a geometric distribution.
    again = math.exp(-cycle_s / mean_life_s)
    num_saves = starts * again / (1 - again)
    return num_saves * save_s / mean_life_s, starts * save_s / cycle_s


def row(name: str, config: PretrainingConfig, step_s: float, size: int) -> str:
    """The row of a recipe in the table.

    Args:
        step_s: Estimated step time in seconds.
        size: Bytes of a checkpoint.
    """
    chosen = Intervals("", [choose(0, step_s, config.training)])
    loop, save = chosen.at(0, config.training)
    shares = [
        " / ".join(
            f"{share:.1%}"
            for share in goodput(
                3600 * hours, save * step_s, COPY_S_PER_BYTE * size
            )
        )
        for hours in MEAN_LIVES_H
    ]
    cells = [
        name,
        f"{loop:,} ({loop * step_s:.0f} s)",
        f"{save:,} ({save * step_s / 60:.1f} min)",
        *shares,
    ]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The table of all recipes that name a slice."""
    lives = [f"mean life {hours} h" for hours in MEAN_LIVES_H]
    header = ["recipe", "steps per loop", "steps between checkpoints", *lives]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name, found in json.loads(FOUND.read_text()).items():
        recipe = read_recipe(name)
        if recipe is not None and found["step_s"]:
            size = found["argument_bytes"]
            lines.append(row(name, recipe.run, found["step_s"], size))
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    """Prints the table."""
    print(table())


if __name__ == "__main__":
    app.run(main)
