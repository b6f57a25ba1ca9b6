"""The device that a program is compiled for, and its choice of kernels."""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any, TypeVar, cast

from albert_tf.config import DistributionConfig

FormulaT = TypeVar("FormulaT", bound=Callable[..., Any])

# Kernels by the name of the formula that they replace; `kernels` adds them.
KERNELS: dict[str, Callable[..., Any]] = {}
KERNEL_NAMES = frozenset(
    {
        "add_bias",
        "attention",
        "bias_dropout_add_norm",
        "bias_gelu",
        "layer_norm",
        "remat",
    }
)


@dataclasses.dataclass(frozen=True)
class ProgramTarget:
    """The device of a program, and the kernels that it uses.

    Attributes:
        device_type: "CPU", "GPU" or "TPU".
        fuse: Whether XLA compiles the functions that are marked with
            `fusion.fused`.
        jit_compile: Whether the program asks XLA to compile the forward and
            the backward pass. TPUs compile them without a request.
        recomputes_logit_gradients: Whether the gradients of the masked-LM
            logits are computed wherever they are read. Only for TPUs.
        float32_score_gradients: Whether the gradients of attention scores are
            stored in float32, whatever the compute dtype. Only for TPUs.
        kernels: Names of the formulas that are replaced by their kernels.
    """

    device_type: str = "CPU"
    fuse: bool = False
    jit_compile: bool = False
    recomputes_logit_gradients: bool = False
    float32_score_gradients: bool = False
    kernels: frozenset[str] = KERNEL_NAMES

    @classmethod
    def from_config(
        cls, config: DistributionConfig, device_type: str
    ) -> "ProgramTarget":
        """The target of a run's programs on devices of a type.

        Args:
            config: `fuse_on_cpu` has an effect on CPUs, unless tensorflow-tpu
                is installed, `jit_compile` on GPUs,
                `recompute_logit_gradients` and `float32_score_gradients` on
                TPUs. With `plain_formulas`, no kernels are used, and the last
                two have no effect.
            device_type: "CPU", "GPU" or "TPU".
        """
        fuses = device_type == "CPU" and config.fuse_on_cpu
        uses_tpu_kernels = device_type == "TPU" and not config.plain_formulas
        return cls(
            device_type,
            fuse=fuses and _can_compile_for_cpus(),
            jit_compile=device_type == "GPU" and config.jit_compile,
            recomputes_logit_gradients=uses_tpu_kernels
            and config.recompute_logit_gradients,
            float32_score_gradients=uses_tpu_kernels
            and config.float32_score_gradients,
            kernels=frozenset() if config.plain_formulas else KERNEL_NAMES,
        )

    @property
    def is_tpu(self) -> bool:
        """Whether the program runs on TPUs."""
        return self.device_type == "TPU"

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles the complete forward and backward pass."""
        return self.is_tpu or self.jit_compile

    @property
    def computes_masks(self) -> bool:
        """Whether dropout masks are computed by arithmetic.

        A compiler merges that arithmetic into the operation that reads the
        mask. Without a compiler, TensorFlow's random number generator is
        faster. The choice does not depend on the kernels in use, so a program
        without kernels drops the same entries.
        """
        return self.is_compiled or self.fuse

    @property
    def has_products_by_heads(self) -> bool:
        """Whether attention takes and gives arrays by heads.

        Its kernel for TPUs does; see `attention.ToHeads`.
        """
        return self.is_tpu and "attention" in self.kernels

    def fastest(self, formula: FormulaT) -> FormulaT:
        """The kernel of a formula if this target uses it, else the formula.

        Args:
            formula: A function of `layers`, `attention` or `remat`.
        """
        name = getattr(formula, "__name__", "")
        if name not in self.kernels:
            return formula
        kernel = functools.partial(KERNELS[name], target=self)
        return cast(FormulaT, kernel)


def _can_compile_for_cpus() -> bool:
    """Whether XLA can compile for CPUs. In tensorflow-tpu, it cannot."""
    try:
        importlib.metadata.version("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


DEFAULT_TARGET = ProgramTarget()
