"""Settings of a run: optimizer, devices, initial weights, checkpoints."""

import dataclasses

from albert_tf.config.data import SENTENCE_OBJECTIVES, DataConfig
from albert_tf.config.model import ModelConfig
from albert_tf.config.settings import Config, setting
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Config):
    """The optimizer; defaults are those of google-research/albert."""

    optimizer: str = setting(
        "lamb",
        "lamb, as in google-research/albert; adamw; or muon, which updates the "
        "kernels of attention and feed-forward layer by Muon and all other "
        "weights by AdamW.",
        choices=("lamb", "adamw", "muon"),
    )
    learning_rate: float = setting(
        0.00176,
        "Peak learning rate; for pretraining, 0.00176 suits a global batch "
        "size of 4096, and for fine-tuning, 1e-5 to 5e-5 is usual.",
        at_least=0,
    )
    num_warmup_steps: int = setting(
        3125, "Number of steps of linear warm-up.", at_least=0
    )
    poly_power: float = setting(
        1.0,
        "Power of the polynomial decay of the learning rate, which reaches 0 "
        "at num_train_steps; 1 is linear decay.",
        at_least=0,
    )
    num_decay_steps: int = setting(
        0,
        "Number of steps at the end in which the learning rate decays, e.g. "
        "1000, after it has stayed at its peak (warmup-stable-decay schedule; "
        "Zhai et al., 2022; Haegele et al., 2024). 0: the decay counts from "
        "step 0, as in google-research/albert.",
        at_least=0,
    )
    weight_decay_rate: float = setting(
        0.01,
        "Rate of weight decay; LayerNorm parameters and biases are not "
        "decayed.",
        at_least=0,
    )
    beta_1: float = setting(
        0.9, "Decay rate of the mean of the gradients.", at_least=0, below=1
    )
    beta_2: float = setting(
        0.999,
        "Decay rate of the mean of the squared gradients.",
        at_least=0,
        below=1,
    )
    epsilon: float = setting(
        1e-6,
        "Number added to the root of the mean of the squared gradients.",
        at_least=1e-20,
    )
    clip_norm: float = setting(
        1.0,
        "Largest global norm of the gradients; gradients above it are scaled "
        "down. 0 does not clip.",
        at_least=0,
    )


@dataclasses.dataclass(frozen=True)
class DistributionConfig(Config, affects="nothing"):
    """Devices, number formats and compilation."""

    runtime: str = setting(
        "tensorflow",
        "What compiles and runs the steps: tensorflow; or pjrt, the client of "
        "JAX, on all devices that JAX finds (docs/jax.md). A run can change "
        "it whenever it is continued.",
        choices=("tensorflow", "pjrt"),
    )
    strategy: str = setting(
        "auto",
        "tf.distribute strategy. auto selects tpu if this machine has a TPU; "
        "otherwise multi_worker if TF_CONFIG is set; "
        "otherwise mirrored if this machine has several GPUs or "
        "num_logical_cpus is above 1; otherwise one_device.",
        choices=("auto", "tpu", "mirrored", "multi_worker", "one_device"),
    )
    num_logical_cpus: int = setting(
        1,
        "Number of logical devices that the CPU is split into, to try "
        "--strategy=mirrored on a machine without accelerators.",
        at_least=1,
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
    )
    jit_compile: bool = setting(
        True,
        "Let XLA compile the forward and the backward pass on GPUs, and the "
        "operations between matrix products on CPUs. --nojit_compile runs "
        "operations one by one, which is slower. On TPUs, the step is always "
        "compiled.",
    )
    worker_timeout_s: int = setting(
        600,
        "Time in seconds after which a worker that does not answer counts as "
        "lost, and the job ends.",
        at_least=1,
    )
    hang_timeout_s: int = setting(
        1800,
        "Longest time in seconds that a run on TPUs or with several workers "
        "may take to start, to compile, to evaluate a batch or to save. A "
        "device loop that is compiled may take ten times its usual time, and "
        "at least 5 minutes. A run that takes longer logs the stack of each "
        "thread and exits with status 75. 0: no limit.",
        at_least=0,
    )

    def check(self) -> None:
        if self.runtime != "pjrt":
            return
        if self.strategy not in ("auto", "multi_worker"):
            raise UserError(
                "strategy must be auto or multi_worker with runtime=pjrt",
                received=self.strategy,
                remedy="JAX_PLATFORMS=cpu, cuda or tpu selects devices.",
            )
        if not self.jit_compile:
            raise UserError(
                "jit_compile must be on with runtime=pjrt, which compiles "
                "complete steps",
                received=self.jit_compile,
            )


