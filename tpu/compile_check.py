r"""Estimate memory and speed of a run on a TPU slice, without a TPU.

Compiles the trainer's step for one core, including the sums over all cores of
the slice, with Google's TPU compiler. Install it with
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
import textwrap
from collections.abc import Mapping

from absl import logging

from albert_tf.cluster import versions
from albert_tf.config import Config, PretrainingConfig, flags, setting
from tpu import topologies

GIB = 2**30
EXIT_DOES_NOT_COMPILE = 2

# How many times the estimate a real step may take; see docs/tpu.md.
LARGEST_RATIO = 1.5

CAVEATS = (
    "Memory is the compiler's memory plan for the step. Time is the compiler's "
    "estimate of cycles, divided by the clock rate of the chip, plus the time "
    "of the all-reduce: 2 (n-1)/n times its bytes, divided by the bandwidth of "
    "a chip, for n chips. The time of input, host and the hardware's random "
    "generator is not included, nor that of asynchronous copies between HBM "
    "and on-chip memory, which are taken as hidden behind arithmetic. Use "
    "estimates to compare settings. Expect 1 to 1.5 times the estimate; "
    "docs/tpu.md says why."
)


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
    on also with `quick`.
    """

    topology: str  # e.g. "v5e:16x16"
    num_chips: int
    num_cores: int
    chip_memory_bytes: int  # of a core
    batch_size: int  # rows of a micro-batch: examples, unless packed
    gradient_accumulation_steps: int
    max_seq_length: int
    precision: str
    remat: bool
    packing: str
    hidden_dropout: float  # of the first step
    attention_dropout: float
    quick: bool
    model_flops: int  # of the model's formula, without recomputation
    versions: Mapping[str, str]  # of the compiler, JAX and TensorFlow
    error: str = ""  # of the compiler
    # See `tpu_compiler.Compiled`.
    peak_bytes: int | None = None
    argument_bytes: int | None = None
    temporary_bytes: int | None = None
    code_bytes: int | None = None
    compile_s: float | None = None
    compile_cpu_s: float | None = None
    flops: float | None = None  # over all micro-batches
    # See `tpu_compiler.Cost`.
    uncounted_loops: int | None = None
    all_reduce_bytes: int | None = None
    num_all_reduces: int | None = None
    all_reduce_s: float | None = None  # a lower bound
    cycles: int | None = None
    step_s: float | None = None  # cycles at the chip's clock + all_reduce_s
    mfu: float | None = None  # model_flops per second, as a part of the peak
    tokens_per_s_chip: float | None = None  # with padding
    tokens_per_s: float | None = None  # of the slice
    days: float | None = None  # of the complete run
    chip_hours: float | None = None


def estimate(
    config: PretrainingConfig, where: topologies.Slice, *, quick: bool = False
) -> Estimate:
    """Compiles the first step of a run for a slice.

    Args:
        quick: Estimates memory only, in about a quarter of the time.

    Raises:
        UserError: If the batch cannot be divided over the slice, or if libtpu
            is missing or does not know the slice.
    """
    # Imported here so that --help answers at once.
    import tensorflow as tf

    from albert_tf.cluster.strategy import per_replica_batch_size
    from albert_tf.training import schedules
    from albert_tf.training.cost import flops_per_step
    from tpu import replica_program, tpu_compiler

    data, chip, num_cores = config.data, where.chip, where.num_cores
    micro_batches = data.gradient_accumulation_steps
    batch_size = per_replica_batch_size(
        "global_batch_size", data.global_batch_size, num_cores, micro_batches
    )
    found_versions = tpu_compiler.check_installed()
    devices = tpu_compiler.slice_devices(where)
    flops = flops_per_step(
        config.model, data, config.training.sentence_objective
    )
    rates = schedules.dropout_rates(0, config)
    planned = Estimate(
        topology=str(where),
        num_chips=where.num_chips,
        num_cores=num_cores,
        chip_memory_bytes=chip.memory_bytes,
        batch_size=batch_size // micro_batches,
        gradient_accumulation_steps=micro_batches,
        max_seq_length=data.max_seq_length,
        precision=config.distribution.precision,
        remat=config.distribution.remat,
        packing=data.packing,
        hidden_dropout=rates.hidden,
        attention_dropout=rates.attention,
        quick=quick,
        model_flops=flops // num_cores,
        versions={**found_versions, "tensorflow": tf.__version__},
    )
    logging.info("lowering the training step for %s", where)
    hlo = replica_program.lower(config, num_cores)
    logging.info("compiling (%s)", "quick" if quick else "takes minutes")
    try:
        compiled, module = tpu_compiler.compile_program(
            hlo, devices, quick=quick
        )
    except tpu_compiler.DoesNotCompileError as error:
        return dataclasses.replace(planned, error=str(error))
    cost = tpu_compiler.program_cost(module)
    all_reduce_s = where.all_reduce_seconds(cost.all_reduce_bytes)
    results = {**vars(compiled), **vars(cost), "all_reduce_s": all_reduce_s}
    # The loop over micro-batches holds all but a thousandth of the operations.
    results["flops"] *= micro_batches
    if quick:
        return dataclasses.replace(planned, **results | {"cycles": None})
    step_s = cost.cycles / chip.clock_hz + all_reduce_s
    hours = config.training.num_train_steps * step_s / 3600
    tokens = data.global_batch_size * data.max_seq_length
    return dataclasses.replace(
        planned,
        **results,
        step_s=step_s,
        mfu=planned.model_flops / step_s / chip.peak_flops,
        tokens_per_s=tokens / step_s,
        tokens_per_s_chip=tokens / step_s / where.num_chips,
        days=hours / 24,
        chip_hours=hours * where.num_chips,
    )


