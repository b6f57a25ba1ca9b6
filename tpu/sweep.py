"""Compares batch sizes, recomputation (remat) and dropout of a run."""

import dataclasses
import io
import itertools
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from albert_tf.config import PretrainingConfig
from albert_tf.training import schedules
from tpu.estimates import Estimate, summary_of_error
from tpu.topologies import Slice

GIB = 2**30
# Dropout rate of the paper, to compare with a run that has no dropout.
DROPOUT = 0.1


def variants(
    config: PretrainingConfig, where: Slice, batch_sizes: Sequence[int]
) -> Iterator[PretrainingConfig]:
    """Yields each batch size, with and without remat and dropout.

    Args:
        config: The run; its `global_batch_size` is replaced.
        batch_sizes: Examples of a micro-batch, per core.
    """
    rates = schedules.dropout_rates(0, config)
    dropout = max(rates) or DROPOUT
    for size, remat, rate in itertools.product(
        batch_sizes, (False, True), (0.0, dropout)
    ):
        micro_batches = config.data.gradient_accumulation_steps
        yield dataclasses.replace(
            config,
            data=dataclasses.replace(
                config.data,
                global_batch_size=size * micro_batches * where.num_cores,
            ),
            distribution=dataclasses.replace(config.distribution, remat=remat),
            training=dataclasses.replace(
                config.training, dropout_schedule=f"0:{rate}"
            ),
        )


HEADER = (
    "  batch  remat  dropout     HBM GiB  of core  step ms    MFU  "
    "tokens/s/chip  compile s"
)


def row(found: Estimate) -> str:
    """A row of the table, to print under `HEADER`."""
    start = (
        f"{found.batch_size:7}  {'yes' if found.remat else 'no':>5}  "
        f"{found.hidden_dropout:7g}  "
    )
    if found.error:
        return start + "does not compile: " + summary_of_error(found.error)
    assert found.peak_bytes is not None and found.compile_s is not None
    fraction = found.peak_bytes / found.chip_memory_bytes
    times = f"{'-':>7}  {'-':>5}  {'-':>13}"
    if found.step_s and found.mfu and found.tokens_per_s_chip:
        times = (
            f"{found.step_s * 1e3:7.1f}  {found.mfu:5.1%}  "
            f"{found.tokens_per_s_chip:13,.0f}"
        )
    return (
        f"{start}{found.peak_bytes / GIB:10.2f}  {fraction:7.0%}  {times}  "
        f"{found.compile_s:9.0f}"
    )


def picture(found: Sequence[Estimate]) -> bytes:
    """A PNG of memory and MFU by batch size.

    A cross marks a program that does not compile.
    """
    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    memory, speed = figure.subplots(1, 2)
    sizes = sorted({one.batch_size for one in found})
    limit = found[0].chip_memory_bytes / GIB
    memory.axhline(limit, color="#858585", linestyle="--")
    memory.annotate(
        f"HBM of a core of {found[0].topology}: {limit:.2f}",
        (sizes[0], limit),
        xytext=(0, 4),
        textcoords="offset points",
        color="#858585",
        fontsize=8,
    )
    curves: dict[tuple[bool, float], list[Estimate]] = {}
    for one in found:
        curves.setdefault((one.remat, one.hidden_dropout), []).append(one)
    for (remat, rate), points in curves.items():
        style = {
            "color": "#d95f02" if remat else "#0f7fc8",
            "linestyle": ":" if rate else "-",
        }
        label = f"{'remat' if remat else 'no remat'}, dropout {rate:g}"
        fit = [one for one in points if one.peak_bytes is not None]
        memory.plot(
            [one.batch_size for one in fit],
            [one.peak_bytes / GIB for one in fit if one.peak_bytes],
            marker="o",
            label=label,
            **style,
        )
        refused = [one.batch_size for one in points if one.error]
        memory.plot(
            refused,
            [limit] * len(refused),
            marker="x",
            markersize=10,
            color=style["color"],
            linestyle="none",
        )
        timed = [one for one in fit if one.mfu is not None]
        speed.plot(
            [one.batch_size for one in timed],
            [one.mfu for one in timed],
            marker="o",
            **style,
        )
    memory.set(title="HBM of a core, GiB", ylim=(0, 1.12 * limit))
    memory.legend(fontsize=8)
    speed.set(title="MFU, estimated", ylim=(0, None))
    speed.yaxis.set_major_formatter(PercentFormatter(1.0))
    if not any(one.mfu is not None for one in found):
        speed.text(
            0.5, 0.5, "--quick estimates no times", transform=speed.transAxes,
            ha="center",
        )  # fmt: skip
    for axes in (memory, speed):
        axes.set_xlabel("examples per core and micro-batch")
        axes.set_xticks(sizes)
        axes.grid(alpha=0.3)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
