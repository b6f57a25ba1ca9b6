"""Settings of a fine-tuning task: its files, and how text becomes features."""

import dataclasses

from albert_tf.config.settings import Config, setting
from albert_tf.config.task_head import CLASSIFICATION, REGRESSION
from albert_tf.errors import UserError

# The task in which every document contains the answer to its question.
ALWAYS_ANSWERABLE = "squad_v1"

# The official tasks whose examples are pairs of texts.
PAIR_TASKS = ("mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")


@dataclasses.dataclass(frozen=True)
class ColumnsConfig(Config):
    """The task, and the columns of the user's own files.

    Example:
        >>> ColumnsConfig(task="classification").label_column
        'label'
    """

    task: str = setting(
        "",
        "Task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax, "
        "squad_v1, squad_v2, race, race_middle or race_high; or, for files of "
        "your own, classification, regression, multiple_choice or "
        "question_answering.",
        affects="model",
    )
    text_column: str = setting(
        "text",
        "Column of the text or, for multiple_choice and question_answering, of "
        "the passage or document.",
        affects="result",
    )
    text_pair_column: str = setting(
        "",
        "Column of the second text of a pair, for classification and "
        "regression. Empty: single texts.",
        affects="result",
    )
    label_column: str = setting(
        "label",
        "Column of the label: for classification, the name of a class; for "
        "regression, a number; for multiple_choice, the right choice as a "
        "number from 0 or a letter from A.",
        affects="result",
    )
    id_column: str = setting(
        "",
        "Column that identifies an example in predictions and messages. "
        "Empty: examples are numbered from 0.",
        affects="result",
    )
    question_column: str = setting(
        "question",
        "Column of the question, for multiple_choice and question_answering.",
        affects="result",
    )
    choice_columns: tuple[str, ...] = setting(
        (),
        "Columns of the choices, comma-separated, for multiple_choice, e.g. "
        "answer0,answer1,answer2,answer3. A single column of JSON lines may "
        "contain the list of the choices.",
        affects="result",
    )
    answer_column: str = setting(
        "answer",
        "Column of the answer's text, for question_answering. The text is "
        "empty if the document does not answer the question.",
        affects="result",
    )
    answer_start_column: str = setting(
        "answer_start",
        "Column of the answer's first character in the document, counted from "
        "0, for question_answering.",
        affects="result",
    )

    @property
    def has_pairs(self) -> bool | None:
        """Whether the examples of the task are pairs of texts.

        False for multiple choice and question answering. None without a task,
        as in a converted run.

        Example:
            >>> [ColumnsConfig(task=task).has_pairs for task in ("rte", "sst2")]
            [True, False]
        """
        if self.task in (CLASSIFICATION, REGRESSION):
            return bool(self.text_pair_column)
        return self.task in PAIR_TASKS if self.task else None