@dataclasses.dataclass(frozen=True)
class InitializationConfig(Config, affects="start"):
    """Initial weights of a new run; a continued run loads its checkpoint."""

    init_checkpoint: str = setting(
        "",
        "Model whose weights a new run starts from: a run directory or one of "
        "its checkpoints, a checkpoint of google-research/albert (prefix or "
        "directory), a Hugging Face folder, or albert_mini_en, the released "
        "model. E.g. runs/base. Training starts at step 0. A run whose layers "
        "share their weights may have more layers than this model (progressive "
        "stacking; Lan et al., 2020, footnote 5). A run that has a checkpoint "
        "in output_dir continues from it instead.",
    )
    init_vocabulary: str = setting(
        "",
        "SentencePiece model of init_checkpoint, if init_checkpoint contains "
        "none, e.g. albert_base/30k-clean.model. The run keeps the embeddings "
        "of pieces that the vocabulary of the records also contains.",
    )
    init_optimizer_state: bool = setting(
        False,
        "Also load the moments of the optimizer from init_checkpoint. By "
        "default they start at zero.",
    )

    def check(self) -> None:
        for name, value in self.to_dict().items():
            if value and not self.init_checkpoint:
                raise UserError(
                    f"{name} needs --init_checkpoint", received=repr(value)
                )


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Config, affects="nothing"):
    """Length, checkpoints, recovery and logging of a run."""

    mode: str = setting(
        "train",
        "train, or eval, which evaluates the newest checkpoint once and exits.",
        choices=("train", "eval"),
    )
    output_dir: str = setting(
        "",
        "Run directory, local or gs://, for checkpoints, logs and the "
        "resolved configuration, e.g. build/run. If it contains a run, this "
        "run is continued.",
    )
    checkpoint_step: int = setting(
        0,
        "With --mode=eval, the step of the checkpoint to evaluate, also if it "
        "is in best/; 0 evaluates the newest.",
        at_least=0,
    )
    # Affects the result, since the learning rate decays over these steps.
    num_train_steps: int = setting(
        125_000,
        "Number of training steps.",
        at_least=1,
        affects="result",
    )
    steps_per_loop: int = setting(
        1000,
        "Number of steps that the devices run before they return to the host "
        "(a device loop). After each loop, the host logs the metrics and "
        "checks the loss for divergence.",
        at_least=1,
    )
    save_checkpoints_steps: int = setting(
        5000, "Number of steps between checkpoints.", at_least=1
    )
    save_checkpoints_minutes: float = setting(
        0.0,
        "Also save a checkpoint after a device loop if this many minutes have "
        "passed since the last one, e.g. 5. 0: only every "
        "save_checkpoints_steps.",
        at_least=0,
    )
    keep_checkpoint_max: int = setting(
        5, "Number of newest checkpoints to keep.", at_least=1
    )
    keep_every_n_steps: int = setting(
        0,
        "Also save a checkpoint at every multiple of this number of steps, and "
        "never remove it; 0 keeps only the newest checkpoints.",
        at_least=0,
    )
    divergence_loss_increase: float = setting(
        2.0,
        "Largest difference, in nats, between the mean loss of a device loop "
        "and the lowest one so far; a larger difference ends the run, which "
        "saves nothing, as NaN and infinity do. 0: only NaN and infinity end "
        "it.",
        at_least=0,
    )
    profile_steps: str = setting(
        "",
        "Steps to profile, as FIRST:LAST, e.g. 1000:1020 for the 20 steps "
        "after step 1000. TensorBoard's profiler shows the result.",
    )
    allow_config_change: bool = setting(
        False,
        "Continue a run although settings that affect its result have "
        "changed, e.g. the batch size or the learning rate. Every change is "
        "logged.",
    )
    dry_run: bool = setting(
        False,
        "Check everything that the run needs, time a few steps, print the "
        "results, and exit without training.",
    )
    eval_every_n_steps: int = setting(
        0,
        "Number of steps between evaluations; 0 evaluates only at the end.",
        at_least=0,
    )
    sentence_objective: str = setting(
        "sop",
        "Objective of the sentence head: sop (sentence-order prediction), nsp "
        "(next-sentence prediction) or none. nsp needs records built with "
        "--sentence_objective=nsp, or with --random_next_sentence of "
        "google-research/albert.",
        choices=SENTENCE_OBJECTIVES,
        affects="model",
    )
    token_label_loss_weight: float = setting(
        0.0,
        "Weight of the loss of the token labels, e.g. 1: a head of its own "
        "predicts the word of each symbol, masked or not. It is left out of "
        "exports and conversions. 0: no head.",
        at_least=0,
        affects="model",
    )
    eval_sentence_objective: str = setting(
        "same",
        "Sentence objective of the records of eval_input_file, in mode=eval. "
        "same: the sentence_objective of the run. nsp on a model trained with "
        "sop measures whether its sentence head distinguishes next sentences "
        "from random ones (Table 5 of the paper).",
        choices=("same", "sop", "nsp"),
    )
    dropout_schedule: str = setting(
        "",
        "Dropout rate by step, as STEP:RATE,..., for hidden layers and "
        "attention alike, e.g. 0:0.1,1000000:0.0 removes dropout after a "
        "million steps. Empty: the rates of albert_config_file, for all steps.",
        affects="result",
    )
    seed: int = setting(
        12345,
        "Seed of initial weights, data order, dynamic masking and dropout, "
        "below 2^32.",
        at_least=0,
        below=2**32,
        affects="result",
    )

    def check(self) -> None:
        self.dropout_phases()
        self.profiled_steps()
        if self.dry_run and not self.mode.startswith("train"):
            raise UserError(
                "dry_run checks a training: mode must be train",
                received=self.mode,
            )
        if set(self.output_dir) & set("*?[]\\"):
            raise UserError(
                "output_dir must not contain * ? [ ] or \\: TensorFlow reads "
                "checkpoints by patterns",
                received=self.output_dir,
            )

    def held_out_objective(self) -> str:
        """The sentence objective of the records of `eval_input_file`."""
        if self.eval_sentence_objective == "same":
            return self.sentence_objective
        return self.eval_sentence_objective

    def profiled_steps(self) -> tuple[int, int] | None:
        """`profile_steps` as (first, last), or None.

        Raises:
            UserError: If the setting is malformed.
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
            UserError: If the schedule is malformed.
        """
        texts = (
            self.dropout_schedule.split(",") if self.dropout_schedule else ()
        )
        try:
            phases = tuple(map(_parse_phase, texts))
            steps = [step for step, _ in phases]
            if steps and steps != sorted({0, *steps}):
                raise ValueError("steps do not rise from 0")
            return phases
        except ValueError:
            raise UserError(
                "dropout_schedule must be STEP:RATE,... with rising steps from "
                "0 and rates from 0 to below 1",
                received=repr(self.dropout_schedule),
                remedy="Example: 0:0.1,1000000:0.0",
            ) from None


