"""Settings of fine-tuning: the task, the head, the run, and scores."""

import dataclasses
from typing import ClassVar, NamedTuple

from albert_tf.config.data import DataConfig
from albert_tf.config.settings import Config, inherited, setting
from albert_tf.config.training import (
    InitializationConfig,
    OptimizerConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.errors import UserError

CLASSIFICATION = "classification"
REGRESSION = "regression"
MULTIPLE_CHOICE = "multiple_choice"
QUESTION_ANSWERING = "question_answering"
TOKEN_CLASSIFICATION = "token_classification"
MULTI_LABEL = "multi_label_classification"


class Kind(NamedTuple):
    """A kind of task."""

    layers: tuple[str, ...]  # above the encoder, as in `interop.weight_names`
    has_classes: bool = False  # labels are classes, which the training set has


KINDS = {
    CLASSIFICATION: Kind(("pooler", "classifier"), has_classes=True),
    REGRESSION: Kind(("pooler", "classifier")),
    MULTIPLE_CHOICE: Kind(("pooler", "classifier")),
    QUESTION_ANSWERING: Kind(("span",)),
    TOKEN_CLASSIFICATION: Kind(("classifier",), has_classes=True),
    MULTI_LABEL: Kind(("pooler", "classifier"), has_classes=True),
}

# The tasks of your own files; `labels_are_lists` selects the other kind.
OWN_TASKS = tuple(kind for kind in KINDS if kind != MULTI_LABEL)

SQUAD_HEADS = ("plain", "beam")

# The task in which every document contains the answer to its question.
ALWAYS_ANSWERABLE = "squad_v1"

# The official tasks whose examples are pairs of texts.
PAIR_TASKS = ("mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")


@dataclasses.dataclass(frozen=True)
class TaskHeadConfig(Config):
    """The head of a fine-tuned model; the task and its data determine it.

    Example:
        >>> head = TaskHeadConfig("classification", ("no", "yes", "maybe"))
        >>> head.num_outputs, head.num_classes, head.has_pooler
        (3, 3, True)
    """

    kind: str = setting(
        CLASSIFICATION,
        "classification of a text or a pair of texts, into one class or, "
        "multi_label_classification, any number of them; regression, one "
        "number for them; multiple_choice, the best of several answers; "
        "question_answering, a span of a text; token_classification, a tag "
        "for each word.",
        choices=tuple(KINDS),
        affects="model",
        has_flag=False,
    )
    labels: tuple[str, ...] = setting(
        (),
        "Names of the classes, in the order of the logits.",
        affects="model",
        has_flag=False,
    )
    num_choices: int = setting(
        1,
        "Number of answers to choose from; 1 for other kinds.",
        at_least=1,
        affects="model",
        has_flag=False,
    )
    squad_head: str = setting(
        "plain",
        "Head for question answering. plain: one score for the first and one "
        "for the last token of the answer, as in Hugging Face. beam: the score "
        "of the last token depends on the first token, and a further logit "
        "predicts whether there is an answer, as in google-research/albert for "
        "SQuAD 2.0.",
        choices=SQUAD_HEADS,
        affects="model",
    )

    def check(self) -> None:
        if len({*self.labels}) < len(self.labels):
            raise UserError(
                "labels must be different names",
                received=", ".join(self.labels),
                remedy="Give each class a name of its own, e.g. in id2label of "
                "the model's config.json.",
            )

    @property
    def num_outputs(self) -> int:
        """Number of logits of a sequence or token; 1 without classes."""
        return len(self.labels) if KINDS[self.kind].has_classes else 1

    @property
    def num_classes(self) -> int:
        """Number of classes or choices to choose from; 0 for other kinds."""
        if self.kind == MULTIPLE_CHOICE:
            return self.num_choices
        return len(self.labels)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers above the encoder, as in `interop.weight_names`."""
        return ("beam_span",) if self.is_beam else KINDS[self.kind].layers

    @property
    def has_pooler(self) -> bool:
        """Whether the head reads the pooled output."""
        return "pooler" in self.layers

    @property
    def is_beam(self) -> bool:
        """Whether the head is the beam head of question answering."""
        is_span = self.kind == QUESTION_ANSWERING
        return is_span and self.squad_head == "beam"


@dataclasses.dataclass(frozen=True)
class TaskConfig(Config):
    """A task, its files and columns, and how text becomes features."""

    task: str = setting(
        "",
        "Task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax, "
        "squad_v1, squad_v2 or race; or, for files of your own, "
        "classification, regression, multiple_choice, question_answering or "
        "token_classification.",
        affects="model",
    )
    text_column: str = setting(
        "",
        "Column of the text, e.g. text; for multiple_choice and "
        "question_answering, of the passage or document; for "
        "token_classification, of the list of words of JSON lines or, in a "
        "file of words and tags, its number, from 1. Empty: tokens for "
        "token_classification, else text.",
    )
    text_pair_column: str = setting(
        "",
        "Column of the second text of a pair, for classification and "
        "regression, where empty stands for single texts; for multiple_choice "
        "and question_answering, of the question, where it stands for "
        "question.",
    )
    label_column: str = setting(
        "",
        "Column of the label: for classification, the name of a class; for "
        "regression, a number; for multiple_choice, the right choice as a "
        "number from 0 or a letter from A; for question_answering, the text of "
        "the answer, which is empty if there is none; for "
        "token_classification, a list with O, or B- or I- and the name of a "
        "kind of spans, e.g. B-PER, for each word or, in a file of words and "
        "tags, its number, from 1. Empty: answer for question_answering, tags "
        "for token_classification, else label.",
    )
    labels_are_lists: bool = setting(
        False,
        "For classification: a text can have several classes, or none. Labels "
        "are lists of names; in a table, separated by commas.",
        affects="model",
    )
    id_column: str = setting(
        "",
        "Column that identifies an example in predictions and messages. "
        "Empty: examples are numbered from 0.",
    )
    choice_columns: tuple[str, ...] = setting(
        (),
        "Columns of the choices, comma-separated, for multiple_choice, e.g. "
        "answer0,answer1,answer2,answer3. A single column of JSON lines may "
        "contain the list of the choices.",
    )
    answer_start_column: str = setting(
        "answer_start",
        "Column of the answer's first character in the document, counted from "
        "0, for question_answering.",
    )

    data_dir: str = setting(
        "",
        "Directory with the official files of the task under their official "
        "names, local or gs://, e.g. glue_data/MRPC.",
    )
    train_file: str = setting(
        "",
        "Training file, instead of the official one in data_dir. Files of "
        "your own are .tsv, .csv, .jsonl or .parquet with named columns; "
        "those of question_answering also .json in the format of SQuAD; or a "
        "split of TensorFlow Datasets, e.g. tfds:glue/rte:train. For race, a "
        "directory.",
    )
    dev_file: str = setting(
        "",
        "Development file, on which the model is evaluated, instead of the "
        "official one in data_dir; in the format of train_file.",
    )
    test_file: str = setting(
        "",
        "Test file, for which --mode=predict and train_and_predict write "
        "predictions, instead of the official one in data_dir; in the format "
        "of train_file. Its labels, if it has any, are not read.",
        affects="nothing",
    )
    doc_stride: int = setting(
        128,
        "Number of tokens between the beginnings of two windows of a document "
        "that is too long for one sequence.",
        at_least=1,
    )
    max_query_length: int = setting(
        64,
        "Largest number of tokens of a question about a document; a longer "
        "question loses its end.",
        at_least=1,
    )
    max_qa_length: int = setting(
        128,
        "Largest number of tokens of question and choice together, for "
        "multiple_choice; a longer text loses its beginning.",
        at_least=1,
    )
    max_answer_length: int = setting(
        30,
        "Largest number of tokens of a predicted answer.",
        at_least=1,
        affects="nothing",
    )
    n_best_size: int = setting(
        20,
        "Number of predicted answers to keep for each question.",
        at_least=1,
        affects="nothing",
    )

    @property
    def has_pairs(self) -> bool | None:
        """Whether the examples of the task are pairs of texts.

        False for multiple choice and question answering. None without a task,
        as in a converted run.
        """
        if self.task in (CLASSIFICATION, REGRESSION):
            return bool(self.text_pair_column)
        return self.task in PAIR_TASKS if self.task else None


@dataclasses.dataclass(frozen=True)
class FinetuningDataConfig(
    DataConfig,
    # They have no effect or a fixed value: the command finds the records, every
    # record is evaluated, and records hold neither masks nor several examples.
    without_flags=(
        *("input_file", "eval_input_file"),
        *("synthetic_input", "input_lanes", "packing", "max_examples_per_row"),
        *("masked_lm_prob", "ngram", "max_predictions_per_seq"),
        *("max_eval_steps", "label_vocab_size"),
    ),
    defaults={
        "global_batch_size": 32,
        "max_predictions_per_seq": 1,
        "max_eval_steps": 0,
    },
):
    """Lengths and batches; the command finds the records itself."""

    max_text_length: int = setting(
        0,
        "max_seq_length as it was given. A run stores as max_seq_length that "
        "of its longest example, rounded up.",
        affects="nothing",
        has_flag=False,
    )

    @property
    def text_length(self) -> int:
        """The number of tokens at which an exported model cuts texts."""
        return self.max_text_length or self.max_seq_length


@dataclasses.dataclass(frozen=True)
class FinetuningOptimizerConfig(
    OptimizerConfig,
    defaults={
        "optimizer": "adamw",
        "learning_rate": 2e-5,
    },
):
    """AdamW, with typical settings of Table 14 of the paper."""

    num_warmup_steps: int = inherited(
        OptimizerConfig,
        "num_warmup_steps",
        default=-1,
        help="Number of steps in which the learning rate rises linearly from 0 "
        "to learning_rate; -1: a tenth of num_train_steps.",
        at_least=-1,
    )


@dataclasses.dataclass(frozen=True)
class FinetuningInitializationConfig(
    InitializationConfig,
    affects="start",
    without_flags=("init_optimizer_state",),
):
    """The pretrained model."""

    from_scratch: bool = setting(
        False,
        "Train from random weights, without --init_checkpoint, e.g. to measure "
        "the effect of pretraining. Needs --init_vocabulary and "
        "--albert_config_file.",
    )

    def check(self) -> None:
        if self.from_scratch and self.init_checkpoint:
            raise UserError(
                "from_scratch must not be combined with --init_checkpoint",
                received=self.init_checkpoint,
            )
        if self.from_scratch:
            self.require("init_vocabulary")


@dataclasses.dataclass(frozen=True)
class FinetuningTrainingConfig(
    TrainingConfig,
    # run_finetuning has `checkpoint` instead of `checkpoint_step`.
    without_flags=(
        "checkpoint_step",
        "sentence_objective",
        "eval_sentence_objective",
        "token_label_loss_weight",
        "dropout_schedule",
    ),
    defaults={
        "steps_per_loop": 5,
        "save_checkpoints_steps": 1000,
        "keep_checkpoint_max": 1,
        "sentence_objective": "none",
    },
):
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
    num_train_steps: int = inherited(
        TrainingConfig,
        "num_train_steps",
        default=0,
        help="Number of training steps. 0: three times through the training "
        "set, and at least 300; unless eval_every_n_steps is set, the "
        "development set is evaluated four times.",
        at_least=0,
    )
    dropout: float = setting(
        0.0,
        "Dropout rate of the encoder, hidden layers and attention alike.",
        at_least=0,
        below=1,
    )
    classifier_dropout: float = setting(
        0.1,
        "Dropout rate before the last layer of the task.",
        at_least=0,
        below=1,
    )
    null_threshold: float = setting(
        0.0,
        "For squad_v2 and question_answering: the predicted answer is empty if "
        "the null odds of a question exceed this number. For "
        "--squad_head=plain, null odds are the score of no answer minus the "
        "score of the best answer; for beam, the logit of no answer.",
        affects="nothing",
    )
    checkpoint: str = setting(
        "newest",
        "Checkpoint for mode=eval and predict: the newest; or the one with the "
        "best score of all evaluations, see eval_every_n_steps.",
        choices=("newest", "best"),
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

    data: FinetuningDataConfig = FinetuningDataConfig()
    optimizer: FinetuningOptimizerConfig = FinetuningOptimizerConfig()
    initialization: FinetuningInitializationConfig = (
        FinetuningInitializationConfig()
    )
    training: FinetuningTrainingConfig = FinetuningTrainingConfig()
    task: TaskConfig = TaskConfig()
    head: TaskHeadConfig = TaskHeadConfig()

    def check_evaluation(self) -> None:
        """Refuses nothing: a task may have no development set."""
