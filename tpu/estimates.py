"""The cost of a training step on a slice, by the TPU compiler's estimate."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.training import schedules
from albert_tf.training.cost import flops_per_step
from tpu import cycles, replica_program, tpu_compiler
from tpu.own_process import NoResultError, run_apart
from tpu.topologies import Slice

# Flags of libtpu, separated by spaces.
FLAGS_VARIABLE = "LIBTPU_INIT_ARGS"

CAVEATS = (
    "Memory is the compiler's memory plan for the step. Time is the compiler's "
    "estimate of cycles, divided by the clock rate of the chip, plus the time "
    "of the all-reduce: 2 (n-1)/n times its bytes, divided by the bandwidth of "
    "a chip, for n chips. The time of input, host and the hardware's random "
    "generator is not included, nor that of asynchronous copies between HBM "
    "and on-chip memory, which are taken as hidden behind arithmetic. No "
    "estimate has been compared with a real chip: use them to compare "
    "settings. Expect 1 to 1.5 times the estimate; docs/tpu.md says why."
)

# How many times the estimate a real step may take; see docs/tpu.md.
LARGEST_RATIO = 1.5


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A training step on a slice; values are per core unless stated.

    Step times and values derived from them are None after a quick or failed
    compilation. After a failed one, all results of the compiler are None, too.

    Attributes:
        topology: The slice, e.g. "v5e:16x16".
        num_chips, num_cores: Numbers of chips and cores of the slice.
        chip_memory_bytes: HBM of a core.
        batch_size: Rows of a micro-batch; each is an example, unless packed.
        gradient_accumulation_steps: Micro-batches in a step.
        max_seq_length, precision, remat: Settings of the run.
        hidden_dropout, attention_dropout: Rates of the first step.
        quick: Whether the program was compiled with `quick`.
        error: The compiler's error; "" if the program compiles.
        peak_bytes, argument_bytes, temporary_bytes, code_bytes: See
            `tpu_compiler.Compiled`.
        flops: Operations, counted by the compiler; the body of the loop over
            micro-batches counts once for each micro-batch.
        model_flops: Operations of the model by arithmetic, without
            recomputation.
        accessed_bytes: Bytes read and written, by the compiler's count; loop
            bodies count once.
        cycles: The compiler's estimate.
        uncounted_loops: Loops with an unknown number of iterations, whose
            bodies count once in `cycles`.
        random_bytes: Bytes from the hardware's random generator, whose time
            is not estimated.
        copied_bytes: Bytes of asynchronous copies between HBM and on-chip
            memory, whose time is not estimated.
        hbm_bytes: `copied_bytes`, and the bytes that operations read and write
            in HBM themselves; see `cycles.Cost`. Without collectives.
        all_reduce_bytes, num_all_reduces: Bytes and number of the sums over
            all cores.
        all_reduce_s: A lower bound of the time of these sums.
        step_s: Cycles at the chip's clock, plus `all_reduce_s`.
        mfu: `model_flops` per second as a fraction of a core's peak.
        tokens_per_s_chip, tokens_per_s: Positions, including padding, per
            chip and in total.
        days, chip_hours: Duration and chip-hours of the complete run.
        compile_s, compile_cpu_s: Wall-clock and processor time of the
            compiler.
        versions: Versions of the compiler, of the packages that load it, and
            of TensorFlow.
        packing: "none", or "best_fit" for several examples per row.
        compiler_flags: Flags of libtpu, for recipes.
    """

    topology: str
    num_chips: int
    num_cores: int
    chip_memory_bytes: int
    batch_size: int
    gradient_accumulation_steps: int
    max_seq_length: int
    precision: str
    remat: bool
    hidden_dropout: float
    attention_dropout: float
    quick: bool
    model_flops: int
    versions: Mapping[str, str]
    error: str = ""
    peak_bytes: int | None = None
    argument_bytes: int | None = None
    temporary_bytes: int | None = None
    code_bytes: int | None = None
    flops: float | None = None
    accessed_bytes: float | None = None
    random_bytes: int | None = None
    copied_bytes: int | None = None
    hbm_bytes: int | None = None
    all_reduce_bytes: int | None = None
    num_all_reduces: int | None = None
    uncounted_loops: int | None = None
    all_reduce_s: float | None = None
    cycles: int | None = None
    step_s: float | None = None
    mfu: float | None = None
    tokens_per_s_chip: float | None = None
    tokens_per_s: float | None = None
    days: float | None = None
    chip_hours: float | None = None
    compile_s: float | None = None
    compile_cpu_s: float | None = None
    packing: str = "none"
    compiler_flags: str = ""


