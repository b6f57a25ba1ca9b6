"""The estimate of useful time on slices that are preempted."""

import pathlib
import re

import numpy as np
import pytest

from tpu.goodput import goodput, table

README = pathlib.Path(__file__).parents[2] / "tpu" / "README.md"


def simulate(mean_life_s, save_s, copy_s, restart_s, number=200_000):
    """Kept time over the lives of slices, without and with a notice."""
    lives = np.random.default_rng(0).exponential(mean_life_s, number)
    training = np.maximum(lives - restart_s, 0)
    saves = np.floor(training / (save_s + copy_s))
    share_of_steps = save_s / (save_s + copy_s)
    return (
        save_s * saves.sum() / lives.sum(),
        share_of_steps * training.sum() / lives.sum(),
    )


@pytest.mark.parametrize(
    "case", [(7200, 300, 3, 600), (7200, 4235, 0, 600), (1000, 500, 50, 10)]
)
def test_the_formula_agrees_with_a_simulation(case):
    np.testing.assert_allclose(goodput(*case), simulate(*case), rtol=0.01)


def test_recipes_keep_nine_tenths_of_the_time_of_spot_slices():
    """With a mean life of 2 hours, even without a notice."""
    made = table()
    rows = made.splitlines()[2:]
    assert len(rows) > 20
    for line in rows:
        without, with_notice = re.findall(r"([\d.]+)%", line)[-2:]
        assert float(with_notice) >= float(without) >= 90, line
    assert made in README.read_text(), "see python -m tpu.goodput"
