"""Settings of a fine-tuning run and of its task."""

import dataclasses
from typing import ClassVar

from albert_tf.config.data import DataConfig
from albert_tf.config.settings import inherited, setting
from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import QUESTION_ANSWERING, TaskHeadConfig
from albert_tf.config.training import (
    InitializationConfig,
    OptimizerConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class FinetuningDataConfig(DataConfig):
    """Lengths and batches; the command finds the records itself."""

    # Settings without a flag have no effect or a fixed value: every record is
    # evaluated, and records hold neither masks nor several examples.
    input_file: tuple[str, ...] = inherited(
        DataConfig, "input_file", has_flag=False
    )
    eval_input_file: tuple[str, ...] = inherited(
        DataConfig, "eval_input_file", has_flag=False
    )
    dataset: tuple[str, ...] = inherited(DataConfig, "dataset", has_flag=False)
    data_schedule: str = inherited(DataConfig, "data_schedule", has_flag=False)
    synthetic_input: bool = inherited(
        DataConfig, "synthetic_input", has_flag=False
    )
    max_predictions_per_seq: int = inherited(
        DataConfig, "max_predictions_per_seq", default=1, has_flag=False
    )
    input_lanes: int = inherited(DataConfig, "input_lanes", has_flag=False)
    packing: str = inherited(DataConfig, "packing", has_flag=False)
    max_examples_per_row: int = inherited(
        DataConfig, "max_examples_per_row", has_flag=False
    )
    masked_lm_prob: float = inherited(
        DataConfig, "masked_lm_prob", has_flag=False
    )
    ngram: int = inherited(DataConfig, "ngram", has_flag=False)
    max_eval_steps: int = inherited(
        DataConfig, "max_eval_steps", default=0, has_flag=False
    )
    max_seq_length: int = inherited(
        DataConfig,
        "max_seq_length",
        help="L, largest number of tokens of a sequence, special tokens "
        "included. If all examples are shorter, the model computes shorter "
        "sequences, with the same result.",
    )
    global_batch_size: int = inherited(
        DataConfig,
        "global_batch_size",
        default=32,
        help="Number of examples in a step, over all replicas. An example is a "
        "text or a pair of texts, a question with all its choices, or one "
        "window of a document.",
    )


@dataclasses.dataclass(frozen=True)
class FinetuningOptimizerConfig(OptimizerConfig):
    """AdamW, with typical settings of Table 14 of the paper."""

    optimizer: str = inherited(OptimizerConfig, "optimizer", default="adamw")
    learning_rate: float = inherited(
        OptimizerConfig,
        "learning_rate",
        default=2e-5,
        help="Peak learning rate, usually from 1e-5 to 5e-5.",
    )
    num_warmup_steps: int = inherited(
        OptimizerConfig, "num_warmup_steps", default=200
    )


@dataclasses.dataclass(frozen=True)
class FinetuningInitializationConfig(InitializationConfig):
    """The pretrained model.

    Example:
        >>> FinetuningInitializationConfig(from_scratch=True)
        Traceback (most recent call last):
        ...
        albert_tf.errors.UserError: from_scratch needs --init_vocabulary...
    """

    init_checkpoint: str = inherited(
        InitializationConfig,
        "init_checkpoint",
        help="Pretrained model: a run directory of pretraining or fine-tuning "
        "or one of its checkpoints, a checkpoint of google-research/albert "
        "(prefix, directory or .tar.gz), or a Hugging Face folder, e.g. "
        "albert_base_v2.tar.gz. It decides the architecture. A run that has a "
        "checkpoint in output_dir continues from it instead.",
    )
    init_vocabulary: str = inherited(
        InitializationConfig,
        "init_vocabulary",
        help="SentencePiece model, if init_checkpoint contains none, "
        "e.g. albert_base/30k-clean.model.",
    )
    from_scratch: bool = setting(
        False,
        "Train from random weights, without --init_checkpoint, e.g. to measure "
        "the effect of pretraining. Needs --init_vocabulary and "
        "--albert_config_file.",
        affects="result",
    )
    init_from_group0: bool = inherited(
        InitializationConfig, "init_from_group0", has_flag=False
    )
    init_optimizer_state: bool = inherited(
        InitializationConfig, "init_optimizer_state", has_flag=False
    )

    def check(self) -> None:
        if self.from_scratch and self.init_checkpoint:
            raise UserError(
                "from_scratch must not be combined with --init_checkpoint",
                received=self.init_checkpoint,
            )
        if self.from_scratch and not self.init_vocabulary:
            raise UserError("from_scratch needs --init_vocabulary")


@dataclasses.dataclass(frozen=True)
class FinetuningTrainingConfig(TrainingConfig):
    """Length, checkpoints and logging of a run."""

    mode: str = inherited(
        TrainingConfig,
        "mode",
        help="train, which also evaluates; eval, which evaluates the "
        "checkpoint that --checkpoint selects; predict, which writes "
        "predictions for the test set, or for the development set if there is "
        "no test set; or train_and_predict.",
        choices=("train", "eval", "predict", "train_and_predict"),
    )
    # run_finetuning has `checkpoint` instead.
    checkpoint_step: int = inherited(
        TrainingConfig, "checkpoint_step", has_flag=False
    )
    num_train_steps: int = inherited(
        TrainingConfig, "num_train_steps", default=2000
    )
    steps_per_loop: int = inherited(
        TrainingConfig, "steps_per_loop", default=100
    )
    save_checkpoints_steps: int = inherited(
        TrainingConfig, "save_checkpoints_steps", default=1000
    )
    keep_checkpoint_max: int = inherited(
        TrainingConfig, "keep_checkpoint_max", default=1
    )
    sentence_objective: str = inherited(
        TrainingConfig, "sentence_objective", default="none", has_flag=False
    )
    dropout_schedule: str = inherited(
        TrainingConfig, "dropout_schedule", has_flag=False
    )
    dropout: float = setting(
        0.0,
        "Dropout rate of the encoder, hidden layers and attention alike.",
        at_least=0,
        below=1,
        affects="result",
    )
    classifier_dropout: float = setting(
        0.1,
        "Dropout rate before the last layer of the task.",
        at_least=0,
        below=1,
        affects="result",
    )
    null_threshold: float = setting(
        0.0,
        "For squad_v2 and question_answering: the predicted answer is empty if "
        "the null odds of a question exceed this number. For "
        "--squad_head=plain, null odds are the score of no answer minus the "
        "score of the best answer; for beam, the logit of no answer.",
        affects="nothing",
    )
    null_holdout_fraction: float = setting(
        0.0,
        "Fraction of the training documents to hold out, for squad_v2 and "
        "question_answering, e.g. 0.05. After training, the command chooses "
        "the best threshold for these documents. The run stores this "
        "threshold, which replaces null_threshold.",
        at_least=0,
        below=0.5,
        affects="result",
    )
    checkpoint: str = setting(
        "newest",
        "Checkpoint for mode=eval and predict: the newest; or the one with the "
        "best score of all evaluations, see eval_every_n_steps.",
        choices=("newest", "best"),
        affects="nothing",
    )
    num_runs: int = setting(
        1,
        "Number of runs, with the seeds seed, seed + 1 and so on. A single run "
        "trains in output_dir. Several runs train in output_dir/run-1, "
        "output_dir/run-2 and so on, and the command prints the scores of "
        "each, the median and the best. Later, --mode=eval and --mode=predict "
        "with the same num_runs use the run with the best score.",
        at_least=1,
        affects="nothing",
    )


@dataclasses.dataclass(frozen=True)
class FinetuningConfig(PretrainingConfig):
    """Settings of `python -m albert_tf.run_finetuning`.

    Example:
        >>> config = FinetuningConfig(task=TaskConfig(task="rte"))
        >>> config.optimizer.optimizer, config.data.global_batch_size
        ('adamw', 32)
    """

    FINDS_MODEL: ClassVar[bool] = True

    data: FinetuningDataConfig = dataclasses.field(
        default_factory=FinetuningDataConfig
    )
    optimizer: FinetuningOptimizerConfig = dataclasses.field(
        default_factory=FinetuningOptimizerConfig
    )
    initialization: FinetuningInitializationConfig = dataclasses.field(
        default_factory=FinetuningInitializationConfig
    )
    training: FinetuningTrainingConfig = dataclasses.field(
        default_factory=FinetuningTrainingConfig
    )
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    head: TaskHeadConfig = dataclasses.field(default_factory=TaskHeadConfig)

    def check(self) -> None:
        super().check()
        fraction = self.training.null_holdout_fraction
        if fraction and self.task.task not in ("squad_v2", QUESTION_ANSWERING):
            raise UserError(
                "null_holdout_fraction needs a task with questions that may "
                "have no answer, squad_v2 or question_answering",
                received=f"{fraction:g} and --task={self.task.task}",
            )

    def check_evaluation(self) -> None:
        """Refuses nothing: a task may have no development set."""
