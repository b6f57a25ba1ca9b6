r"""Does a run fit a TPU slice, and how fast should it be? With no TPU.

The trainer's own update, of one core, with the sums over all cores of the
slice, is compiled by Google's TPU compiler, which needs
`pip install -e '.[cpu,tpu-compile]'` and no more than the pip packages.

    python -m tpu.compile_check \
      --flagfile=configs/pretrain/base_v2_125k.flags \
      --precision=mixed_bfloat16 --topology=v5e:16x16

In seconds instead of minutes, the memory alone; other batch sizes, with and
without recomputation and dropout:

    python -m tpu.compile_check ... --quick
    python -m tpu.compile_check ... --sweep --sweep_batch_sizes=8,16,32 \
      --output_file=build/sweep.png

Exits with status 2 if the program does not compile, e.g. for lack of memory;
a sweep, if none of its programs does.
"""

import dataclasses
import json
import textwrap

import tensorflow as tf

from albert_tf.config import (
    flags,
)
from albert_tf.errors import UserError, first_line
from albert_tf.io import files
from tpu import sweep, topologies
from tpu.config import (
    CompileCheckConfig,
)
from tpu.estimates import CAVEATS, Estimate, estimate, estimate_apart

GIB = 2**30
EXIT_DOES_NOT_COMPILE = 2


def describe(found: Estimate) -> str:
    """What was found out, for a person."""
    parts = found.gradient_accumulation_steps
    lines = [
        f"{found.topology}: {found.num_chips} chips, {found.num_cores} cores",
        f"an update of {found.batch_size} examples of "
        f"{found.max_seq_length} pieces on each core"
        + (f", {parts} times over" if parts > 1 else "")
        + f", {found.precision}, "
        + ("recomputed" if found.remat else "not recomputed")
        + f", dropout {found.hidden_dropout:g}/{found.attention_dropout:g}",
        "the loop of steps_per_loop runs on the host and sends this program "
        "each time",
        "",
    ]
    if found.error:
        lines += ["DOES NOT COMPILE. The compiler says:", found.error]
        return "\n".join(lines)
    lines += ["compiles" + (", with little effort (--quick)" * found.quick)]
    lines += [f"  {name:18}{value}" for name, value in _figures(found)]
    return "\n".join(lines)


def _figures(found: Estimate) -> list[tuple[str, str]]:
    """Names and values of a program that compiles."""
    # Of a program that compiles none of these is missing.
    assert found.peak_bytes is not None and found.argument_bytes is not None
    assert found.temporary_bytes is not None and found.code_bytes is not None
    assert found.flops is not None and found.accessed_bytes is not None
    assert found.all_reduce_bytes is not None and found.all_reduce_s is not None
    assert found.compile_s is not None and found.compile_cpu_s is not None
    limit = found.chip_memory_bytes / GIB
    peak = found.peak_bytes / GIB
    parts = found.gradient_accumulation_steps
    shown = [
        (
            "HBM of a core",
            f"{peak:.2f} GiB of {limit:.2f} at the peak ({peak / limit:.0%})",
        ),
        (
            "",
            f"arguments {found.argument_bytes / GIB:.2f} (weights, moments, "
            f"batch), temporaries {found.temporary_bytes / GIB:.2f}, code "
            f"{found.code_bytes / GIB:.2f} GiB",
        ),
        (
            "operations",
            f"{found.flops / 1e12:.3g} TFLOP a core and update; of the model "
            f"{found.model_flops / 1e12:.3g}",
        ),
        (
            "memory traffic",
            f"{found.accessed_bytes / 1e9:.4g} GB"
            + (
                f", of the update and one of the {parts} parts of its batch"
                if parts > 1
                else ""
            ),
        ),
        (
            "all-reduce",
            f"{found.all_reduce_bytes / 1e6:.4g} MB in "
            f"{found.num_all_reduces}, at least "
            f"{found.all_reduce_s * 1e3:.2f} ms",
        ),
    ]
    if found.random_bytes:
        shown.append(
            (
                "random bits",
                f"{found.random_bytes / 1e6:.4g} MB of the chip's generator, "
                "whose time is not known",
            )
        )
    if found.cycles is not None:
        assert found.step_s and found.mfu and found.tokens_per_s
        assert found.tokens_per_s_chip and found.days and found.chip_hours
        shown += [
            (
                "cycles",
                f"{found.cycles:,}, estimated"
                + (
                    "; TOO FEW: some loops do not tell how often they run"
                    if found.uncounted_loops
                    else ""
                ),
            ),
            ("an update", f"{found.step_s * 1e3:.1f} ms, the all-reduce in it"),
            ("MFU", f"{found.mfu:.1%}"),
            (
                "tokens a second",
                f"{found.tokens_per_s_chip:,.0f} a chip, "
                f"{found.tokens_per_s:,.0f} in all",
            ),
            (
                "the run",
                f"{found.days:.2f} days, {found.chip_hours:,.0f} chip-hours",
            ),
        ]
    versions = ", ".join(f"{n} {v}" for n, v in found.versions.items())
    shown.append(
        (
            "compiled in",
            f"{found.compile_s:.0f} s, {found.compile_cpu_s:.0f} s of a "
            f"processor; {versions}",
        )
    )
    return shown


def main(config: CompileCheckConfig) -> int:
    """Compiles what the flags say; returns the exit status."""
    config.require("topology")
    where = topologies.parse(config.topology)
    if not config.sweep:
        # TensorFlow only traces here.
        tf.config.set_visible_devices([], "GPU")
        found = estimate(config.run, where, quick=config.quick)
        if config.json:
            print(json.dumps(dataclasses.asdict(found), indent=1))
        else:
            print(f"{describe(found)}\n\n{textwrap.fill(CAVEATS)}")
        return EXIT_DOES_NOT_COMPILE if found.error else 0
    return _sweep(config, where)


def _sweep(config: CompileCheckConfig, where: topologies.Slice) -> int:
    every = []
    if config.output_file:
        _check_place(config.output_file)
    if not config.json:
        print(f"{where}, {config.run.distribution.precision}")
        print(sweep.HEADER, flush=True)
    for variant in sweep.variants(config.run, where, config.batch_sizes()):
        every.append(estimate_apart(variant, where, quick=config.quick))
        if not config.json:
            print(sweep.row(every[-1]), flush=True)
    if config.json:
        print(json.dumps([dataclasses.asdict(found) for found in every]))
    else:
        print(f"\n{textwrap.fill(CAVEATS)}")
    if config.output_file:
        files.write_bytes(config.output_file, sweep.picture(every))
    compiled = any(not found.error for found in every)
    return 0 if compiled else EXIT_DOES_NOT_COMPILE


def _check_place(path: str) -> None:
    """Refuses a file that cannot be written, before an hour of compiling."""
    try:
        with files.written_whole(path + ".try"):
            pass
        files.remove(path + ".try")
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            "output_file must be a file that can be written",
            received=f"{path}: {first_line(error)}",
        ) from None


if __name__ == "__main__":
    flags.run(main, CompileCheckConfig)
