r"""What a run needs on a TPU slice or on GPUs, without these devices.

Compiles the step of `--runtime=pjrt`, including the sums over all devices, with
the compiler for TPUs or for NVIDIA's GPUs. Install them with
`pip install 'albert-tf[cpu,tpu-compile]'` or `'albert-tf[cpu,gpu-compile]'`.

    python -m tpu.compile_check --accelerator_type=a100-40g \
      --flagfile=configs/pretrain/base_v2_125k.flags \
      --precision=mixed_bfloat16 --gradient_accumulation_steps=64

    python -m tpu.compile_check \
      --flagfile=configs/pretrain/base_v2_125k.flags \
      --flagfile=configs/hardware/v5e_256.flags

--fit finds the largest micro-batch that fits. The exit status is 2 if the
program does not fit or does not compile.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping

from absl import logging

from albert_tf.cluster import versions
from albert_tf.config import Config, PretrainingConfig, flags, setting
from albert_tf.errors import UserError
from tpu import topologies

GIB = 2**30
EXIT_DOES_NOT_FIT = 2
MOST_COMPILATIONS = 6

# A part of the peak that well-tuned runs reach.
GOOD_MFU = 0.4

REMEDIES = (
    "Otherwise use --remat, or --precision=mixed_bfloat16 where the device has "
    "it."
)
CAVEATS = """
Nothing was run: memory is the compiler's plan. A step takes at least as long as
its matrix products at the peak of the device, and as its bytes at the bandwidth
of the memory. These are all operands and results of its kernels. Caches may
hold some, and a kernel may read a part of an operand: 5 % of the bytes at most,
in the programs that we looked at."""


@dataclasses.dataclass(frozen=True)
class CompileCheckConfig(Config):
    """Settings of `python -m tpu.compile_check`."""

    run: PretrainingConfig = PretrainingConfig()
    accelerator_type: str = setting(
        "",
        "Devices to compile for: a TPU slice by Google Cloud's name, e.g. "
        "v5litepod-256, or a kind of GPUs, e.g. a100-40g or 8xh100. An unknown "
        "name prints all kinds.",
    )
    fit: bool = setting(
        False,
        "Find the largest micro-batch that fits, by at most six compilations.",
    )
    quick: bool = setting(
        False,
        "For TPUs, compile with little optimization, in a quarter of the time. "
        "The memory is then correct to within a few per cent, and the bytes "
        "that a step moves are too many.",
    )
    price_per_device_hour: float = setting(
        0.0,
        "Price in dollars of an hour of a TPU chip or GPU, e.g. 1.2, to print "
        "the least price of the complete run.",
        at_least=0,
    )
    json: bool = setting(False, "Print JSON instead of text.")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A training step on some devices; values are per device unless stated.

    Results of the compiler are 0 or empty if the program does not compile.
    """

    devices: str  # e.g. "v5e:16x16" or "8xh100"
    num_devices: int
    num_chips: int  # that are paid for
    memory_bytes: int  # that a program may use
    batch_size: int  # rows of a micro-batch: examples, unless packed
    gradient_accumulation_steps: int
    precision: str
    packing: str
    num_train_steps: int
    model_flops: int  # of the model's formula, without recomputation
    peak_flops: float  # of a device in this precision
    versions: Mapping[str, str]  # of the compiler, JAX and TensorFlow
    error: str = ""  # of the compiler
    peak_bytes: int = 0  # with the arguments
    argument_bytes: int = 0  # weights, moments and batch
    alias_bytes: int = 0  # of arguments whose memory the results reuse
    flops: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bytes_moved: int = 0
    num_all_reduces: int = 0
    all_reduce_bytes: int = 0
    products_s: float = 0  # of all matrix products at their peaks
    memory_s: float = 0  # of bytes_moved at the bandwidth

    @property
    def fits(self) -> bool:
        return not self.error and self.peak_bytes <= self.memory_bytes

    @property
    def bound_s(self) -> float:
        """A lower bound of the time of a step."""
        return max(self.products_s, self.memory_s)

    @property
    def good_s(self) -> float:
        """The time of a step at `GOOD_MFU`, if that is above the bound."""
        at_part = self.model_flops / self.peak_flops / GOOD_MFU
        return max(at_part, self.bound_s)

    def fitting_rows(self) -> float:
        """Rows of a micro-batch that should fit.

        What does not depend on the rows are the arguments and, a third of
        these, the gradients. In a step that does not fit, XLA computes some
        products twice to save memory: without this, a row needs more.
        """
        fixed = self.argument_bytes * 4 / 3
        rows = (self.memory_bytes - fixed) / (self.peak_bytes - fixed)
        once = 1.0 if self.fits else self.model_flops / sum(self.flops.values())
        return rows * self.batch_size * min(1.0, once)

    def hours(self, step_s: float) -> float:
        """Hours of the complete run."""
        return self.num_train_steps * step_s / 3600

    def chip_hours(self, step_s: float) -> float:
        """Hours of the complete run, of all chips or GPUs together."""
        return self.hours(step_s) * self.num_chips


