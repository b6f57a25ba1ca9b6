"""What an update of a run costs on a slice, by the TPU compiler's estimate."""

import concurrent.futures
import dataclasses
import multiprocessing
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.training import schedules, step_cost
from tpu import cycles, replica_program, tpu_compiler
from tpu.topologies import Slice

CAVEATS = (
    "Memory is that of one program, as the compiler plans it; time is the "
    "cycles that it estimates, at the chip's clock, and an all-reduce by "
    "2 (n-1)/n bytes over the bandwidth of n chips. Neither input nor host nor "
    "the generator of random bits is in it. None of this has been compared "
    "with a chip: it is good for comparing settings, not for promising."
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An update on a slice; by core, where nothing else is said.

    Times, and what follows from them, are None where the compile was quick,
    or failed.

    Attributes:
        topology: The slice, e.g. "v5e:16x16".
        num_chips, num_cores: Of it.
        chip_memory_bytes: What a core has.
        batch_size: Examples that a core works through at a time.
        gradient_accumulation_steps: How often it does so in an update.
        max_seq_length, precision, remat: As the run has them.
        hidden_dropout, attention_dropout: Rates of the update.
        quick: Whether it was compiled with little effort.
        error: Why the program does not compile; "" if it does.
        peak_bytes, argument_bytes, temporary_bytes, code_bytes: See
            `tpu_compiler.Compiled`; None if it does not compile.
        flops: Operations that the compiler counts, loops as often as they
            run.
        model_flops: Operations of the model by arithmetic, nothing twice.
        accessed_bytes: Of memory, loops counted once.
        cycles: As the compiler estimates them.
        uncounted_loops: Loops whose bodies they hold once, for want of a
            number.
        random_bytes: Random bits that the device makes, in no estimate.
        all_reduce_bytes, num_all_reduces: Summed over the cores.
        all_reduce_s: The least time of that.
        step_s: Of an update: cycles at the clock, and the all-reduce.
        mfu: Share of the peak that the model's operations make up.
        tokens_per_s_chip, tokens_per_s: Positions, padding included.
        days, chip_hours: Of the whole run.
        compile_s, compile_cpu_s: Of the compiler.
        versions: Of the compiler and what leads to it.
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


def estimate(
    config: PretrainingConfig, where: Slice, *, quick: bool = False
) -> Estimate:
    """Compiles the first update of a run for a slice.

    Args:
        config: The run.
        where: The slice.
        quick: Memory alone, in about a fourth of the time.

    Raises:
        UserError: If the slice cannot share the batch, if libtpu does not
            know it, or is not installed.
    """
    share = per_replica_batch_size(
        "global_batch_size",
        config.data.global_batch_size,
        where.num_cores,
        config.data.gradient_accumulation_steps,
    )
    versions = tpu_compiler.check_installed()
    devices = tpu_compiler.slice_devices(
        where.libtpu_name(), where.libtpu_options()
    )[: where.num_cores]
    model_flops = step_cost.flops_per_step(
        config.model, config.data, config.training.sentence_objective
    )
    parts = config.data.gradient_accumulation_steps
    rates = schedules.dropout_rates(0, config)
    planned = Estimate(
        topology=str(where),
        num_chips=where.num_chips,
        num_cores=where.num_cores,
        chip_memory_bytes=where.chip.memory_bytes,
        batch_size=share // parts,
        gradient_accumulation_steps=parts,
        max_seq_length=config.data.max_seq_length,
        precision=config.distribution.precision,
        remat=config.distribution.remat,
        hidden_dropout=rates.hidden,
        attention_dropout=rates.attention,
        quick=quick,
        model_flops=model_flops // where.num_cores,
        versions=versions,
    )
    logging.info("lowering the update for %s", where)
    hlo = replica_program.lower(config, where.num_cores)
    logging.info("compiling it: %s", "some minutes" if not quick else "quickly")
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
        # All but the update, a thousandth of it, is in the loop over parts.
        flops=program.flops * parts,
        accessed_bytes=program.accessed_bytes,
        random_bytes=cost.random_bytes,
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
    config: PretrainingConfig, where: Slice, *, quick: bool = False
) -> Estimate:
    """`estimate` in a process of its own, for one of many.

    A compiler that comes to its end takes only that with it, and all memory
    is given back: a large model takes some 10 GB.

    Raises:
        UserError: As `estimate` does, or if the process was killed.
    """
    logging.info("compiling for %s, in a process of its own", where)
    with concurrent.futures.ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        try:
            return pool.submit(_estimate_alone, config, where, quick).result()
        except concurrent.futures.process.BrokenProcessPool:
            raise UserError(
                "the compiler must come to an end",
                received="a process that was killed",
                remedy="This machine may have too little memory: a large model "
                "takes some 10 GB. Compile one at a time.",
            ) from None


def _estimate_alone(
    config: PretrainingConfig, where: Slice, quick: bool
) -> Estimate:
    # TensorFlow only traces here.
    tf.config.set_visible_devices([], "GPU")
    return estimate(config, where, quick=quick)


def _times(
    config: PretrainingConfig, where: Slice, done: Estimate, num_cycles: int
) -> dict[str, Any]:
    assert done.all_reduce_s is not None
    step_s = num_cycles / where.chip.clock_hz + done.all_reduce_s
    tokens = config.data.global_batch_size * config.data.max_seq_length
    return {
        "step_s": step_s,
        "mfu": done.model_flops / step_s / where.chip.peak_flops,
        "tokens_per_s": tokens / step_s,
        "tokens_per_s_chip": tokens / step_s / where.num_chips,
        **run_length(config, where, step_s),
    }


def run_length(
    config: PretrainingConfig, where: Slice, step_s: float | None
) -> dict[str, Any]:
    """Days and chip-hours of a whole run, as `Estimate` has them."""
    if step_s is None:
        return {"days": None, "chip_hours": None}
    hours = config.training.num_train_steps * step_s / 3600
    return {"days": hours / 24, "chip_hours": hours * where.num_chips}
