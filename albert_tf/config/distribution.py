"""Settings of devices, number formats and compilation."""

import dataclasses

from albert_tf.config.settings import Config, setting


@dataclasses.dataclass(frozen=True)
class DistributionConfig(Config):
    """Devices, number formats and compilation.

    Example:
        >>> config = DistributionConfig(precision="mixed_bfloat16", remat=True)
        >>> config.result_settings()  # remat does not change the result
        {'precision': 'mixed_bfloat16'}
    """

    strategy: str = setting(
        "auto",
        "tf.distribute strategy. auto selects tpu if this machine has a TPU or "
        "tpu_name is not local; otherwise multi_worker if TF_CONFIG is set; "
        "otherwise mirrored if this machine has several GPUs or "
        "num_logical_cpus is above 1; otherwise one_device.",
        choices=("auto", "tpu", "mirrored", "multi_worker", "one_device"),
        affects="nothing",
    )
    tpu_name: str = setting(
        "local",
        "TPU to connect to: local for the TPU of this machine, a TPU VM that "
        "is not part of a larger slice; or grpc://HOST:8470,... for the "
        "servers of all hosts of a slice.",
        affects="nothing",
    )
    num_logical_cpus: int = setting(
        1,
        "Number of logical devices that the CPU is split into, to try "
        "--strategy=mirrored on a machine without accelerators.",
        at_least=1,
        affects="nothing",
    )
    precision: str = setting(
        "float32",
        "Keras dtype policy of the encoder. With mixed_bfloat16, variables, "
        "LayerNorm, softmax, logits and the optimizer's update stay float32.",
        choices=("float32", "mixed_bfloat16"),
        affects="result",
    )
    remat: bool = setting(
        False,
        "Compute each block a second time in the backward pass instead of "
        "keeping its activations. This needs less memory and about a third "
        "more time; the gradients are the same.",
        affects="nothing",
    )
    jit_compile: bool = setting(
        True,
        "On GPUs, let XLA compile the forward and the backward pass. "
        "--nojit_compile runs their operations one by one, which should be "
        "slower. On TPUs, the step is always compiled; for CPUs, see "
        "--fuse_on_cpu.",
        affects="nothing",
    )
    fuse_on_cpu: bool = setting(
        True,
        "On CPUs, let XLA compile the operations between matrix products. "
        "--nofuse_on_cpu runs them one by one, which is slower.",
        affects="nothing",
    )
    recompute_logit_gradients: bool = setting(
        False,
        "On TPUs, compute the gradients of the masked-LM logits wherever they "
        "are read, instead of storing them. The results are the same except "
        "for rounding. By the TPU compiler's estimate, base takes 1 % fewer "
        "cycles with it on v5e.",
        affects="nothing",
    )
    float32_score_gradients: bool = setting(
        False,
        "On TPUs, store the gradients of attention scores in float32 instead "
        "of bfloat16, with the same results. Use it where docs/tpu.md lists "
        "it for the recipe: the compiler estimates fewer cycles there.",
        affects="nothing",
    )
    plain_formulas: bool = setting(
        False,
        "Compute the model by its plain formulas, without the kernels of "
        "albert_tf/modeling/kernels. This is slower and needs more memory; the "
        "results are the same except for rounding. Use it to find out whether "
        "a kernel is wrong.",
        affects="nothing",
    )
    worker_timeout_s: int = setting(
        600,
        "Time in seconds after which a worker that does not answer counts as "
        "lost, and the job ends; also the longest time to connect to the "
        "servers of a TPU slice.",
        at_least=1,
        affects="nothing",
    )
    hang_timeout_s: int = setting(
        1800,
        "Longest time in seconds that a run on TPUs or with several workers "
        "may take to start, to compile, to evaluate one batch, to save a "
        "checkpoint or return to one, or to search a shard for damaged "
        "records. A device loop that is already compiled may take ten times "
        "its usual time, and at least 5 minutes (or hang_timeout_s, if that "
        "is less). A run that takes longer counts as hung: it logs the stack "
        "of each thread and exits with status 75. 0: no limit.",
        at_least=0,
        affects="nothing",
    )
    peak_tflops: float = setting(
        0.0,
        "Peak of one device, in 10^12 floating-point operations per second, "
        "e.g. 197 for TPU v5e in bfloat16. The log reports the fraction of "
        "the peak that training reaches (MFU). 0 uses the known peak of a TPU "
        "or GPU, and logs no MFU for other devices.",
        at_least=0,
        affects="nothing",
    )