def _parse_phase(text: str) -> tuple[int, float]:
    step, _, rate = text.partition(":")
    if not 0 <= float(rate) < 1:
        raise ValueError(f"not from 0 to below 1: {rate}")
    return int(step), float(rate)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(Config):
    """Settings of `python -m albert_tf.run_pretraining`.

    Example:
        >>> config = PretrainingConfig(data=DataConfig(global_batch_size=512))
        >>> config.to_dict()["data"]["global_batch_size"]
        512
        >>> PretrainingConfig(data=DataConfig(max_seq_length=1024))
        Traceback (most recent call last):
        albert_tf.errors.UserError: max_seq_length must be at most
        max_position_embeddings. Received: 1024 and 512.
    """

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    distribution: DistributionConfig = DistributionConfig()
    initialization: InitializationConfig = InitializationConfig()
    training: TrainingConfig = TrainingConfig()

    def check(self) -> None:
        if self.data.max_seq_length > self.model.max_position_embeddings:
            raise UserError(
                "max_seq_length must be at most max_position_embeddings",
                received=f"{self.data.max_seq_length} and "
                f"{self.model.max_position_embeddings}",
            )
        warmup, decay, total = (
            self.optimizer.num_warmup_steps,
            self.optimizer.num_decay_steps,
            self.training.num_train_steps,
        )
        if total and warmup + decay > total:  # 0: not known yet
            raise UserError(
                "num_warmup_steps + num_decay_steps must be at most "
                "num_train_steps",
                received=f"{warmup} + {decay} and {total}",
            )
        if self.training.token_label_loss_weight and self.num_token_labels < 2:
            raise UserError(
                "token_label_loss_weight needs --label_vocab_size, with which "
                "the records were built",
                received=self.data.label_vocab_size,
            )
        self.check_evaluation()

    @property
    def num_token_labels(self) -> int:
        """Number of labels that the head of tokens predicts; 0 without it."""
        has_head = self.training.token_label_loss_weight > 0
        return self.data.label_vocab_size if has_head else 0

    def check_evaluation(self) -> None:
        """Refuses evaluations without records."""
        if self.training.eval_every_n_steps and not self.data.eval_input_file:
            raise UserError(
                "eval_every_n_steps needs --eval_input_file",
                received="no evaluation records",
            )
