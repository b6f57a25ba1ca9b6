"""The kinds of tasks: what each makes of a row of a file, up to its scores.

1. A row becomes an example (`make_example`, with its label).
2. An example becomes records, what one call of the model reads: a text or a
   pair of texts, all choices of a question, or one window of a document.
3. The outputs of the model become sums of losses (`sums`), and what is kept of
   them (`predictions`).
4. The predictions of all records become those of the examples (`find`), their
   scores and a file.

`serving.kinds` has what an exported model answers, by the same names of kinds.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import math
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import SequenceConfig, TaskHeadConfig
from albert_tf.config import task as config_task
from albert_tf.config.task import ALWAYS_ANSWERABLE, OWN_TASKS, TaskConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning import scores
from albert_tf.finetuning.tasks import (
    FILES,
    LETTERS,
    TASKS,
    TEST,
    TRAIN,
    Columns,
    Split,
    Task,
)
from albert_tf.io.files import write_text
from albert_tf.records.gaps import fill_gaps
from albert_tf.records.questions import (
    Answer,
    Question,
    WindowMaker,
    find_answers,
    find_fault,
)
from albert_tf.records.tokenization import (
    Tokenizer,
    cut_choices,
    first_tokens,
    make_inputs,
    sequence_length,
    truncate,
    warn_of_cut,
)
from albert_tf.training.objective import Scalars, correctness

_BATCH = 1000  # texts to tokenize in one call

# Cells, in lower case, that mean "no label"; see `_WithClasses`.
_NO_LABEL = ("", "nan", "-", "-1")

# Tags of words: outside of a span, or in it and its kind.
_TAG = re.compile("O|[BI]-.+")

# How BIOES, BILOU and BMEWO begin a tag -> how BIO does.
_BIO = {"E-": "I-", "L-": "I-", "M-": "I-", "S-": "B-", "U-": "B-", "W-": "B-"}

# A list in a cell of a table, as json, pandas or NumPy write it.
_LIST = re.compile(r"\[.*\]|\{.*\}|\(\s*['\"].*\)", re.DOTALL)

_LARGEST = float(np.finfo(np.float32).max)

# Marks between names in a cell, instead of commas.
_SEPARATORS = ",;|/&+ "

# The values of `is_impossible`; `str(True)` in lower case is "true".
_TRUTH_VALUES = {"true": True, "1": True, "false": False, "0": False}

# Predictions of all records, in order; or a batch, or the outputs of a model.
Arrays = Mapping[str, np.ndarray]
Tensors = Mapping[str, tf.Tensor]

# The values of records by feature.
Values: TypeAlias = Iterator[dict[str, Any]]


# --- examples and records ----------------------------------------------------


class TextExample(NamedTuple):
    """A text or a pair of texts.

    Attributes:
        id: Identifies the example in its file.
        label: Index of the class, indices of the classes, or the value to
            predict; None if unknown.
    """

    id: str
    text: str
    text_pair: str | None
    label: int | float | tuple[int, ...] | None


class TokenExample(NamedTuple):
    """A text as words; `label` has the index of the tag of each."""

    id: str
    words: tuple[str, ...]
    label: tuple[int, ...] | None


class ChoiceExample(NamedTuple):
    """A question about a passage; a choice fills each gap in it."""

    id: str
    passage: str
    question: str
    choices: tuple[str, ...]
    label: int | None


Example: TypeAlias = TextExample | TokenExample | ChoiceExample | Question


class ExampleRow(NamedTuple):
    """The values of an example by column; text, except for JSON.

    `where` is the line of a table, or the id of a question. `number` is its
    position among the rows, from 0, malformed rows included.
    """

    where: str
    values: Mapping[str, Any]
    number: int
    columns: Columns

    @property
    def label(self) -> Any:
        return self.values[self.columns.label]

    @property
    def text(self) -> str:
        return _text(self.values[self.columns.text])

    @property
    def text_pair(self) -> str | None:
        """The second text or the question; None without such a column."""
        name = self.columns.text_pair
        return _text(self.values[name]) if name else None

    @property
    def raw_id(self) -> str:
        if not self.columns.id:  # pandas names the column of its index ""
            return str(self.number)
        return _text(self.values.get(self.columns.id, self.number))

    @property
    def id(self) -> str:
        """The id, where a tab would break predictions."""
        return " ".join(self.raw_id.split())


@dataclasses.dataclass
class ExampleSet:
    """The examples of a split.

    Attributes:
        task: The task, with the labels and number of choices of its examples.
        split: Name of the split, e.g. "train".
        source: The file or directory.
        examples: The examples, all of one of the types above.
        bad: Bad examples, by id or row, and the reason. Training leaves them
            out. Evaluation and prediction use them if they can be parsed, since
            every example needs a prediction.
    """

    task: Task
    split: str
    source: str
    examples: list[Any] = dataclasses.field(default_factory=list)
    bad: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def is_training(self) -> bool:
        return self.split == TRAIN

    @property
    def has_labels(self) -> bool:
        return not self.split.startswith(TEST)

    def describe(self) -> list[str]:
        """Describes the examples in lines for the log."""
        lines = [f"{len(self.examples)} examples of {self.source}"]
        if self.bad:
            faults = name_faults(list(map(": ".join, self.bad)))
            lines.append(f"{len(self.bad)} bad examples: {faults}")
        return [f"{self.split}: {line}" for line in lines]


@dataclasses.dataclass(frozen=True)
class Reader:
    """How text becomes tokens.

    Attributes:
        config: Has the lengths of questions and windows.
        length: Of a sequence, in tokens.
    """

    tokenizer: Tokenizer
    config: TaskConfig
    length: int

    @functools.cached_property
    def windows(self) -> WindowMaker:
        """Makes the windows of documents."""
        return WindowMaker(self.tokenizer, self.config, self.length)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizer.encode_batch(texts)
        parts = np.split(encoded.ids, encoded.ends[:-1])
        return [ids.tolist() for ids in parts]


class TaskFeature(NamedTuple):
    """A feature of a record.

    Attributes:
        dtype: "int64" or "float32", as stored.
        num_sequences: Number of sequences of `max_seq_length` tokens that the
            feature holds, one after another. 0: `size` values.
    """

    name: str
    dtype: str
    num_sequences: int = 0
    size: int = 1

    def length(self, shape: SequenceConfig) -> int:
        """Returns the number of values in a record."""
        return self.num_sequences * shape.max_seq_length or self.size


# --- what kinds share --------------------------------------------------------


Features: TypeAlias = tuple[TaskFeature, ...]
Head: TypeAlias = TaskHeadConfig
Scores: TypeAlias = dict[str, float]


class Kind:
    """A kind of task.

    Attributes:
        name: One of `config.task.KINDS`.
        score_names: The most important one first.
        columns: The columns of your own files, unless settings name others.
        no_label: Cells that mean "no label".
        needs: The settings that a task of your own must have.
        packages: Optional packages that the scores need.
        label_form: What a label must be.
        remedy: What to do about a row of another form.
        metric_names: The metrics of a batch.
        file_ending: Of the file of predictions.
        file_header: The lines before the predictions.
    """

    name: str
    score_names: tuple[str, ...] = ("accuracy",)
    columns = Columns("text")
    no_label: tuple[str, ...] = _NO_LABEL
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    label_form: str
    remedy = "Check the file and the flags that name its columns."
    metric_names: tuple[str, ...] = ("loss", "accuracy")
    file_ending = "tsv"
    file_header: tuple[str, ...] = ("index\tprediction",)

    # Rows -> examples.

    def layout(self, source: str) -> str:
        """The layout of a file of your own, as `Task.layout`, or "conll"."""
        return "table"

    def collect_labels(
        self, examples: ExampleSet, rows: Sequence[ExampleRow]
    ) -> None:
        """Gives `examples.task` the labels of its rows, if it has none yet."""

    def label_fault(self, examples: ExampleSet, row: ExampleRow) -> str:
        """Why a row has no usable label; "" if it has one."""
        name = " ".join(_text(row.label).split())
        if name in examples.task.labels:
            return ""
        return "no label" if name.casefold() in self.no_label else ""

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> Any:
        """The label of a row, as an example has it.

        Raises:
            ValueError, TypeError, KeyError: If it has another form.
        """
        raise NotImplementedError

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Example:
        """The example of a row."""
        raise NotImplementedError

    def texts(self, example: Any) -> tuple[str, ...]:
        """The texts of an example that must not be empty."""
        raise NotImplementedError

    def find_problem(self, examples: ExampleSet, example: Any) -> str:
        """Why training leaves an example out; "" if it does not."""
        are_full = all(map(str.strip, self.texts(example)))
        return "" if are_full else "a text is empty"

    @contextlib.contextmanager
    def refusing(self, examples: ExampleSet, row: ExampleRow) -> Iterator[None]:
        """Turns errors about the form of a row into one that names its place.

        Raises:
            UserError: Instead of ValueError, TypeError and KeyError.
        """
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            label = row.values.get(row.columns.label)
            raise UserError(
                f"{row.columns.label} of {examples.source} must be "
                f"{self.label_form}",
                received=f"{label!r} in {row.where}: {error}",
                remedy=self.remedy,
            ) from None

    def add_example(self, examples: ExampleSet, row: ExampleRow) -> None:
        """Adds the example of a row, unless it is unusable.

        Raises:
            UserError: If the row has another form.
        """
        label = None
        with self.refusing(examples, row):
            if examples.has_labels:
                if fault := self.label_fault(examples, row):
                    examples.bad.append((row.where, fault))
                    return
                label = self.parse_label(examples, row)
            example = self.make_example(examples, row, label)
        if problem := self.find_problem(examples, example):
            examples.bad.append((row.where, problem))
            if examples.is_training:
                return
        examples.examples.append(example)

    def check(self, examples: ExampleSet) -> None:
        """Checks the examples of a file together."""

    # Examples -> records.

    def features(self, task: Task | Head) -> Features:
        """The features of a record."""
        number = max(task.num_choices, 1)
        return (
            # Tokens, `[CLS] A [SEP] B [SEP]`; padded with <pad>.
            TaskFeature("input_ids", "int64", number),
            # 1 for a token, 0 for padding.
            TaskFeature("input_mask", "int64", number),
            # 0 up to the first [SEP], 1 up to the second; padded with 0.
            TaskFeature("segment_ids", "int64", number),
            # 1.0; 0.0 for a record that only fills a batch.
            TaskFeature("example_weight", "float32"),
            *self.label_features(task),
        )

    def label_features(self, task: Task | Head) -> Features:
        # Index of the class or choice; 0 without a label, as in test files.
        return (TaskFeature("label", "int64"),)

    def label_values(self, task: Task, example: Any) -> dict[str, Any]:
        """The values of `label_features`."""
        return {"label": example.label or 0}

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        """Yields the values of records by feature, without `example_weight`."""
        raise NotImplementedError

    # Outputs -> sums and predictions.

    def weights(self, batch: Tensors) -> tf.Tensor:
        """1 for each label of a batch, 0 for padding."""
        return batch["example_weight"][:, 0]

    def measures(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """The `loss` of each label, in nats, and whether it is `correct`.

        Args:
            head: What the model predicts.
            outputs: Outputs of `AlbertForTask`.
            batch: The values of `features`.

        Returns:
            float32, in the shape of `weights`.
        """
        return _cross_entropy(outputs["logits"], batch["label"][:, 0])

    def sums(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """Sums over the labels of a batch; arguments as of `measures`.

        Returns:
            float32 scalars `label_loss_sum`, `label_weight_sum` and, if
            accuracy is a metric, `label_correct_sum`.
        """
        weights = self.weights(batch)
        sums = {"label_weight_sum": tf.reduce_sum(weights)}
        for name, values in self.measures(head, outputs, batch).items():
            sums[f"label_{name}_sum"] = tf.reduce_sum(weights * values)
        return sums

    def chance_loss(self, head: Head, length: int) -> float | None:
        """The loss of a model that knows nothing; None if it is unknown."""
        return math.log(head.num_classes)

    def predictions(
        self, head: Head, outputs: Tensors, batch: Tensors
    ) -> Scalars:
        """What is kept of the outputs for a batch."""
        return dict(outputs)

    # Predictions -> scores and files.

    def find(self, examples: ExampleSet, arrays: Arrays, reader: Reader) -> Any:
        """The prediction for each example: an index, or as the kind says.

        Args:
            arrays: `predictions` of all records, in order.
        """
        return arrays["logits"].argmax(axis=-1)

    def score(
        self, examples: ExampleSet, found: Any, threshold: float
    ) -> Scores:
        """Computes the scores of what `find` found.

        Args:
            threshold: Of null odds, for questions.

        Returns:
            The scores by name, and `total`, the number of examples.
        """
        labels = [example.label for example in examples.examples]
        return scores.compute(examples.task.metrics, labels, found)

    def prediction_line(self, task: Task, example: Any, found: Any) -> str:
        """The line of an example in a file of predictions."""
        return f"{example.id}\t{task.names[found]}"

    def write(
        self, directory: str, examples: ExampleSet, found: Any, threshold: float
    ) -> str:
        """Writes what `find` found, and returns the path."""
        task, split = examples.task, examples.split
        known = task.splits.get(split)
        name = f"{split}.{self.file_ending}"
        if known and known.submission:
            name = known.submission
        path = posixpath.join(directory, name)
        lines = [
            self.prediction_line(task, example, value)
            for example, value in zip(examples.examples, found, strict=True)
        ]
        write_text(path, "\n".join([*self.file_header, *lines]) + "\n")
        return path


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> Scalars:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return {"loss": losses, "correct": correctness(logits, labels)}


class _Texts(Kind):
    """Kinds whose examples are texts or pairs of texts."""

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Example:
        return TextExample(row.id, row.text, row.text_pair, label)

    def texts(self, example: TextExample) -> tuple[str, ...]:
        pair = example.text_pair
        return (example.text,) if pair is None else (example.text, pair)

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        found, length = examples.examples, reader.length
        lengths: list[int] = []
        for begin in range(0, len(found), _BATCH):
            batch = found[begin : begin + _BATCH]
            firsts = reader.tokenize([example.text for example in batch])
            seconds = None
            if batch[0].text_pair is not None:
                pairs = [example.text_pair for example in batch]
                seconds = reader.tokenize(pairs)
            segments = [firsts] if seconds is None else [firsts, seconds]
            lengths += map(sequence_length, zip(*segments, strict=True))
            inputs = make_inputs(*truncate(firsts, seconds, length), length)
            for number, example in enumerate(batch):
                values = {
                    name: rows[number]
                    for name, rows in inputs._asdict().items()
                }
                yield values | self.label_values(examples.task, example)
        warn_of_cut(lengths, length, examples.source)


class _WithClasses(Kind):
    """Kinds whose labels are classes, which the training file has.

    The name of a class is the text of its cell, with single spaces for white
    space. An empty cell, `nan` and `-` (unless `+` is a class, too) mean that
    there is no label, and so does -1, unless the other classes are 0, 1 or
    both.
    """

    def raw_names(self, value: Any) -> list[Any]:
        """The names in a cell; a list or an object for a name is refused."""
        if value is None:
            return [value]
        return value if isinstance(value, list) else [{}]

    def class_names(self, examples: ExampleSet, row: ExampleRow) -> list[str]:
        """The names of a row's class, classes or tags.

        Raises:
            ValueError: For a list instead of a name, or the reverse, or an
                object.
        """
        names = self.raw_names(_read_list(row.label))
        if any(isinstance(name, list | dict) for name in names):
            raise ValueError("a list instead of a name, or the reverse")
        return [" ".join(_text(name).split()) for name in names]

    def collect_labels(
        self, examples: ExampleSet, rows: Sequence[ExampleRow]
    ) -> None:
        if not examples.has_labels or examples.task.labels:
            return
        names: set[str] = set()
        for row in rows:
            with self.refusing(examples, row):
                names.update(self.class_names(examples, row))
        labels = _find_classes(names)
        examples.task = dataclasses.replace(examples.task, labels=labels)
        _warn_of_similar(examples)

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> Any:
        # A model of Hugging Face may have names with other white space.
        names = [" ".join(label.split()) for label in examples.task.labels]
        found = self.class_names(examples, row)
        if not {*found} <= {*names}:
            raise ValueError(f"not one of {name_faults(names)}")
        return tuple(map(names.index, found))

    def check(self, examples: ExampleSet) -> None:
        labels = examples.task.labels
        if examples.is_training and len(labels) < 2:
            raise UserError(
                f"{examples.source} must have labels of at least two classes",
                received=", ".join(labels) or "none",
            )


def _read_list(cell: Any) -> Any:
    """The list that a cell is or holds as text; {} for an unreadable list."""
    if not isinstance(cell, str) or not _LIST.fullmatch(cell.strip()):
        return cell
    for text in (cell, cell.replace("'", '"')):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return {}


def _find_classes(names: set[str]) -> tuple[str, ...]:
    """The classes, sorted; by value, if all are whole numbers."""
    labels = {name for name in names if name.casefold() not in _NO_LABEL}
    if "+" in labels:
        labels |= names & {"-"}
    if labels in ({"0"}, {"1"}, {"0", "1"}):
        labels |= names & {"-1"}
    try:
        # Different labels can have the same value, e.g. 1 and 01.
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def _warn_of_similar(examples: ExampleSet) -> None:
    """Warns of classes that may be one, e.g. `Pos` and `pos`, `1` and `1.0`."""
    similar: dict[str, list[str]] = {}
    for label in examples.task.labels:
        # One letter may be spelled as two, e.g. an e with an accent.
        key = unicodedata.normalize("NFKC", label.casefold())
        key = "".join(c for c in key if unicodedata.category(c) != "Cf")
        key = {"true": "1", "false": "0"}.get(key, key)
        with contextlib.suppress(ValueError):
            key = str(float(key))
        similar.setdefault(key, []).append(label)
    doubtful = [
        " and ".join(names) for names in similar.values() if len(names) > 1
    ]
    if doubtful:
        logging.warning(
            "%s HAS CLASSES WITH SIMILAR NAMES: %s. Give each class one name",
            examples.source,
            name_faults(doubtful),
        )


# --- the kinds ---------------------------------------------------------------


class Classification(_WithClasses, _Texts):
    """One class of a text or a pair of texts."""

    name = config_task.CLASSIFICATION
    score_names = ("accuracy", "f1_macro")
    label_form = "one name or number, a class of the training file"
    remedy = (
        "Check the file, name another --label_column, or set "
        "--labels_are_lists for several classes."
    )

    def raw_names(self, value: Any) -> list[Any]:
        return [value]

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> int:
        (index,) = super().parse_label(examples, row)
        return index


class MultiLabel(_WithClasses, _Texts):
    """Several classes of a text, or none."""

    name = config_task.MULTI_LABEL
    score_names = ("f1_micro", "f1_macro", "accuracy")
    label_form = (
        "a list of names, as JSON or separated by commas, of classes of the "
        "training file"
    )
    remedy = (
        'Write e.g. joy,fear or ["joy", "fear"], or name another '
        "--label_column."
    )

    def raw_names(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            return list(filter(str.strip, value.split(",")))
        return super().raw_names(value)

    def collect_labels(
        self, examples: ExampleSet, rows: Sequence[ExampleRow]
    ) -> None:
        """Also refuses vectors, and warns of names that may be several."""
        super().collect_labels(examples, rows)
        if not examples.is_training:
            return
        cells = [
            self.class_names(examples, row)
            for row in rows
            if not self.label_fault(examples, row)
        ]
        if _are_vectors(cells):
            raise UserError(
                f"{rows[0].columns.label} of {examples.source} must hold the "
                "names of the classes of each text",
                received=f"{len(cells[0])} values for each text, e.g. "
                f"{', '.join(cells[0])}",
                remedy="Convert them in Python: [name for name, applies in "
                "zip(NAMES, values) if applies].",
            )
        if joined := _find_joined(examples.task.labels):
            logging.warning(
                "%s HAS CLASSES THAT MAY BE SEVERAL: %s. Separate names by "
                "commas",
                examples.source,
                name_faults(joined),
            )

    def label_fault(self, examples: ExampleSet, row: ExampleRow) -> str:
        if row.label == "":  # an empty list
            return ""
        return super().label_fault(examples, row)

    def label_features(self, task: Task | Head) -> Features:
        # 1 for a class of the text, 0 for another.
        return (TaskFeature("labels", "float32", size=len(task.labels)),)

    def label_values(self, task: Task, example: TextExample) -> dict[str, Any]:
        return {"labels": np.isin(range(len(task.labels)), example.label or ())}

    def measures(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """The mean loss of all classes, each with a sigmoid; all are right."""
        logits, labels = outputs["logits"], batch["labels"]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        # A class applies if its logit is above that of not applying, 0.
        both = tf.stack([tf.zeros_like(logits), logits], axis=-1)
        of_classes = correctness(both, tf.cast(labels > 0, tf.int32))
        return {
            "loss": tf.reduce_mean(losses, -1),
            "correct": tf.reduce_prod(of_classes, axis=-1),
        }

    def chance_loss(self, head: Head, length: int) -> float:
        return math.log(2)

    def find(self, examples: ExampleSet, arrays: Arrays, reader: Reader) -> Any:
        """Whether each class applies to each text."""
        return arrays["logits"] > 0

    def score(
        self, examples: ExampleSet, found: Any, threshold: float
    ) -> Scores:
        task = examples.task
        labels = [
            self.label_values(task, example)["labels"]
            for example in examples.examples
        ]
        return scores.compute(task.metrics, np.array(labels), found)

    def prediction_line(self, task: Task, example: Any, found: Any) -> str:
        names = [task.labels[number] for number in np.flatnonzero(found)]
        return f"{example.id}\t{json.dumps(names, ensure_ascii=False)}"


def _are_vectors(cells: Sequence[Sequence[str]]) -> bool:
    """Whether each cell has a number for each class instead of names."""
    if {*map(len, cells)} <= {0, 1} or len({*map(len, cells)}) > 1:
        return False
    names = {
        name.casefold().removesuffix(".0") for cell in cells for name in cell
    }
    repeats = any(len({*cell}) < len(cell) for cell in cells)
    return repeats or names <= {*_TRUTH_VALUES}


def _find_joined(labels: Sequence[str]) -> list[str]:
    """Classes such as `music|people`, if `people` is also alone or joined."""
    parts = {
        label: {
            part.strip() for mark in _SEPARATORS for part in label.split(mark)
        }
        for label in labels
    }
    counts = collections.Counter(itertools.chain.from_iterable(parts.values()))
    return [
        label
        for label, names in parts.items()
        if any(counts[name] > 1 for name in names - {label, ""})
    ]


class Regression(_Texts):
    """A value of a text or a pair of texts."""

    name = config_task.REGRESSION
    score_names = ("pearson", "spearman", "mean_squared_error")
    metric_names = ("loss",)
    label_form = "a finite number"
    no_label = ("", "nan", "-")  # -1 is a value

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> float:
        number = float(row.label)
        if not abs(number) <= _LARGEST:  # or NaN
            raise ValueError("not a finite number of 32 bits")
        return number

    def label_features(self, task: Task | Head) -> Features:
        return (TaskFeature("label", "float32"),)

    def measures(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """Squared errors."""
        difference = outputs["logits"][:, 0] - batch["label"][:, 0]
        return {"loss": tf.square(difference)}

    def chance_loss(self, head: Head, length: int) -> None:
        return None

    def find(self, examples: ExampleSet, arrays: Arrays, reader: Reader) -> Any:
        """The values."""
        return arrays["logits"][:, 0]

    def prediction_line(self, task: Task, example: Any, found: Any) -> str:
        if task.name == "stsb":  # its range
            found = np.clip(found, 0, 5)
        return f"{example.id}\t{found:.3f}"


class MultipleChoice(Kind):
    """The best of several answers to a question about a passage."""

    name = config_task.MULTIPLE_CHOICE
    columns = Columns("text", "question")
    needs = ("choice_columns",)
    label_form = "the number of a choice from 0, or a letter from A"

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> int:
        letter = _text(row.label).strip().upper()
        is_letter = len(letter) == 1 and letter in LETTERS
        return LETTERS.index(letter) if is_letter else int(letter)

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Example:
        choices = [row.values[column] for column in row.columns.choices]
        if len(choices) == 1:
            listed = _read_list(choices[0])
            choices = listed if isinstance(listed, list) else choices
        texts = tuple(map(_text, choices))
        question = row.text_pair or ""
        example = ChoiceExample(row.id, row.text, question, texts, label)
        self._check_choices(examples, example)
        return example

    def texts(self, example: ChoiceExample) -> tuple[str, ...]:
        return example.passage, *example.choices

    def _check_choices(
        self, examples: ExampleSet, example: ChoiceExample
    ) -> None:
        count, label = len(example.choices), example.label or 0
        if not examples.task.num_choices:
            examples.task = dataclasses.replace(
                examples.task, num_choices=count
            )
        wanted = max(examples.task.num_choices, 2)
        if count != wanted:
            raise ValueError(f"{count} choices instead of {wanted}")
        if not 0 <= label < count:
            raise ValueError(f"there is no choice {label}, counted from 0")

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        """The sequences `[CLS] passage [SEP] question choice [SEP]`."""
        length, longest = reader.length, reader.config.max_qa_length
        for example in examples.examples:
            texts = [
                fill_gaps(example.question, choice)
                for choice in example.choices
            ]
            passage, *choices = reader.tokenize([example.passage, *texts])
            cut = cut_choices(passage, choices, longest, length)
            inputs = make_inputs(*cut, length)._asdict()
            yield inputs | self.label_values(examples.task, example)


class TokenClassification(_WithClasses):
    """A tag for each word of a text."""

    name = config_task.TOKEN_CLASSIFICATION
    score_names = ("f1", "precision", "recall", "accuracy")
    columns = Columns("tokens", label="tags")
    packages = ("seqeval",)
    label_form = "a list of tags of the training file, for a list of words"
    remedy = "Check the file, or name another --text_column or --label_column."
    file_ending = "jsonl"
    file_header = ()

    def layout(self, source: str) -> str:
        if source.endswith(".csv"):
            raise UserError(
                "files of token_classification must be lists of words and tags "
                "(.jsonl, .json, .parquet), or have a word and its tag in each "
                "line, and an empty line after each text",
                received=source,
                remedy="Convert a table of words in Python: pandas.read_csv("
                'FILE).ffill().groupby("Sentence #", sort=False).agg(list)'
                '.rename(columns={"Word": "tokens", "Tag": "tags"}).to_json('
                '"train.jsonl", orient="records", lines=True).',
            )
        has_lists = source.endswith((".jsonl", ".json", ".parquet"))
        return "table" if has_lists else "conll"

    def class_names(self, examples: ExampleSet, row: ExampleRow) -> list[str]:
        """The tags in the scheme BIO, unless the model has others."""
        return [
            tag if tag in examples.task.labels else _to_bio(tag)
            for tag in super().class_names(examples, row)
        ]

    def collect_labels(
        self, examples: ExampleSet, rows: Sequence[ExampleRow]
    ) -> None:
        """Also refuses tags of no known scheme."""
        super().collect_labels(examples, rows)
        tags = map(_to_bio, examples.task.labels)
        wrong = [tag for tag in tags if not _TAG.fullmatch(tag)]
        if not wrong:
            return
        remedy = (
            "Write e.g. B-PER for the first and I-PER for each further word of "
            "a span, or name another --label_column."
        )
        if all(map(str.isdigit, wrong)):
            remedy = (
                "Numbers are indices of names. Convert a data set of Hugging "
                "Face in Python: names = dataset.features[COLUMN].feature."
                "names; [names[number] for number in row[COLUMN]]."
            )
        raise UserError(
            f"tags of {examples.source} must be O, or B- or I- and the name of "
            "a kind of spans; BIOES and BILOU are converted",
            received=name_faults(wrong),
            remedy=remedy,
        )

    def _words(self, row: ExampleRow) -> tuple[str, ...]:
        words = _read_list(row.values[row.columns.text])
        if not isinstance(words, list):
            raise ValueError(f"{row.columns.text} are {row.text!r:.80}")
        return tuple(map(_text, words))

    def label_fault(self, examples: ExampleSet, row: ExampleRow) -> str:
        if fault := super().label_fault(examples, row):
            return fault
        num_tags = len(self.class_names(examples, row))
        num_words = len(self._words(row))
        if num_tags == num_words:
            return ""
        return f"{num_tags} tags for {num_words} words"

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Example:
        return TokenExample(row.id, self._words(row), label)

    def texts(self, example: TokenExample) -> tuple[str, ...]:
        return (" ".join(example.words),)

    def label_features(self, task: Task | Head) -> Features:
        return (
            # For the first token of a word its number, from 1; 0 for others.
            TaskFeature("word_numbers", "int64", 1),
            # Index of the tag of that word; 0 elsewhere, and in test files.
            TaskFeature("token_labels", "int64", 1),
        )

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        """The first token of a word has its label, as in BERT's paper.

        See section 5.3. Words whose first token is beyond the length have none.
        """
        length = reader.length
        for example in examples.examples:
            pieces = reader.tokenize(example.words)
            sizes = np.array([*map(len, pieces)], np.int64)
            positions, is_read = first_tokens(sizes, length)
            num_lost = np.count_nonzero(sizes) - np.count_nonzero(is_read)
            if num_lost:
                problem = f"{num_lost} of {len(sizes)} words beyond "
                examples.bad.append((example.id, f"{problem}max_seq_length"))
            words = np.flatnonzero(is_read)
            numbers, labels = np.zeros((2, length), np.int64)
            numbers[positions[words]] = words + 1
            if example.label is not None:
                labels[positions[words]] = np.array(example.label)[words]
            ids = [piece for word in pieces for piece in word]
            inputs = make_inputs([ids[: length - 2]], length=length)._asdict()
            yield inputs | {"word_numbers": numbers, "token_labels": labels}

    def weights(self, batch: Tensors) -> tf.Tensor:
        is_first = tf.cast(batch["word_numbers"] > 0, tf.float32)
        return batch["example_weight"] * is_first

    def measures(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        return _cross_entropy(outputs["logits"], batch["token_labels"])

    def predictions(
        self, head: Head, outputs: Tensors, batch: Tensors
    ) -> Scalars:
        tags = tf.argmax(outputs["logits"], -1, tf.int32)
        return {"tags": tags, "word_numbers": batch["word_numbers"]}

    def find(self, examples: ExampleSet, arrays: Arrays, reader: Reader) -> Any:
        """The tags of each text; "O" for a word that the model did not read."""
        tags_of_texts = []
        for example, row, numbers in zip(
            examples.examples,
            arrays["tags"],
            arrays["word_numbers"],
            strict=True,
        ):
            tags = ["O"] * len(example.words)
            for position in np.flatnonzero(numbers):
                label = examples.task.labels[row[position]]
                tags[numbers[position] - 1] = label
            tags_of_texts.append(tags)
        return tags_of_texts

    def score(
        self, examples: ExampleSet, found: Any, threshold: float
    ) -> Scores:
        """Scores of spans, by seqeval; the accuracy, of words."""
        task = examples.task
        labels = [
            _bio_tags(task, example.label) for example in examples.examples
        ]
        tags = [[*map(_to_bio, row)] for row in found]
        return scores.compute_spans(task.metrics, labels, tags)

    def prediction_line(self, task: Task, example: Any, found: Any) -> str:
        row = {"id": example.id, "tokens": example.words, "tags": found}
        return json.dumps(row, ensure_ascii=False)


def _to_bio(tag: str) -> str:
    return _BIO.get(tag[:2], tag[:2]) + tag[2:]


def _bio_tags(task: Task, label: Sequence[int]) -> list[str]:
    return [_to_bio(task.labels[number]) for number in label]


class QuestionAnswering(Kind):
    """A span of a document that answers a question, or none."""

    name = config_task.QUESTION_ANSWERING
    score_names = ("f1", "exact")
    columns = Columns("text", "question", "answer")
    label_form = (
        "a text, with a number as answer_start, and true, false, 1 or 0 as "
        "is_impossible, if there is such a column"
    )

    def layout(self, source: str) -> str:
        return "squad" if source.endswith(".json") else "table"

    def may_be_unanswerable(self, task: Task) -> bool:
        """Whether a document may lack the answer to its question."""
        return task.name != ALWAYS_ANSWERABLE

    def label_fault(self, examples: ExampleSet, row: ExampleRow) -> str:
        return ""  # no answer is one

    def parse_label(
        self, examples: ExampleSet, row: ExampleRow
    ) -> tuple[tuple[Answer, ...], bool]:
        """The answers, and whether the document has none."""
        value = row.label
        text = _text(value)
        if isinstance(value, dict):  # Hugging Face
            texts, starts = value["text"], value["answer_start"]
        elif isinstance(value, list):  # SQuAD
            texts = [answer["text"] for answer in value]
            starts = [answer["answer_start"] for answer in value]
        else:
            texts = [text] if text else []
            starts = [row.values.get(row.columns.answer_start, "")] * len(texts)
        answers = tuple(
            Answer(_text(text), int(start))
            for text, start in zip(texts, starts, strict=True)
        )
        # A question without an answer may be unmarked.
        mark = row.values.get("is_impossible", not answers)
        is_impossible = _TRUTH_VALUES[_text(mark).strip().lower()]
        if is_impossible and not self.may_be_unanswerable(examples.task):
            raise UserError(
                f"every question of {examples.source} must have an answer",
                received=f"none in {row.raw_id}",
                remedy="Use --task=squad_v2 for files of SQuAD 2.0.",
            )
        return answers, is_impossible

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Example:
        answers, is_impossible = label or ((), False)
        question = row.text_pair or ""
        return Question(row.raw_id, question, row.text, answers, is_impossible)

    def texts(self, example: Question) -> tuple[str, ...]:
        return example.question, example.document

    def find_problem(self, examples: ExampleSet, example: Question) -> str:
        lacks_answer = not (example.answers or example.is_impossible)
        if examples.has_labels and lacks_answer:
            return "no answer, though the question is not marked as impossible"
        problem = super().find_problem(examples, example)
        return problem or find_fault(example)

    def check(self, examples: ExampleSet) -> None:
        """Answers are stored and scored by id."""
        counts = collections.Counter(
            question.id for question in examples.examples
        )
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise UserError(
                f"questions of {examples.source} must have different ids",
                received=f"{name_faults(repeated)}, more than once",
                remedy="Correct the file or, for a table, name another column "
                "as --id_column.",
            )

    def label_features(self, task: Task | Head) -> Features:
        return (
            # 1 for a token that no answer contains: question, [SEP], padding.
            # 0 for the document and for [CLS], as in google-research/albert.
            TaskFeature("p_mask", "int64", 1),
            # Positions of the answer's first and last token; 0, which is [CLS],
            # if the window does not contain the answer.
            TaskFeature("start_position", "int64"),
            TaskFeature("end_position", "int64"),
            # 1 if the window does not contain an answer.
            TaskFeature("is_impossible", "int64"),
        )

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        length = reader.length
        for question in examples.examples:
            windows = reader.windows.make(question)
            if windows.problem:
                examples.bad.append((question.id, windows.problem))
                if examples.is_training:
                    continue
            for window in range(len(windows.spans)):
                first, last = windows.answer_in(window)
                yield windows.inputs(window, length) | {
                    "start_position": first,
                    "end_position": last,
                    "is_impossible": first == 0,
                }

    def measures(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """The loss of a span is the mean of those of its start and end.

        The beam head adds half the loss of answerability, as in
        google-research/albert.
        """
        start, end = (
            _cross_entropy(
                outputs[f"{name}_logits"], batch[f"{name}_position"][:, 0]
            )
            for name in ("start", "end")
        )
        losses = (start["loss"] + end["loss"]) / 2
        if head.is_beam:
            is_impossible = tf.cast(batch["is_impossible"][:, 0], tf.float32)
            losses += 0.5 * tf.nn.sigmoid_cross_entropy_with_logits(
                is_impossible, outputs["null_logits"]
            )
        return {"loss": losses, "correct": start["correct"] * end["correct"]}

    def chance_loss(self, head: Head, length: int) -> float | None:
        return None if head.is_beam else math.log(length)

    def predictions(
        self, head: Head, outputs: Tensors, batch: Tensors
    ) -> Scalars:
        # The outputs of the beam suffice to find the answers.
        unused = ("start_logits", "end_logits") if head.is_beam else ()
        return {
            name: value for name, value in outputs.items() if name not in unused
        }

    def find(self, examples: ExampleSet, arrays: Arrays, reader: Reader) -> Any:
        """The `QuestionAnswer` of each question."""
        return list(find_answers(examples.examples, reader.windows, arrays))

    def score(
        self, examples: ExampleSet, found: Any, threshold: float
    ) -> Scores:
        return scores.score_answers(
            examples.examples,
            {answer.id: answer.text() for answer in found},
            {answer.id: answer.null_odds for answer in found},
            threshold,
            may_be_unanswerable=self.may_be_unanswerable(examples.task),
        )

    def write(
        self, directory: str, examples: ExampleSet, found: Any, threshold: float
    ) -> str:
        scores.write_answers(directory, found, threshold)
        return directory


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Classification(),
        MultiLabel(),
        Regression(),
        MultipleChoice(),
        TokenClassification(),
        QuestionAnswering(),
    )
}


def find_task(config: TaskConfig) -> Task:
    """Returns the task that `config.task` names.

    Raises:
        UserError: If the name is unknown, or settings of the task do not fit.
        ModuleNotFoundError: Without seqeval, for token classification.
    """
    name = config.task
    if name in TASKS:
        return TASKS[name]
    if name not in OWN_TASKS:
        raise UserError(
            "--task must be one of " + ", ".join([*TASKS, *OWN_TASKS]),
            received=repr(name),
        )
    kind = KINDS[name]
    if name == config_task.CLASSIFICATION and config.labels_are_lists:
        kind = KINDS[config_task.MULTI_LABEL]
    config.require(*kind.needs)
    for package in kind.packages:
        importlib.import_module(package)  # fails before the training, not after
    usual = kind.columns
    columns = Columns(
        text=config.text_column or usual.text,
        text_pair=config.text_pair_column or usual.text_pair,
        label=config.label_column or usual.label,
        id=config.id_column,
        choices=config.choice_columns,
        answer_start=config.answer_start_column,
    )
    splits = {split: Split(columns) for split in FILES}
    return Task(name, kind.name, splits=splits, metrics=kind.score_names)
