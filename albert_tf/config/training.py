"""Settings of a run: optimizer, devices, schedule, checkpoints."""

import dataclasses

from albert_tf.config.data import SENTENCE_OBJECTIVES, DataConfig
from albert_tf.config.model import ModelConfig
from albert_tf.config.settings import Config, setting
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Config):
    """The update; defaults are the published ones."""

    optimizer: str = setting(
        "lamb",
        "Optimizer.",
        choices=("lamb", "adamw"),
        affects="result",
        in_program=True,
    )
    learning_rate: float = setting(
        0.00176,
        "Peak learning rate, for a batch of 4096.",
        at_least=0,
        affects="result",
        in_program=True,
    )
    num_warmup_steps: int = setting(
        3125,
        "Updates of linear warm-up.",
        at_least=0,
        affects="result",
        in_program=True,
    )
    poly_power: float = setting(
        1.0,
        "Power of the polynomial decay to 0.",
        at_least=0,
        affects="result",
        in_program=True,
    )
    weight_decay_rate: float = setting(
        0.01,
        "Weight decay, not of LayerNorm and biases.",
        at_least=0,
        affects="result",
        in_program=True,
    )
    beta_1: float = setting(
        0.9,
        "Decay of the mean.",
        at_least=0,
        below=1,
        affects="result",
        in_program=True,
    )
    beta_2: float = setting(
        0.999,
        "Decay of the mean square.",
        at_least=0,
        below=1,
        affects="result",
        in_program=True,
    )
    epsilon: float = setting(
        1e-6,
        "Added to the root of the mean square.",
        at_least=1e-20,
        affects="result",
        in_program=True,
    )
    clip_norm: float = setting(
        1.0,
        "Largest global norm of the gradients; 0 does not clip.",
        at_least=0,
        affects="result",
        in_program=True,
    )
    clip_scope: str = setting(
        "global",
        "Clip the gradients of the whole batch (global), or, as published, "
        "each replica's before they are averaged (per_replica).",
        choices=("global", "per_replica"),
        affects="result",
        in_program=True,
    )


@dataclasses.dataclass(frozen=True)
class DistributionConfig(Config):
    """Devices and number formats."""

    strategy: str = setting(
        "auto",
        "tf.distribute strategy; auto takes the TPU, the workers of "
        "TF_CONFIG, or all local GPUs, whichever is found first.",
        choices=("auto", "tpu", "mirrored", "multi_worker", "one_device"),
        affects="nothing",
    )
    tpu_name: str = setting(
        "local",
        "TPU to connect to: local on a TPU VM of one host; the servers of the "
        "hosts of a slice, grpc://HOST:8470,...; or a name.",
        affects="nothing",
    )
    tpu_zone: str = setting(
        "", "Zone of a named TPU, e.g. us-central2-b.", affects="nothing"
    )
    gcp_project: str = setting("", "Project of a named TPU.", affects="nothing")
    num_logical_cpus: int = setting(
        1,
        "Split the CPU into so many devices, to try --strategy=mirrored "
        "where there is no accelerator.",
        at_least=1,
        affects="nothing",
    )
    precision: str = setting(
        "float32",
        "Keras dtype policy of the encoder: float32 or mixed_bfloat16 "
        "(variables, LayerNorm, softmax, logits and update stay float32).",
        choices=("float32", "mixed_bfloat16"),
        affects="result",
        in_program=True,
    )
    remat: bool = setting(
        False,
        "Compute each block a second time in the backward pass instead of "
        "keeping what it computed: less memory, about a third more time; the "
        "gradients are the same.",
        affects="nothing",
        in_program=True,
    )
    jit_compile: bool = setting(
        False,
        "Compile the step with XLA on GPUs. TPUs always do; on CPUs it is "
        "slower.",
        affects="nothing",
    )
    fuse_on_cpu: bool = setting(
        True,
        "On CPUs, let XLA compile what stands between matrix products; else "
        "TensorFlow computes one operation after the other, which is slower.",
        affects="nothing",
    )
    worker_timeout_s: int = setting(
        600,
        "Seconds after which a worker that does not answer is taken for lost, "
        "and the job ends.",
        at_least=1,
        affects="nothing",
    )
    peak_tflops: float = setting(
        0.0,
        "Peak of one device in 10^12 floating-point operations a second, for "
        "the share of it that is used (MFU), e.g. 197 for TPU v5e in bfloat16; "
        "0 takes that of a known TPU or GPU, and gives no share otherwise.",
        at_least=0,
        affects="nothing",
    )


