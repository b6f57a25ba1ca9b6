r"""Estimate memory and speed of a run on a TPU slice, without a TPU.

Compiles the trainer's step for one core, including the sums over all cores of
the slice, with Google's TPU compiler. Install it with
`pip install -e '.[cpu,tpu-compile]'`.

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
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from albert_tf.cluster import versions
from albert_tf.config import Config, PretrainingConfig, flags, setting
from albert_tf.errors import UserError
from tpu import topologies

if TYPE_CHECKING:
    from tpu.estimates import Estimate

GIB = 2**30
EXIT_DOES_NOT_COMPILE = 2


@dataclasses.dataclass(frozen=True)
class CompileCheckConfig(Config):
    """Settings of `python -m tpu.compile_check`."""

    run: PretrainingConfig = dataclasses.field(
        default_factory=PretrainingConfig
    )
    topology: str = setting(
        "",
        "Slice to compile for, by version and shape, e.g. v5e:16x16 or "
        "v4:4x4x8. Default: that of --accelerator_type.",
    )
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

    @property
    def where(self) -> topologies.Slice:
        """The slice to compile for.

        Raises:
            UserError: If there is none, or no such slice.
        """
        name = self.topology or self.accelerator_type
        if not name:
            raise UserError(
                "--topology is required",
                remedy="Example: --topology=v5e:16x16, or "
                "--flagfile=configs/hardware/v5e_256.flags.",
            )
        return topologies.parse(name)


def describe(found: "Estimate") -> str:
    """The estimate as text."""
    micro_batches = found.gradient_accumulation_steps
    rows = "examples" if found.packing == "none" else "packed rows"
    head = (
        f"{found.topology}: {found.num_chips} chips, {found.num_cores} cores\n"
        "step per core: "
        + f"{micro_batches} micro-batches of "
        * (micro_batches > 1)
        + f"{found.batch_size} {rows} of {found.max_seq_length} tokens, "
        f"{found.precision}, {'remat' if found.remat else 'no remat'}, dropout "
        f"{found.hidden_dropout:g}/{found.attention_dropout:g}\n"
        "the host runs the loop of steps_per_loop, and launches this program "
        "for each step\n\n"
    )
    if found.error:
        return f"{head}DOES NOT COMPILE. The compiler's error:\n{found.error}"
    lines = [f"  {name:18}{value}" for name, value in _metrics(found)]
    quick = " (--quick)" * found.quick
    return "\n".join([f"{head}compiles{quick}", *lines])


def _metrics(found: Any) -> Iterator[tuple[str, str]]:
    """Names and values to print for a program that compiles."""
    from tpu.estimates import LARGEST_RATIO

    peak, limit = found.peak_bytes / GIB, found.chip_memory_bytes / GIB
    yield (
        "HBM of a core",
        f"peak {peak:.2f} of {limit:.2f} GiB ({peak / limit:.0%})",
    )
    yield (
        "",
        f"arguments {found.argument_bytes / GIB:.2f} (weights, moments, batch),"
        f" temporaries {found.temporary_bytes / GIB:.2f}, code "
        f"{found.code_bytes / GIB:.2f} GiB",
    )
    yield (
        "operations",
        f"{found.flops / 1e12:.3g} TFLOP per core and step; "
        f"{found.model_flops / 1e12:.3g} by the model's formula",
    )
    yield (
        "all-reduce",
        f"{found.num_all_reduces} of {found.all_reduce_bytes / 1e6:.4g} MB in "
        f"total, at least {found.all_reduce_s * 1e3:.2f} ms",
    )
    if found.cycles is not None:
        unknown = "; TOO LOW: some loops have an unknown length"
        yield (
            "cycles",
            f"{found.cycles:,}, estimated"
            + unknown * (found.uncounted_loops > 0),
        )
        shortest = found.step_s * 1e3, found.days, found.chip_hours
        step_ms, days, hours = (LARGEST_RATIO * value for value in shortest)
        yield (
            "step time",
            f"{shortest[0]:.1f} to {step_ms:.1f} ms, all-reduce included",
        )
        yield "MFU", f"{found.mfu:.1%} at the shorter step time"
        yield (
            "tokens per second",
            f"{found.tokens_per_s_chip:,.0f} per chip, "
            f"{found.tokens_per_s:,.0f} in total, at the shorter step time",
        )
        yield (
            "complete run",
            f"{shortest[1]:.2f} to {days:.2f} days, "
            f"{shortest[2]:,.0f} to {hours:,.0f} chip-hours",
        )
    versions = ", ".join(f"{n} {v}" for n, v in found.versions.items())
    yield (
        "compiled in",
        f"{found.compile_s:.0f} s, {found.compile_cpu_s:.0f} s of CPU time; "
        f"{versions}",
    )


def main(config: CompileCheckConfig) -> int:
    """Compiles the step of the run in `config`; returns the exit status."""
    where = config.where
    # The compiler reads this variable when it is loaded.
    os.environ["LIBTPU_INIT_ARGS"] = " ".join(
        filter(None, (os.getenv("LIBTPU_INIT_ARGS"), config.libtpu_init_args))
    )
    versions.import_tensorflow()
    import tensorflow as tf

    from tpu.estimates import CAVEATS, estimate

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
