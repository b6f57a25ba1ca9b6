"""Compares flags of the compiler, LIBTPU_INIT_ARGS, for the step of a run."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from tpu.estimates import Estimate, estimate_apart, summary_of_error
from tpu.topologies import Slice

GIB = 2**30
DEFAULT = "default"
HEADER = (
    "  HBM GiB  million cycles  step ms   change  compile s  LIBTPU_INIT_ARGS"
)


def compare(
    config: PretrainingConfig,
    where: Slice,
    sets: Sequence[str],
    *,
    quick: bool = False,
    timeout_s: int = 0,
) -> Iterator[tuple[str, Estimate]]:
    """Compiles a step without flags, then once with each set of flags.

    Args:
        sets: Flags that are added to LIBTPU_INIT_ARGS, separated by spaces.
        timeout_s: Seconds after which one compilation is ended; 0: no limit.

    Yields:
        `DEFAULT` or the set, and its estimate. If the process of a set ends
        without an estimate, e.g. at an unknown flag, `error` says so.

    Raises:
        UserError: If there is no estimate without flags.
    """
    default = estimate_apart(config, where, quick=quick, timeout_s=timeout_s)
    yield DEFAULT, default
    for flags in sets:
        try:
            found = estimate_apart(
                config,
                where,
                quick=quick,
                compiler_flags=flags,
                timeout_s=timeout_s,
            )
        except UserError as error:
            nothing: dict[str, Any] = {
                field.name: field.default
                for field in dataclasses.fields(Estimate)
                if field.default is None
            }
            found = dataclasses.replace(default, error=error.fault, **nothing)
        yield flags, found


def row(flags: str, found: Estimate, default: Estimate) -> str:
    """A row of the table, to print under `HEADER`.

    Args:
        default: The estimate without flags, with whose cycles, or HBM if it has
            no cycles, the row is compared.
    """
    if found.error:
        reason = summary_of_error(found.error)
        return f"  does not compile with {flags}: {reason}"
    assert found.peak_bytes is not None and found.compile_s is not None
    times = f"{'-':>14}  {'-':>7}"
    if found.cycles is not None and found.step_s is not None:
        times = f"{found.cycles / 1e6:14.1f}  {found.step_s * 1e3:7.1f}"
    change = ""
    if found is not default and default.peak_bytes is not None:
        ratio = found.peak_bytes / default.peak_bytes
        if found.cycles is not None and default.cycles is not None:
            ratio = found.cycles / default.cycles
        change = f"{ratio - 1:+.1%}"
    return (
        f"{found.peak_bytes / GIB:9.2f}  {times}  {change:>7}  "
        f"{found.compile_s:9.0f}  {flags}"
    )