def describe(found: Estimate) -> str:
    """The estimate as text."""
    parts = found.gradient_accumulation_steps
    rows = "examples" if found.packing == "none" else "packed rows"
    head = (
        f"{found.topology}: {found.num_chips} chips, {found.num_cores} cores\n"
        f"step per core: {f'{parts} micro-batches of ' * (parts > 1)}"
        f"{found.batch_size} {rows} of {found.max_seq_length} tokens, "
        f"{found.precision}, {'remat' if found.remat else 'no remat'}, dropout "
        f"{found.hidden_dropout:g}/{found.attention_dropout:g}\n"
        "the host runs the loop of steps_per_loop, and launches this program "
        "for each step\n\n"
    )
    if found.error:
        return f"{head}DOES NOT COMPILE. The compiler's error:\n{found.error}"
    one = {n: v for n, v in vars(found).items() if v is not None}
    gib = {n: v / GIB for n, v in one.items() if n.endswith("_bytes")}
    peak, limit = gib["peak_bytes"], gib["chip_memory_bytes"]
    lines = {
        "HBM of a core": f"peak {peak:.2f} of {limit:.2f} GiB "
        f"({peak / limit:.0%})",
        "": f"arguments {gib['argument_bytes']:.2f} (weights, moments, batch), "
        f"temporaries {gib['temporary_bytes']:.2f}, code "
        f"{gib['code_bytes']:.2f} GiB",
        "operations": f"{one['flops'] / 1e12:.3g} TFLOP per core and step; "
        f"{found.model_flops / 1e12:.3g} by the model's formula",
        "all-reduce": f"{one['num_all_reduces']} of "
        f"{one['all_reduce_bytes'] / 1e6:.4g} MB in total, at least "
        f"{one['all_reduce_s'] * 1e3:.2f} ms",
    }
    if found.cycles is not None:
        loops = "; TOO LOW: some loops have an unknown length"
        step_ms, days, hours = (
            one["step_s"] * 1e3,
            one["days"],
            one["chip_hours"],
        )
        most = LARGEST_RATIO
        lines |= {
            "cycles": f"{found.cycles:,}, estimated"
            + loops * bool(found.uncounted_loops),
            "step time": f"{step_ms:.1f} to {most * step_ms:.1f} ms, "
            "all-reduce included",
            "MFU": f"{found.mfu:.1%} at the shorter step time",
            "tokens per second": f"{found.tokens_per_s_chip:,.0f} per chip, "
            f"{found.tokens_per_s:,.0f} in total, at the shorter step time",
            "complete run": f"{days:.2f} to {most * days:.2f} days, "
            f"{hours:,.0f} to {most * hours:,.0f} chip-hours",
        }
    packages = ", ".join(f"{n} {v}" for n, v in found.versions.items())
    lines["compiled in"] = (
        f"{found.compile_s:.0f} s, {found.compile_cpu_s:.0f} s of CPU time; "
        f"{packages}"
    )
    quick = " (--quick)" * found.quick
    texts = [f"  {name:18}{text}" for name, text in lines.items()]
    return "\n".join([f"{head}compiles{quick}", *texts])


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
        print(f"{describe(found)}\n\n{textwrap.fill(CAVEATS)}")
    return EXIT_DOES_NOT_COMPILE if found.error else 0


if __name__ == "__main__":
    flags.run(main, CompileCheckConfig)
