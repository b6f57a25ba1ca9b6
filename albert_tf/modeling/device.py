"""The device that a program runs on, and choices that depend only on it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Device:
    """The properties of a program that kernels and dropout masks depend on.

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

    Example:
        >>> [Device("CPU", fuse).computes_masks for fuse in (True, False)]
        [True, False]
    """

    device_type: str = "CPU"
    fuse: bool = False
    jit_compile: bool = False
    recomputes_logit_gradients: bool = False
    float32_score_gradients: bool = False

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
