"""The device that a program is compiled for."""

import dataclasses
import importlib.metadata

from albert_tf.config import DistributionConfig


@dataclasses.dataclass(frozen=True)
class ProgramTarget:
    """The device of a program, and how the program is compiled.

    Attributes:
        device_type: "CPU", "GPU" or "TPU".
        fuse: Whether XLA compiles the functions marked with `kernels.fused`.
        jit_compile: Whether the program asks XLA to compile the forward and
            the backward pass. TPUs compile them without a request.
    """

    device_type: str = "CPU"
    fuse: bool = False
    jit_compile: bool = False

    @classmethod
    def from_config(
        cls, config: DistributionConfig, device_type: str
    ) -> "ProgramTarget":
        """The target of a run; ignores settings for other types of devices."""
        if not config.jit_compile:
            return cls(device_type)
        return cls(
            device_type,
            fuse=device_type == "CPU" and _can_compile_for_cpus(),
            jit_compile=device_type == "GPU",
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
        compiler, TensorFlow's random number generator is faster.
        """
        return self.is_compiled or self.fuse


def _can_compile_for_cpus() -> bool:
    """Whether XLA can compile for CPUs. In tensorflow-tpu, it cannot."""
    try:
        importlib.metadata.version("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


DEFAULT_TARGET = ProgramTarget()