@dataclasses.dataclass(frozen=True)
class InitializationConfig(Config):
    """The weights that a new run begins with; one that goes on has its own."""

    # They acted at step 0, but whoever changes one expects another result.
    init_checkpoint: str = setting(
        "",
        "Model to begin with: the directory of a run or one of its "
        "checkpoints, a checkpoint of google-research/albert (prefix, "
        "directory or .tar.gz), or a Hugging Face folder. Training begins at "
        "step 0 all the same. A run that has a checkpoint of its own goes on "
        "from that.",
        affects="result",
    )
    init_vocabulary: str = setting(
        "",
        "SentencePiece model of init_checkpoint, where it is not beside it. "
        "Of pieces that the records have, too, the weights are kept.",
        affects="result",
    )
    init_from_group0: bool = setting(
        False,
        "Groups that init_checkpoint has not begin as its group 0, as in "
        "google-research/albert, instead of as the group at the same relative "
        "depth.",
        affects="result",
    )
    init_optimizer_state: bool = setting(
        False,
        "Take the moments of the optimizer, too, and not zeros.",
        affects="result",
    )

    def check(self) -> None:
        for name, value in self.to_dict().items():
            if value and not self.init_checkpoint:
                raise UserError(
                    f"{name} needs --init_checkpoint", received=repr(value)
                )


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Config):
    """The run."""

    mode: str = setting(
        "train",
        "train, or eval: evaluate the newest checkpoint once.",
        choices=("train", "eval"),
        affects="nothing",
    )
    output_dir: str = setting(
        "",
        "Directory of the run, local or gs://: checkpoints, logs, resolved "
        "configuration. A run found there is continued.",
        affects="nothing",
    )
    # The length of the learning-rate decay.
    num_train_steps: int = setting(
        125_000, "Updates.", at_least=1, affects="result"
    )
    steps_per_loop: int = setting(
        1000,
        "Updates between two looks at the host.",
        at_least=1,
        affects="nothing",
    )
    save_checkpoints_steps: int = setting(
        5000,
        "Updates between two checkpoints.",
        at_least=1,
        affects="nothing",
    )
    keep_checkpoint_max: int = setting(
        5,
        "Newest checkpoints kept.",
        at_least=1,
        affects="nothing",
    )
    keep_every_n_steps: int = setting(
        0,
        "Keep the checkpoints at multiples of this number of updates for "
        "ever; 0 keeps the newest only.",
        at_least=0,
        affects="nothing",
    )
    # Affects nothing: rollbacks that have happened are noted with their values.
    on_divergence: str = setting(
        "stop",
        "What to do when the loss is no number, or far above what it was: "
        "stop, or go back to the last checkpoint and go on without the data "
        "since (rollback).",
        choices=("stop", "rollback"),
        affects="nothing",
    )
    divergence_loss_increase: float = setting(
        2.0,
        "Nats above the lowest loss of the run so far at which a loop's mean "
        "loss counts as diverged; 0 looks for numbers that are none alone.",
        at_least=0,
        affects="nothing",
    )
    max_rollbacks: int = setting(
        3,
        "Rollbacks of a run, after which it stops.",
        at_least=1,
        affects="nothing",
    )
    rollback_learning_rate_scale: float = setting(
        1.0,
        "What each rollback multiplies the learning rate by from there on, "
        "e.g. 0.8.",
        at_least=0.01,
        below=1.0001,
        affects="nothing",
    )
    profile_steps: str = setting(
        "",
        "Updates to profile, as FIRST:LAST, e.g. 1000:1020; see them in "
        "TensorBoard's profiler.",
        affects="nothing",
    )
    allow_config_change: bool = setting(
        False,
        "Go on with a run whose settings have changed in what they mean, e.g. "
        "its batch or learning rate; every change is named and logged.",
        affects="nothing",
    )
    dry_run: bool = setting(
        False,
        "Check everything that a run needs, time one update, print what was "
        "found, and train nothing.",
        affects="nothing",
    )
    eval_every_n_steps: int = setting(
        0,
        "Updates between two evaluations; 0 is at the end only.",
        at_least=0,
        affects="nothing",
    )
    sentence_objective: str = setting(
        "sop",
        "Sentence-order prediction, next-sentence prediction (for records "
        "that google-research/albert made with --random_next_sentence), or "
        "none.",
        choices=SENTENCE_OBJECTIVES,
        affects="model",
        in_program=True,
    )
    dropout_schedule: str = setting(
        "",
        "Dropout by step, as STEP:RATE,..., for hidden layers and attention "
        "alike, e.g. 0:0.1,1000000:0.0 removes it after a million updates. "
        "Empty takes the architecture's rates throughout.",
        affects="result",
    )
    seed: int = setting(
        12345,
        "Seed of initial weights, data order, dynamic masks and dropout.",
        at_least=0,
        below=2**32,
        affects="result",
    )

    def check(self) -> None:
        self.dropout_phases()
        self.profiled_steps()
        if set(self.output_dir) & set("*?[]\\"):
            raise UserError(
                "output_dir must hold none of * ? [ ] \\, which TensorFlow "
                "takes for a pattern when it reads checkpoints",
                received=self.output_dir,
            )

    def profiled_steps(self) -> tuple[int, int] | None:
        """`profile_steps` as (first, last), or None.

        Raises:
            UserError: If it is not of its form.
        """
        if not self.profile_steps:
            return None
        first, _, last = self.profile_steps.partition(":")
        if not (first.isdecimal() and last.isdecimal()) or (
            int(first) >= int(last)
        ):
            raise UserError(
                "profile_steps must be FIRST:LAST, with FIRST below LAST",
                received=repr(self.profile_steps),
                remedy="Example: 1000:1020",
            )
        return int(first), int(last)

    def dropout_phases(self) -> tuple[tuple[int, float], ...]:
        """`dropout_schedule` as (first step, rate) pairs, steps rising.

        Raises:
            UserError: If the schedule is not of its form.
        """
        form = UserError(
            "dropout_schedule must be STEP:RATE,... with rising steps from 0 "
            "and rates from 0 to below 1",
            received=repr(self.dropout_schedule),
            remedy="Example: 0:0.1,1000000:0.0",
        )
        phases: list[tuple[int, float]] = []
        if not self.dropout_schedule:
            return ()
        for part in self.dropout_schedule.split(","):
            step, separator, rate = part.partition(":")
            try:
                phase = (int(step), float(rate))
            except ValueError:
                raise form from None
            if not separator or not 0 <= phase[1] < 1:
                raise form
            if phase[0] <= phases[-1][0] if phases else phase[0] != 0:
                raise form
            phases.append(phase)
        return tuple(phases)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(Config):
    """`python -m albert_tf.run_pretraining`."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=OptimizerConfig
    )
    distribution: DistributionConfig = dataclasses.field(
        default_factory=DistributionConfig
    )
    initialization: InitializationConfig = dataclasses.field(
        default_factory=InitializationConfig
    )
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)

    def check(self) -> None:
        if self.data.max_seq_length > self.model.max_position_embeddings:
            raise UserError(
                "max_seq_length must be at most max_position_embeddings",
                received=f"{self.data.max_seq_length} and "
                f"{self.model.max_position_embeddings}",
            )
        if self.optimizer.num_warmup_steps > self.training.num_train_steps:
            raise UserError(
                "num_warmup_steps must be at most num_train_steps",
                received=f"{self.optimizer.num_warmup_steps} and "
                f"{self.training.num_train_steps}",
            )
        if self.training.eval_every_n_steps and not self.data.eval_input_file:
            raise UserError(
                "eval_every_n_steps needs --eval_input_file",
                received="no held-out records",
            )
