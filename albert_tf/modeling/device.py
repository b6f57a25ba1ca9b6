"""The device that a program runs on, and what depends on it alone."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Device:
    """What kernels and dropout masks need to know of a program.

    Attributes:
        device_type: "CPU", "GPU" or "TPU".
        fuse: Whether XLA compiles the functions that are marked with
            `fusion.fused`.
    """

    device_type: str = "CPU"
    fuse: bool = False

    @property
    def is_tpu(self) -> bool:
        """Whether the program runs on TPUs."""
        return self.device_type == "TPU"

    @property
    def computes_masks(self) -> bool:
        """Whether dropout masks are computed by arithmetic.

        A compiler merges that arithmetic into the operation that reads the
        mask. Otherwise TensorFlow's random number generator is faster. The
        kernels in use have no influence, so that a program without them
        drops the same entries.
        """
        return self.is_tpu or self.fuse