def estimate(
    config: PretrainingConfig,
    where: topologies.Devices,
    *,
    quick: bool = False,
) -> Estimate:
    """Compiles the first step of a run for a slice or for GPUs.

    Raises:
        UserError: If the batch cannot be divided over the devices, or if the
            compiler is missing or does not know them.
    """
    # Imported here so that --help answers at once.
    import tensorflow as tf

    from albert_tf.cluster.strategy import per_replica_batch_size
    from albert_tf.training.cost import flops_per_step
    from tpu import compiler

    data, precision = config.data, config.distribution.precision
    micro_batches = data.gradient_accumulation_steps
    batch_size = per_replica_batch_size(data, where.num_devices)
    installed = compiler.check_installed(where.request["platform"])
    devices = compiler.find_devices(where)
    flops = flops_per_step(
        config.model,
        data,
        config.training.sentence_objective,
        config.num_token_labels,
    )
    planned = Estimate(
        devices=where.name,
        num_devices=where.num_devices,
        num_chips=where.num_chips,
        memory_bytes=where.memory_bytes,
        batch_size=batch_size // micro_batches,
        gradient_accumulation_steps=micro_batches,
        precision=precision,
        packing=data.packing,
        num_train_steps=config.training.num_train_steps,
        model_flops=flops // where.num_devices,
        peak_flops=where.peak_flops[precision.removeprefix("mixed_")],
        versions={**installed, "tensorflow": tf.__version__},
    )
    logging.info(
        "compiling the step for %s, %d rows at a time (takes minutes)",
        where.name,
        planned.batch_size,
    )
    try:
        program = compiler.compile_step(config, devices, quick=quick)
    except compiler.DoesNotCompileError as error:
        return dataclasses.replace(planned, error=str(error))
    found = list(compiler.operations(program.module, micro_batches))
    products = compiler.count_flops(found)
    moved = compiler.count_bytes(found)
    sums = compiler.all_reduces(found)
    return dataclasses.replace(
        planned,
        peak_bytes=program.peak_bytes,
        argument_bytes=program.argument_bytes,
        alias_bytes=program.alias_bytes,
        flops=products,
        bytes_moved=moved,
        num_all_reduces=len(sums),
        all_reduce_bytes=sum(sums),
        products_s=sum(
            number / where.peak_flops[dtype]
            for dtype, number in products.items()
        ),
        memory_s=moved / where.bandwidth,
    )


def fit(
    config: PretrainingConfig,
    where: topologies.Devices,
    *,
    quick: bool = False,
) -> Estimate:
    """The estimate of the largest micro-batch that fits.

    If none fits, that of the smallest one that was tried. It tries at most
    `MOST_COMPILATIONS`, and ends early when it knows the largest.
    """
    total = config.data.global_batch_size // where.num_devices
    tried: list[Estimate] = []
    rows = total // config.data.gradient_accumulation_steps
    while rows and len(tried) < MOST_COMPILATIONS:
        data = dataclasses.replace(
            config.data, gradient_accumulation_steps=total // rows
        )
        changed = dataclasses.replace(config, data=data)
        tried.append(estimate(changed, where, quick=quick))
        rows = _next_rows(tried, total)
    fitting = [one for one in tried if one.fits]
    if fitting:
        return max(fitting, key=lambda one: one.batch_size)
    return min(tried, key=lambda one: one.batch_size)