@dataclasses.dataclass(frozen=True)
class TaskConfig(ColumnsConfig):
    """Files of a task, and how their text becomes features.

    Example:
        >>> config = TaskConfig(task="mrpc", data_dir="glue_data/MRPC")
        >>> config.max_answer_length
        30
    """

    data_dir: str = setting(
        "",
        "Directory with the official files of the task under their official "
        "names, local or gs://, e.g. glue_data/MRPC.",
        affects="result",
    )
    train_file: str = setting(
        "",
        "Training file, instead of the official one in data_dir. Files of "
        "your own are .tsv, .csv or .jsonl with named columns; those of "
        "question_answering also .json in the format of SQuAD.",
        affects="result",
    )
    dev_file: str = setting(
        "",
        "Development file, on which the model is evaluated, instead of the "
        "official one in data_dir; in the format of train_file.",
        affects="result",
    )
    test_file: str = setting(
        "",
        "Test file, for which --mode=predict and train_and_predict write "
        "predictions, instead of the official one in data_dir; in the format "
        "of train_file. Its labels, if it has any, are not read.",
        affects="nothing",
    )
    tfds: str = setting(
        "",
        "Dataset of TensorFlow Datasets that replaces all files, e.g. "
        "glue/mrpc, squad/v2.0 or race/high. A task of your own reads the "
        "splits train, validation and test, where the dataset has them.",
        affects="result",
    )
    tfds_data_dir: str = setting(
        "",
        "Directory of prepared datasets. Default: the directory that "
        "TensorFlow Datasets uses.",
        affects="nothing",
    )
    doc_stride: int = setting(
        128,
        "Number of tokens between the beginnings of two windows of a document "
        "that is too long for one sequence.",
        at_least=1,
        affects="result",
    )
    max_query_length: int = setting(
        64,
        "Largest number of tokens of a question about a document; a longer "
        "question loses its end.",
        at_least=1,
        affects="result",
    )
    max_qa_length: int = setting(
        128,
        "Largest number of tokens of question and choice together, for "
        "multiple_choice; a longer text loses its beginning.",
        at_least=1,
        affects="result",
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
    on_bad_example: str = setting(
        "skip",
        "What to do with an example that cannot be used, e.g. an answer that "
        "is not in its document. skip: training leaves it out, evaluation and "
        "prediction use it if it can be parsed, and the command lists it with "
        "the reason. error: the command stops.",
        choices=("skip", "error"),
        affects="result",
    )

    def check(self) -> None:
        names = ("data_dir", "train_file", "dev_file", "test_file")
        given = [name for name in names if getattr(self, name)]
        if self.tfds and given:
            raise UserError(
                f"tfds must not be combined with {', '.join(names)}",
                received=f"{self.tfds} and {', '.join(given)}",
                remedy="Omit --tfds to read files; a run that was trained with "
                "--tfds predicts them, too.",
            )


@dataclasses.dataclass(frozen=True)
class ScoreConfig(Config):
    """Settings of `python -m albert_tf.finetuning.score`.

    Example:
        >>> ScoreConfig(best_answers_file="best_answers.json")
        Traceback (most recent call last):
        ...
        albert_tf.errors.UserError: best_answers_file needs null_odds_file...
    """

    task: ColumnsConfig = dataclasses.field(default_factory=ColumnsConfig)
    data_file: str = setting(
        "",
        "File with the right answers or labels, e.g. dev-v2.0.json; for RACE, "
        "the directory of a split, e.g. RACE/dev, or of a level, e.g. "
        "RACE/dev/high.",
    )
    predictions_file: str = setting(
        "",
        "File with the predictions: for question answering, a JSON object of "
        "answers by question id; for other tasks, a TSV file with the columns "
        "index and prediction.",
    )
    null_odds_file: str = setting(
        "",
        "JSON object of null odds by question id; larger odds mean that an "
        "answer is less likely. The command then also prints the thresholds of "
        "the best scores. For this, it needs the best answer to each question, "
        "also where the null odds are large: in best_answers_file or, without "
        "it, in predictions_file.",
    )
    best_answers_file: str = setting(
        "",
        "JSON object with the best answer to each question by id, from which "
        "predictions_file was made at a null threshold. The scores are then "
        "those of predictions_file as it is, and the best scores and their "
        "thresholds are those of this file. Needs null_odds_file.",
    )
    na_prob_thresh: float = setting(
        1.0,
        "A question with larger null odds counts as not answered, as in the "
        "official script. Not with best_answers_file.",
    )

    def check(self) -> None:
        if not self.best_answers_file:
            return
        if not self.null_odds_file:
            raise UserError(
                "best_answers_file needs null_odds_file",
                received="none",
                remedy="Set --null_odds_file.",
            )
        if self.na_prob_thresh != ScoreConfig.na_prob_thresh:
            raise UserError(
                "na_prob_thresh must not be combined with best_answers_file: "
                "predictions_file is scored as it is",
                received=self.na_prob_thresh,
                remedy="Omit --na_prob_thresh; or omit --best_answers_file, "
                "and give that file as --predictions_file.",
            )
