r"""Estimate memory and speed of a run on a TPU slice, without a TPU.

Compiles the step of `--runtime=pjrt`, including the sums over all cores of the
slice, with Google's TPU compiler. Install it with
`pip install 'albert-tf[cpu,tpu-compile]'`.

    python -m tpu.compile_check \
      --flagfile=configs/pretrain/base_v2_125k.flags \
      --flagfile=configs/hardware/v5e_256.flags

--quick estimates only the memory, in a quarter of the time. The exit status is
2 if the program does not compile, e.g. because it needs more than the memory of
a core.
"""

import dataclasses
import json
import os
from collections.abc import Mapping

from absl import logging

from albert_tf.cluster import versions
from albert_tf.config import Config, PretrainingConfig, flags, setting
from tpu import topologies

GIB = 2**30
EXIT_DOES_NOT_COMPILE = 2

# How many times the estimate a real step may take; see docs/tpu.md.
LARGEST_RATIO = 1.5

CAVEATS = """
A step takes 1 to 1.5 times the compiler's estimate, which leaves out input,
host and some copies: docs/tpu.md. Use estimates to compare settings."""


@dataclasses.dataclass(frozen=True)
class CompileCheckConfig(Config):
    """Settings of `python -m tpu.compile_check`."""

    run: PretrainingConfig = PretrainingConfig()
    accelerator_type: str = setting(
        "",
        "Slice to compile for, by Google Cloud's name, e.g. v5litepod-256, as "
        "in the flag files of configs/hardware.",
    )
    libtpu_init_args: str = setting(
        "",
        "Flags of the compiler, separated by spaces, which are added to the "
        "environment variable LIBTPU_INIT_ARGS, e.g. "
        "--xla_tpu_scoped_vmem_limit_kib=24576. An unknown one ends the "
        "process.",
    )
    quick: bool = setting(
        False,
        "Compile with little optimization, in a quarter of the time. The "
        "memory estimate is then correct to within a few per cent, and there "
        "is no estimate of the step time.",
    )
    json: bool = setting(False, "Print JSON instead of text.")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A training step on a slice; values are per core unless stated.

    All results are None if the program does not compile; those from `cycles`
    on also if it was compiled quickly. `tpu_compiler.Cost` explains others.
    """

    topology: str  # e.g. "v5e:16x16"
    num_chips: int
    num_cores: int
    chip_memory_bytes: int  # of a core
    batch_size: int  # rows of a micro-batch: examples, unless packed
    gradient_accumulation_steps: int
    precision: str
    packing: str
    model_flops: int  # of the model's formula, without recomputation
    versions: Mapping[str, str]  # of the compiler, JAX and TensorFlow
    error: str = ""  # of the compiler
    peak_bytes: int | None = None  # of HBM, with the arguments
    argument_bytes: int | None = None  # weights, moments and batch
    flops: float | None = None  # over all micro-batches
    uncounted_loops: int | None = None
    all_reduce_bytes: int | None = None
    num_all_reduces: int | None = None
    all_reduce_s: float | None = None  # a lower bound
    cycles: int | None = None
    step_s: float | None = None  # cycles at the chip's clock + all_reduce_s
    mfu: float | None = None  # model_flops per second, as a part of the peak
    days: float | None = None  # of the complete run
    chip_hours: float | None = None

    def columns(self) -> dict[str, str]:
        """What the table of docs/tpu.md shows of a program that compiles."""
        rows = f"{self.gradient_accumulation_steps} x {self.batch_size}"
        shown = {
            "rows per core": rows,
            "HBM, GiB": f"{(self.peak_bytes or 0) / GIB:.2f}",
        }
        if self.step_s is None:
            return shown
        return shown | {
            "step, ms": _expected(1e3 * self.step_s, ".0f"),
            "MFU": f"{self.mfu:.0%}",
            "days": _expected(self.days, ".2f"),
            "chip-hours": _expected(self.chip_hours, ",.0f"),
        }


def _expected(value: float | None, form: str) -> str:
    """The range of a time, from the estimate to what a chip may take."""
    assert value is not None
    return f"{value:{form}} to {LARGEST_RATIO * value:{form}}"


def estimate(
    config: PretrainingConfig, where: topologies.Slice, *, quick: bool = False
) -> Estimate:
    """Compiles the first step of a run for a slice.

    Raises:
        UserError: If the batch cannot be divided over the slice, or if libtpu
            is missing or does not know the slice.
    """
    # Imported here so that --help answers at once.
    import tensorflow as tf

    from albert_tf.cluster.strategy import per_replica_batch_size
    from albert_tf.training.cost import flops_per_step
    from tpu import tpu_compiler

    data, chip, num_cores = config.data, where.chip, where.num_cores
    micro_batches = data.gradient_accumulation_steps
    batch_size = per_replica_batch_size(data, num_cores)
    installed = tpu_compiler.check_installed()
    devices = tpu_compiler.slice_devices(where)
    flops = flops_per_step(
        config.model, data, config.training.sentence_objective
    )
    planned = Estimate(
        topology=str(where),
        num_chips=where.num_chips,
        num_cores=num_cores,
        chip_memory_bytes=int(chip.memory_gib * GIB),
        batch_size=batch_size // micro_batches,
        gradient_accumulation_steps=micro_batches,
        precision=config.distribution.precision,
        packing=data.packing,
        model_flops=flops // num_cores,
        versions={**installed, "tensorflow": tf.__version__},
    )
    speed = "quick" if quick else "takes minutes"
    logging.info("compiling the training step for %s (%s)", where, speed)
    try:
        plan, module = tpu_compiler.compile_step(config, devices, quick=quick)
    except tpu_compiler.DoesNotCompileError as error:
        return dataclasses.replace(planned, error=str(error))
    cost = tpu_compiler.program_cost(module)
    all_reduce_s = where.all_reduce_seconds(cost.all_reduce_bytes)
    results = {**plan, **vars(cost), "all_reduce_s": all_reduce_s}
    # The loop over micro-batches holds all but a thousandth of the operations.
    results["flops"] *= micro_batches
    if quick:
        return dataclasses.replace(planned, **results | {"cycles": None})
    step_s = cost.cycles / chip.clock_hz + all_reduce_s
    hours = config.training.num_train_steps * step_s / 3600
    chip_hours = hours * where.num_chips
    return dataclasses.replace(
        planned,
        **results,
        step_s=step_s,
        mfu=planned.model_flops / step_s / chip.peak_flops,
        days=hours / 24,
        chip_hours=chip_hours,
    )


def describe(found: Estimate) -> str:
    """The estimate as text."""
    head = f"{found.topology}: {found.num_chips} chips, {found.num_cores} cores"
    if found.error:
        return f"{head}\nDOES NOT COMPILE. The compiler's error:\n{found.error}"
    shown = found.columns()
    shown["HBM, GiB"] += f" of {found.chip_memory_bytes / GIB:.2f}"
    lines = [f"  {name:15}{text}" for name, text in shown.items()]
    if found.uncounted_loops:
        lines.append("  TIMES ARE TOO LOW: some loops have an unknown length")
    return "\n".join([head, "compiles", *lines])


def main(config: CompileCheckConfig) -> int:
    """Compiles the step of the run in `config`; returns the exit status."""
    config.require("accelerator_type")
    where = topologies.parse(config.accelerator_type)
    # The compiler reads this variable when it is loaded.
    os.environ["LIBTPU_INIT_ARGS"] = " ".join(
        filter(None, (os.getenv("LIBTPU_INIT_ARGS"), config.libtpu_init_args))
    )
    versions.import_tensorflow()
    import tensorflow as tf

    # TensorFlow only traces the program, so it needs no GPU.
    tf.config.set_visible_devices([], "GPU")
    found = estimate(config.run, where, quick=config.quick)
    if config.json:
        print(json.dumps(dataclasses.asdict(found), indent=1))
    else:
        print(describe(found), CAVEATS, sep="\n")
    return EXIT_DOES_NOT_COMPILE if found.error else 0


if __name__ == "__main__":
    flags.run(main, CompileCheckConfig)