def estimate(
    config: PretrainingConfig, where: Slice, *, quick: bool = False
) -> Estimate:
    """Compiles the first step of a run for a slice.

    Args:
        quick: Estimates memory only, in about a quarter of the time.

    Raises:
        UserError: If the batch cannot be divided over the slice, or if libtpu
            is not installed or does not know the slice.
    """
    batch_size = per_replica_batch_size(
        "global_batch_size",
        config.data.global_batch_size,
        where.num_cores,
        config.data.gradient_accumulation_steps,
    )
    versions = {
        **tpu_compiler.check_installed(),
        "tensorflow": tf.__version__,
    }
    devices = tpu_compiler.slice_devices(
        where.libtpu_name(), where.libtpu_options()
    )[: where.num_cores]
    model_flops = flops_per_step(
        config.model, config.data, config.training.sentence_objective
    )
    micro_batches = config.data.gradient_accumulation_steps
    rates = schedules.dropout_rates(0, config)
    planned = Estimate(
        topology=str(where),
        num_chips=where.num_chips,
        num_cores=where.num_cores,
        chip_memory_bytes=where.chip.memory_bytes,
        batch_size=batch_size // micro_batches,
        gradient_accumulation_steps=micro_batches,
        max_seq_length=config.data.max_seq_length,
        precision=config.distribution.precision,
        remat=config.distribution.remat,
        hidden_dropout=rates.hidden,
        attention_dropout=rates.attention,
        quick=quick,
        model_flops=model_flops // where.num_cores,
        versions=versions,
        packing=config.data.packing,
    )
    logging.info("lowering the training step for %s", where)
    hlo = replica_program.lower(config, where.num_cores)
    logging.info("compiling (%s)", "quick" if quick else "takes minutes")
    try:
        program = tpu_compiler.compile_program(hlo, devices, quick=quick)
    except tpu_compiler.DoesNotCompileError as error:
        return dataclasses.replace(planned, error=str(error))
    cost = cycles.program_cost(program.hlo)
    done = dataclasses.replace(
        planned,
        peak_bytes=program.peak_bytes,
        argument_bytes=program.argument_bytes,
        temporary_bytes=program.temporary_bytes,
        code_bytes=program.code_bytes,
        # The loop over micro-batches holds all but a thousandth of the
        # operations.
        flops=program.flops * micro_batches,
        accessed_bytes=program.accessed_bytes,
        random_bytes=cost.random_bytes,
        copied_bytes=cost.copied_bytes,
        hbm_bytes=cost.copied_bytes + cost.direct_bytes,
        all_reduce_bytes=cost.collective_bytes,
        num_all_reduces=cost.num_collectives,
        uncounted_loops=cost.uncounted_loops,
        all_reduce_s=where.all_reduce_seconds(cost.collective_bytes),
        compile_s=program.compile_s,
        compile_cpu_s=program.compile_cpu_s,
    )
    if quick:
        return done
    return dataclasses.replace(
        done, cycles=cost.cycles, **_times(config, where, done, cost.cycles)
    )


def estimate_apart(
    config: PretrainingConfig,
    where: Slice,
    *,
    quick: bool = False,
    compiler_flags: str = "",
) -> Estimate:
    """`estimate` in a separate process, to compile many programs in turn.

    If the compiler crashes, only that process ends. Its memory, some 10 GB for
    a large model, is released.

    Args:
        compiler_flags: Flags that are added to LIBTPU_INIT_ARGS, which the
            compiler reads when it is loaded.

    Raises:
        UserError: As for `estimate`, or if the process has ended early.
    """
    logging.info("compiling for %s in a separate process", where)
    flags = [os.environ.get(FLAGS_VARIABLE, ""), compiler_flags]
    try:
        return run_apart(
            _estimate_alone,
            config,
            where,
            quick,
            environment={FLAGS_VARIABLE: " ".join(filter(None, flags))},
        )
    except NoResultError as error:
        raise UserError(
            "the compiler process must return a result",
            received=error,
            remedy="The machine may have too little memory: a large model "
            "needs some 10 GB. Compile one program at a time. An unknown "
            f"flag in {FLAGS_VARIABLE} ends the process, too.",
        ) from None


def _estimate_alone(
    config: PretrainingConfig, where: Slice, quick: bool
) -> Estimate:
    # TensorFlow only traces the program, so it needs no GPU.
    tf.config.set_visible_devices([], "GPU")
    return estimate(config, where, quick=quick)


def _times(
    config: PretrainingConfig, where: Slice, done: Estimate, num_cycles: int
) -> dict[str, Any]:
    assert done.all_reduce_s is not None
    step_s = num_cycles / where.chip.clock_hz + done.all_reduce_s
    hours = config.training.num_train_steps * step_s / 3600
    tokens = config.data.global_batch_size * config.data.max_seq_length
    return {
        "step_s": step_s,
        "mfu": done.model_flops / step_s / where.chip.peak_flops,
        "tokens_per_s": tokens / step_s,
        "tokens_per_s_chip": tokens / step_s / where.num_chips,
        "days": hours / 24,
        "chip_hours": hours * where.num_chips,
    }