def _next_rows(tried: list[Estimate], total: int) -> int:
    """Rows of the micro-batch to try next; 0 if the largest is known."""
    fits = max((one.batch_size for one in tried if one.fits), default=0)
    too_large = min(
        (one.batch_size for one in tried if not one.fits), default=total + 1
    )
    left = [n for n in range(fits + 1, too_large) if total % n == 0]
    if not left:
        return 0
    newest = tried[-1]
    if newest.error:
        return left[len(left) // 2]
    below = [number for number in left if number <= newest.fitting_rows()]
    return max(below, default=left[0])


def describe(found: Estimate, price_per_device_hour: float = 0.0) -> str:
    """The estimate as text."""
    if found.error:
        return f"DOES NOT COMPILE. The compiler's error:\n{found.error}"
    limit = f"{found.memory_bytes / GIB:.2f}"
    micro_batches = found.gradient_accumulation_steps
    shown = {
        "rows per device": f"{micro_batches} x {found.batch_size}",
        "memory, GiB": f"{found.peak_bytes / GIB:.2f} of {limit}, with "
        f"{found.argument_bytes / GIB:.2f} of weights, moments and batch",
        "products, GFLOP": ", ".join(
            f"{number / 1e9:,.0f} in {dtype}"
            for dtype, number in found.flops.items()
        ),
        "bytes moved, GB": f"{found.bytes_moved / 1e9:,.1f}",
    }
    if found.num_all_reduces:
        shown["all-reduce, MB"] = (
            f"{found.all_reduce_bytes / 1e6:,.1f} in {found.num_all_reduces}"
        )
    limited_by = "products" if found.bound_s == found.products_s else "memory"
    mfu = found.model_flops / found.bound_s / found.peak_flops
    shown["a step, ms"] = (
        f"not faster than {1e3 * found.bound_s:,.1f}, by its {limited_by}; "
        f"that is {mfu:.0%} of the peak"
    )
    shown["the run, hours"] = _times(found, found.hours)
    if price_per_device_hour:
        shown["the run, dollars"] = _times(
            found, lambda s: price_per_device_hour * found.chip_hours(s)
        )
    verdict = "fits" if found.fits else "DOES NOT FIT. " + _remedy(found)
    lines = [f"  {name:18}{text}" for name, text in shown.items()]
    return "\n".join([verdict, *lines, CAVEATS])


def _times(found: Estimate, of: Callable[[float], float]) -> str:
    """The bound of the complete run, and what it would be at `GOOD_MFU`."""
    bound = f"not less than {of(found.bound_s):,.1f}"
    if found.good_s == found.bound_s:
        return f"{bound}; {GOOD_MFU:.0%} of the peak cannot be reached"
    return f"{bound}; {of(found.good_s):,.1f} at {GOOD_MFU:.0%} of the peak"


def _remedy(found: Estimate) -> str:
    """What to try, with the numbers that should fit."""
    rows = int(found.fitting_rows())
    total = found.gradient_accumulation_steps * found.batch_size
    sizes = [size for size in range(1, rows + 1) if total % size == 0]
    if not sizes:
        return (
            "Not even one row should fit: use --remat, a device with more "
            "memory, or a smaller model."
        )
    return (
        f"About {rows} rows should: try --gradient_accumulation_steps="
        f"{total // sizes[-1]}, or --fit. {REMEDIES}"
    )


def _check_precision(
    config: PretrainingConfig, where: topologies.Devices
) -> None:
    """Refuses bfloat16 on devices that do not multiply in it."""
    precision = config.distribution.precision
    if precision.removeprefix("mixed_") not in where.peak_flops:
        raise UserError(
            f"precision must be float32: {where.name} has no bfloat16 products",
            received=precision,
            remedy="Use --precision=float32.",
        )


def main(config: CompileCheckConfig) -> int:
    """Compiles the step of the run in `config`; returns the exit status."""
    config.require("accelerator_type")
    where = topologies.parse(config.accelerator_type)
    _check_precision(config.run, where)
    versions.import_tensorflow()
    import tensorflow as tf

    # TensorFlow only traces the program, so it needs no GPU.
    tf.config.set_visible_devices([], "GPU")
    search = fit if config.fit else estimate
    found = search(config.run, where, quick=config.quick)
    if config.json:
        print(json.dumps(dataclasses.asdict(found), indent=1))
    else:
        said = describe(found, config.price_per_device_hour)
        print(where.description, said, sep="\n")
    return 0 if found.fits else EXIT_DOES_NOT_FIT


if __name__ == "__main__":
    flags.run(main, CompileCheckConfig)
