"""The device that a program is compiled for, and its choice of kernels."""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

import keras
import tensorflow as tf

from albert_tf.config import DistributionConfig

if TYPE_CHECKING:
    from albert_tf.modeling.gradient_sums import GradientSums

P = ParamSpec("P")
R = TypeVar("R")


class Formula(Generic[P, R]):
    """A formula of the model, and the kernel that may replace it."""

    def __init__(self, plain: Callable[P, R], kernel: Callable[..., R]) -> None:
        functools.update_wrapper(self, plain)
        self.plain = plain
        self.kernel = kernel

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The plain formula."""
        return self.plain(*args, **kwargs)


def has_kernel(
    kernel: Callable[..., R],
) -> Callable[[Callable[P, R]], Formula[P, R]]:
    """Decorates a formula with its kernel; see `ProgramTarget.fastest`.

    Args:
        kernel: Takes the same arguments and `target`, the `ProgramTarget`.
    """
    return lambda plain: Formula(plain, kernel)


@dataclasses.dataclass(frozen=True)
class ProgramTarget:
    """The device of a program, and the kernels that it uses.

    Attributes:
        device_type: "CPU", "GPU" or "TPU".
        fuse: Whether XLA compiles the functions marked with `kernels.fused`.
        jit_compile: Whether the program asks XLA to compile the forward and
            the backward pass. TPUs compile them without a request.
        recomputes_logit_gradients: Whether the gradients of the masked-LM
            logits are computed wherever they are read. Only for TPUs.
        float32_score_gradients: Whether the gradients of attention scores are
            stored in float32, whatever the compute dtype. Only for TPUs.
        uses_kernels: Whether kernels replace their formulas.
        gradient_sums: Joins the reads of shared kernels; see `GradientSums`.
            None reads each kernel separately.
    """

    device_type: str = "CPU"
    fuse: bool = False
    jit_compile: bool = False
    recomputes_logit_gradients: bool = False
    float32_score_gradients: bool = False
    uses_kernels: bool = True
    gradient_sums: "GradientSums | None" = None

    @classmethod
    def from_config(
        cls, config: DistributionConfig, device_type: str
    ) -> "ProgramTarget":
        """The target of a run; ignores settings for other types of devices."""
        fuses = device_type == "CPU" and config.fuse_on_cpu
        on_tpu = device_type == "TPU" and not config.plain_formulas
        return cls(
            device_type,
            fuse=fuses and _can_compile_for_cpus(),
            jit_compile=device_type == "GPU" and config.jit_compile,
            recomputes_logit_gradients=on_tpu
            and config.recompute_logit_gradients,
            float32_score_gradients=on_tpu and config.float32_score_gradients,
            uses_kernels=not config.plain_formulas,
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

        A compiler merges it into the operation that reads the mask. Without a
        compiler, TensorFlow's random number generator is faster. A program
        without kernels drops the same entries.
        """
        return self.is_compiled or self.fuse

    @property
    def has_products_by_heads(self) -> bool:
        """Whether attention takes and gives arrays by heads; see `ToHeads`."""
        return self.is_tpu and self.uses_kernels

    def fastest(self, formula: Formula[P, R]) -> Callable[P, R]:
        """The kernel of a formula if this target uses kernels, else itself."""
        if not self.uses_kernels:
            return formula
        return functools.partial(formula.kernel, target=self)

    def read(
        self,
        variable: keras.Variable,
        dtype: str,
        shape: Sequence[int] | None = None,
    ) -> tf.Tensor:
        """A kernel for one product.

        Args:
            variable: float32; the kernel.
            dtype: Of the result.
            shape: Of the result, the same in all calls with a variable; None
                is the shape of the variable.
        """
        sums = self.gradient_sums
        if sums is not None and sums.joins(variable):
            return sums.read(variable, dtype, shape)
        kernel = tf.cast(variable, dtype)
        return kernel if shape is None else tf.reshape(kernel, shape)


def _can_compile_for_cpus() -> bool:
    """Whether XLA can compile for CPUs. In tensorflow-tpu, it cannot."""
    try:
        importlib.metadata.version("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


DEFAULT_TARGET = ProgramTarget()
