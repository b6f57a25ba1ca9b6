"""The kinds of tasks: what each makes of a row of a file, up to its scores.

1. A row becomes an example (`make_example`, with its label).
2. An example becomes records, what one call of the model reads: a text or a
   pair of texts, all choices of a question, or one window of a document.
3. The outputs of the model become sums of losses (`sums`), and what is kept of
   them (`predictions`).
4. The predictions of all records become those of the examples (`find`), their
   scores and a file.

`serving.export` has what an exported model answers, by the same names of kinds.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
)
from albert_tf.records.tokenization import (
    ModelInputs,
    Tokenizer,
    join,
    sequence_length,
    truncate,
    warn_of_cut,
)
from albert_tf.training.objective import Scalars, correctness, weighted_sums

_BATCH = 1000  # texts to tokenize in one call

# Cells that mean "no label".
_NO_LABEL = ("", "nan", "-")

# Tags of words: outside of a span, or in it and its kind.
_TAG = re.compile("O|[BI]-.+")

# How BIOES, BILOU and BMEWO begin a tag -> how BIO does.
_BIO = {"E-": "I-", "L-": "I-", "M-": "I-", "S-": "B-", "U-": "B-", "W-": "B-"}

# A list in a cell of a table, as json, pandas or NumPy write it.
_LIST = re.compile(r"\[.*\]|\{.*\}|\(\s*['\"].*\)", re.DOTALL)

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
        return _text(self.values.get(self.columns.id, self.number))

    @property
    def id(self) -> str:
        """The id, where a tab would break predictions."""
        return " ".join(self.raw_id.split())


class Made(NamedTuple):
    """What a row made.

    Attributes:
        example: None if no prediction is possible.
        problem: Why training leaves it out; "" if it does not.
        where: How `ExampleSet.bad` names it.
    """

    example: Example | None
    problem: str
    where: str


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

    def labels(self) -> list[Any]:
        """The labels as `Kind.compare` takes them, with names for indices."""
        return [self.task.named(example.label) for example in self.examples]

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
        columns: The settings that name the columns of your own files.
        needs: The settings that a task of your own must have.
        packages: Optional packages that the scores need.
        metric_names: The metrics of a batch.
        file_ending: Of the file of predictions.
        file_header: The lines before the predictions.
    """

    name: str
    score_names: tuple[str, ...] = ("accuracy",)
    columns: Mapping[str, str] = {
        "text": "text_column",
        "text_pair": "text_pair_column",
        "label": "label_column",
    }
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
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

    def has_no_label(self, examples: ExampleSet, row: ExampleRow) -> bool:
        """Whether the label of a row is missing."""
        name = _text(row.label).strip()
        return name == "-1" or _is_no_label(name, examples.task.labels)

    def label_form(self, task: Task) -> str:
        """What a label must be."""
        raise NotImplementedError

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> Any:
        """The label of a row, as an example has it.

        Raises:
            ValueError, TypeError, KeyError: If it has another form.
        """
        raise NotImplementedError

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Made:
        """The example of a row."""
        raise NotImplementedError

    def add_example(self, examples: ExampleSet, row: ExampleRow) -> None:
        """Adds the example of a row, unless it is unusable.

        Raises:
            UserError: If its label has another form.
        """
        label = None
        if examples.has_labels:
            if self.has_no_label(examples, row):
                examples.bad.append((row.where, "no label"))
                return
            try:
                label = self.parse_label(examples, row)
            except (ValueError, TypeError, KeyError) as error:
                form = self.label_form(examples.task)
                raise UserError(
                    f"{row.columns.label} of {examples.source} must be {form}",
                    received=f"{row.label!r} in {row.where}: {error}",
                    remedy="Check the file and the flags that name its "
                    "columns.",
                ) from None
        made = self.make_example(examples, row, label)
        if made.problem:
            examples.bad.append((made.where, made.problem))
            if examples.is_training:
                return
        if made.example is not None:
            examples.examples.append(made.example)

    def check(self, examples: ExampleSet) -> None:
        """Checks the examples of a file together."""

    # Examples -> records.

    def features(self, task: Task | Head) -> Features:
        """The features of a record."""
        return (
            *self._sequences(),
            # Index of the class or choice; 0 without a label, as in test files.
            TaskFeature("label", "int64"),
        )

    def _sequences(self, number: int = 1) -> Features:
        return (
            # Tokens, `[CLS] A [SEP] B [SEP]`; padded with <pad>.
            TaskFeature("input_ids", "int64", number),
            # 1 for a token, 0 for padding.
            TaskFeature("input_mask", "int64", number),
            # 0 up to the first [SEP], 1 up to the second; padded with 0.
            TaskFeature("segment_ids", "int64", number),
            # 1.0; 0.0 for a record that only fills a batch.
            TaskFeature("example_weight", "float32"),
        )

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        """Yields the values of records by feature, without `example_weight`."""
        raise NotImplementedError

    # Outputs -> sums and predictions.

    def weights(self, batch: Tensors) -> tf.Tensor:
        """1 for each label of a batch: `(batch, labels)`."""
        return batch["example_weight"]

    def sums(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """Sums losses, correct predictions and weights over a batch.

        Args:
            head: What the model predicts.
            outputs: Outputs of `AlbertForTask`.
            batch: `example_weight`, float32, `(batch, 1)`, 0 for padding; and
                the other `features`, `(batch, 1)`.

        Returns:
            float32 scalars `label_loss_sum`, in nats; `label_weight_sum`; and,
            if accuracy is a metric, `label_correct_sum`.
        """
        labels = batch["label"][:, 0]
        weights = self.weights(batch)[:, 0]
        return weighted_sums("label", outputs["logits"], labels, weights)

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
        """The prediction for each example: its name, names or value.

        Args:
            arrays: `predictions` of all records, in order.
        """
        best = arrays["logits"].argmax(axis=-1)
        return list(map(examples.task.named, best))

    def compare(self, task: Task, labels: Any, found: Any) -> Scores:
        """Computes the scores of a task.

        Args:
            labels: For each example a value, the name of a class or choice, or
                the list of its classes or tags.
            found: As `labels`; perhaps with classes that the task lacks.

        Returns:
            The scores by name, and `total`, the number of examples.
        """
        places = scores.Places(task.names)
        pair = [[*map(places.find, side)] for side in (labels, found)]
        return scores.compute(task.metrics, *pair)

    def score(
        self, examples: ExampleSet, found: Any, threshold: float
    ) -> Scores:
        """Computes the scores of predictions that `find` found.

        `threshold` is that of null odds, for questions.
        """
        return self.compare(examples.task, examples.labels(), found)

    def prediction_line(self, task: Task, example: Any, found: Any) -> str:
        """The line of an example in a file of predictions."""
        return f"{example.id}\t{found}"

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


def _are_full(*texts: str) -> bool:
    return all(map(str.strip, texts))


def _is_no_label(name: str, classes: Iterable[str]) -> bool:
    """Whether a cell means "no label"; `classes`: all names of the file."""
    others = {*classes} - {"-1", *_NO_LABEL}
    if name == "-":
        return "+" not in classes
    if name == "-1":
        counted = {str(number) for number in range(len(others))}
        return others != counted or len(others) not in (1, 2)
    return name.casefold() in _NO_LABEL


def _example_sums(
    batch: Tensors, losses: tf.Tensor, correct: tf.Tensor | None = None
) -> Scalars:
    """The sums of values of each example, `(batch,)`."""
    weights = batch["example_weight"][:, 0]
    sums = {
        "label_weight_sum": tf.reduce_sum(weights),
        "label_loss_sum": tf.reduce_sum(weights * losses),
    }
    if correct is not None:
        sums["label_correct_sum"] = tf.reduce_sum(weights * correct)
    return sums


class _Texts(Kind):
    """Kinds whose examples are texts or pairs of texts."""

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Made:
        text = row.text
        pair = row.text_pair
        example = TextExample(row.id, text, pair, label)
        is_full = _are_full(text) and (pair is None or _are_full(pair))
        return Made(example, "" if is_full else "a text is empty", row.where)

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        found, length = examples.examples, reader.length
        lengths: list[int] = []
        for begin in range(0, len(found), _BATCH):
            batch = found[begin : begin + _BATCH]
            firsts = reader.tokenize([e.text for e in batch])
            seconds = None
            if batch[0].text_pair is not None:
                seconds = reader.tokenize([e.text_pair or "" for e in batch])
            segments = zip(*filter(None, (firsts, seconds)), strict=True)
            lengths += map(sequence_length, segments)
            inputs = join(*truncate(firsts, seconds, length), length)
            for example, *rows in zip(batch, *inputs, strict=True):
                values = ModelInputs(*rows)._asdict()
                yield values | {"label": example.label or 0}
        warn_of_cut(lengths, length, examples.source)


class _WithClasses(Kind):
    """Kinds whose labels are classes, which the training file has.

    The name of a class is the text of its cell, with single spaces for white
    space. An empty cell, `nan` and `-` (unless `+` is a class, too) mean that
    there is no label, and so does -1, unless it is a class beside 0, or 0 and
    1.
    """

    def raw_names(self, value: Any) -> list[Any]:
        """The names in a cell; a list or an object for a name is refused."""
        if value is None:
            return [value]
        return value if isinstance(value, list) else [{}]

    names_form = "a list of names"
    names_remedy = "Name the column of the lists."

    def class_names(self, examples: ExampleSet, row: ExampleRow) -> list[str]:
        """The names of a row's class, classes or tags.

        Raises:
            UserError: For a list instead of a name, or the reverse, or an
                object.
        """
        value = row.label
        names = self.raw_names(_read_list(value))
        if any(isinstance(name, list | dict) for name in names):
            raise UserError(
                f"{row.columns.label} of {examples.source} must be "
                f"{self.names_form}",
                received=f"{value!r} in {row.where}",
                remedy=self.names_remedy,
            )
        return [" ".join(_text(name).split()) for name in names]

    def collect_labels(
        self, examples: ExampleSet, rows: Sequence[ExampleRow]
    ) -> None:
        if not examples.has_labels or examples.task.labels:
            return
        cells = [self.class_names(examples, row) for row in rows]
        labels = _find_classes(set(itertools.chain.from_iterable(cells)))
        examples.task = dataclasses.replace(examples.task, labels=labels)
        _warn_of_similar(examples)

    def label_form(self, task: Task) -> str:
        return f"one of {name_faults(task.labels)}"

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> Any:
        # Earlier versions stored the names with their white space.
        names = [" ".join(label.split()) for label in examples.task.labels]
        found = self.class_names(examples, row)
        if not {*found} <= {*names}:
            raise ValueError("no label of the training file")
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
    labels = {name for name in names if not _is_no_label(name, names)}
    try:
        # Different labels can have the same value, e.g. 1 and 01.
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def _warn_of_similar(examples: ExampleSet) -> None:
    """Warns of classes that may be one, e.g. `Pos` and `pos`, `1` and `1.0`."""
    similar: dict[str, list[str]] = {}
    for label in examples.task.labels:
        key = {"true": "1", "false": "0"}.get(
            label.casefold(), label.casefold()
        )
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
    names_form = "one name or number"
    names_remedy = (
        "An example has one class: name another --label_column, or set "
        "--labels_are_lists."
    )

    def raw_names(self, value: Any) -> list[Any]:
        return [value]

    def has_no_label(self, examples: ExampleSet, row: ExampleRow) -> bool:
        (name,) = self.class_names(examples, row)
        if name in examples.task.labels:
            return False
        return super().has_no_label(examples, row)

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> int:
        (index,) = super().parse_label(examples, row)
        return index


class MultiLabel(_WithClasses, _Texts):
    """Several classes of a text, or none."""

    name = config_task.MULTI_LABEL
    score_names = ("f1_micro", "f1_macro", "accuracy")

    names_form = "a list of names, as JSON or separated by commas"
    names_remedy = (
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
            if not self.has_no_label(examples, row)
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

    def has_no_label(self, examples: ExampleSet, row: ExampleRow) -> bool:
        if row.label == "":  # an empty list
            return False
        return super().has_no_label(examples, row)

    def features(self, task: Task | Head) -> Features:
        # 1 for a class of the text, 0 for another.
        labels = TaskFeature("labels", "float32", size=len(task.labels))
        return (*self._sequences(), labels)

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        classes = range(len(examples.task.labels))
        for values in super().records(examples, reader):
            values["labels"] = np.isin(classes, values["label"] or ())
            yield values

    def sums(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """The mean loss of all classes, each with a sigmoid; all are right."""
        logits, labels = outputs["logits"], batch["labels"]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        # A class applies if its logit is above that of not applying, 0.
        both = tf.stack([tf.zeros_like(logits), logits], axis=-1)
        of_classes = correctness(both, tf.cast(labels > 0, tf.int32))
        correct = tf.reduce_prod(of_classes, axis=-1)
        return _example_sums(batch, tf.reduce_mean(losses, -1), correct)

    def chance_loss(self, head: Head, length: int) -> float:
        return math.log(2)

    def find(self, examples: ExampleSet, arrays: Arrays, reader: Reader) -> Any:
        applies = arrays["logits"] > 0
        return list(map(examples.task.named, map(np.flatnonzero, applies)))

    def compare(self, task: Task, labels: Any, found: Any) -> Scores:
        places = scores.Places(task.names)
        sides = [
            [[*map(places.find, names)] for names in side]
            for side in (labels, found)
        ]
        pair = [
            np.array([np.isin(range(len(places)), row) for row in side])
            for side in sides
        ]
        return scores.compute(task.metrics, *pair)

    def prediction_line(self, task: Task, example: Any, found: Any) -> str:
        return f"{example.id}\t{json.dumps(found, ensure_ascii=False)}"


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

    def has_no_label(self, examples: ExampleSet, row: ExampleRow) -> bool:
        name = _text(row.label).strip()
        return name != "-1" and _is_no_label(name, ())

    def label_form(self, task: Task) -> str:
        return "a finite number"

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> float:
        number = float(row.label)
        if not math.isfinite(number):
            raise ValueError("not a finite number")
        return number

    def features(self, task: Task | Head) -> Features:
        return (*self._sequences(), TaskFeature("label", "float32"))

    def sums(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """Squared errors."""
        difference = outputs["logits"][:, 0] - batch["label"][:, 0]
        return _example_sums(batch, tf.square(difference))

    def chance_loss(self, head: Head, length: int) -> None:
        return None

    def find(self, examples: ExampleSet, arrays: Arrays, reader: Reader) -> Any:
        return arrays["logits"][:, 0]

    def compare(self, task: Task, labels: Any, found: Any) -> Scores:
        return scores.compute(task.metrics, labels, found)

    def prediction_line(self, task: Task, example: Any, found: Any) -> str:
        if task.name == "stsb":  # its range
            found = np.clip(found, 0, 5)
        return f"{example.id}\t{found:.3f}"


class MultipleChoice(Kind):
    """The best of several answers to a question about a passage."""

    name = config_task.MULTIPLE_CHOICE
    columns: Mapping[str, str] = {
        **Kind.columns,
        "text_pair": "question_column",
        "choices": "choice_columns",
    }
    needs = ("choice_columns",)

    def label_form(self, task: Task) -> str:
        return "the number of a choice from 0, or a letter from A"

    def parse_label(self, examples: ExampleSet, row: ExampleRow) -> int:
        letter = _text(row.label).strip().upper()
        is_letter = len(letter) == 1 and letter in LETTERS
        return LETTERS.index(letter) if is_letter else int(letter)

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Made:
        passage = row.text
        question = row.text_pair or ""
        choices = [row.values[column] for column in row.columns.choices]
        if len(choices) == 1 and isinstance(_read_list(choices[0]), list):
            choices = _read_list(choices[0])
        texts = tuple(map(_text, choices))
        name = row.id
        example = ChoiceExample(name, passage, question, texts, label)
        self._check_choices(examples, example)
        problem = ""
        if not _are_full(passage, *texts):
            problem = "the passage or a choice is empty"
        return Made(example, problem, name)

    def _check_choices(
        self, examples: ExampleSet, example: ChoiceExample
    ) -> None:
        count, label = len(example.choices), example.label or 0
        if not examples.task.num_choices:
            examples.task = dataclasses.replace(
                examples.task, num_choices=count
            )
        wanted = max(examples.task.num_choices, 2)
        if count != wanted or not 0 <= label < count:
            raise UserError(
                f"questions of {examples.source} must have {wanted} choices, "
                "one of which is the label",
                received=f"{count} choices, and choice {label}, counted from "
                f"0, in {example.id}",
            )

    def features(self, task: Task | Head) -> Features:
        return (
            *self._sequences(task.num_choices),
            TaskFeature("label", "int64"),
        )

    def records(self, examples: ExampleSet, reader: Reader) -> Values:
        """The sequences `[CLS] passage [SEP] question choice [SEP]`.

        Question and choice keep their last `max_qa_length` tokens together; the
        passage loses its end, as in google-research/albert.
        """
        length = reader.length
        longest = min(reader.config.max_qa_length, length - 3)
        for example in examples.examples:
            texts = [
                fill_gaps(example.question, choice)
                for choice in example.choices
            ]
            passage, *ends = reader.tokenize([example.passage, *texts])
            seconds = [ids[-longest:] for ids in ends]
            firsts = [passage[: length - 3 - len(second)] for second in seconds]
            inputs = join(firsts, seconds, length)
            yield inputs._asdict() | {"label": example.label or 0}


class TokenClassification(_WithClasses):
    """A tag for each word of a text."""

    name = config_task.TOKEN_CLASSIFICATION
    score_names = ("f1", "precision", "recall", "accuracy")
    columns: Mapping[str, str] = {
        "text": "tokens_column",
        "label": "tags_column",
    }
    packages = ("seqeval",)
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
            "a span, or name another --tags_column."
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

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Made:
        words = _read_list(row.values[row.columns.text])
        if not isinstance(words, list):
            raise UserError(
                f"{row.columns.text} of {examples.source} must be a list of "
                "words",
                received=f"{row.text!r:.80} in {row.where}",
                remedy="Name another --tokens_column.",
            )
        texts = tuple(map(_text, words))
        if label is not None and len(label) != len(texts):
            problem = f"{len(label)} tags for {len(texts)} words"
            return Made(None, problem, row.where)
        example = TokenExample(row.id, texts, label)
        is_full = any(map(str.strip, texts))
        return Made(example, "" if is_full else "a text is empty", row.where)

    def check(self, examples: ExampleSet) -> None:
        """Also says how spans count that begin with I-."""
        super().check(examples)
        if not examples.has_labels:
            return
        open_spans = [
            f"{tag} after {before} in {example.id}"
            for example, tags in zip(
                examples.examples, examples.labels(), strict=True
            )
            for before, tag in itertools.pairwise(["O", *map(_to_bio, tags)])
            if tag[0] == "I" and before[1:] != tag[1:]
        ]
        if open_spans:
            logging.warning(
                "%s: %d spans begin with I-: %s. They count as spans, as in "
                "the scheme IOB1",
                examples.source,
                len(open_spans),
                name_faults(open_spans),
            )

    def features(self, task: Task | Head) -> Features:
        return (
            *self._sequences(),
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
            ends = np.cumsum([1, *map(len, pieces)])
            firsts = {
                position: number
                for number, position in enumerate(ends[:-1])
                if pieces[number] and position < length - 1
            }
            lost = int((ends[:-1] >= length - 1).sum())
            if lost:
                problem = f"{lost} of {len(pieces)} words beyond max_seq_length"
                examples.bad.append((example.id, problem))
            ids = [piece for word in pieces for piece in word]
            inputs = join([ids[: length - 2]], length=length)
            numbers, labels = np.zeros((2, length), np.int64)
            numbers[[*firsts]] = [number + 1 for number in firsts.values()]
            if example.label is not None:
                labels[[*firsts]] = [
                    example.label[number] for number in firsts.values()
                ]
            yield inputs._asdict() | {
                "word_numbers": numbers,
                "token_labels": labels,
            }

    def weights(self, batch: Tensors) -> tf.Tensor:
        is_first = tf.cast(batch["word_numbers"] > 0, tf.float32)
        return batch["example_weight"] * is_first

    def sums(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        labels, weights = batch["token_labels"], self.weights(batch)
        return weighted_sums("label", outputs["logits"], labels, weights)

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

    def compare(self, task: Task, labels: Any, found: Any) -> Scores:
        """Scores of spans, by seqeval; the accuracy, of words."""
        sides = [
            [[*map(_to_bio, tags)] for tags in side] for side in (labels, found)
        ]
        return scores.compute_spans(task.metrics, *sides)

    def prediction_line(self, task: Task, example: Any, found: Any) -> str:
        row = {"id": example.id, "tokens": example.words, "tags": found}
        return json.dumps(row, ensure_ascii=False)


def _to_bio(tag: str) -> str:
    return _BIO.get(tag[:2], tag[:2]) + tag[2:]


class QuestionAnswering(Kind):
    """A span of a document that answers a question, or none."""

    name = config_task.QUESTION_ANSWERING
    score_names = ("f1", "exact")
    columns: Mapping[str, str] = {
        **Kind.columns,
        "text_pair": "question_column",
        "label": "answer_column",
        "answer_start": "answer_start_column",
    }

    def layout(self, source: str) -> str:
        return "squad" if source.endswith(".json") else "table"

    def may_be_unanswerable(self, task: Task) -> bool:
        """Whether a document may lack the answer to its question."""
        return task.name != ALWAYS_ANSWERABLE

    def has_no_label(self, examples: ExampleSet, row: ExampleRow) -> bool:
        return False

    def label_form(self, task: Task) -> str:
        return "a text, with a number as answer_start"

    def parse_label(
        self, examples: ExampleSet, row: ExampleRow
    ) -> tuple[Answer, ...]:
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
        pairs = zip(texts, map(int, starts), strict=True)
        return tuple(Answer(*pair) for pair in pairs)

    def make_example(
        self, examples: ExampleSet, row: ExampleRow, label: Any
    ) -> Made:
        name = row.raw_id
        question = row.text_pair or ""
        document = row.text
        is_impossible = self._is_impossible(examples, row, name, label)
        example = Question(name, question, document, label or (), is_impossible)
        return Made(example, _find_problem(example, examples.has_labels), name)

    def _is_impossible(
        self, examples: ExampleSet, row: ExampleRow, name: str, answers: Any
    ) -> bool:
        """Whether a question is marked as impossible or, unmarked, bare."""
        if not examples.has_labels:
            return False
        value = row.values.get("is_impossible", not answers)
        truth = _TRUTH_VALUES.get(_text(value).strip().lower())
        if truth is None:
            raise UserError(
                f"is_impossible of {examples.source} must be true, false, 1 or "
                "0",
                received=f"{value!r} in {row.where}",
            )
        if truth and not self.may_be_unanswerable(examples.task):
            raise UserError(
                f"every question of {examples.source} must have an answer",
                received=f"none in {name}",
                remedy="Use --task=squad_v2 for files of SQuAD 2.0.",
            )
        return truth

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

    def features(self, task: Task | Head) -> Features:
        return (
            *self._sequences(),
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
        reported = {where for where, _ in examples.bad}
        for question in examples.examples:
            windows = reader.windows.make(question)
            if windows.problem and question.id not in reported:
                examples.bad.append((question.id, windows.problem))
            if windows.problem and examples.is_training:
                continue
            for window in range(len(windows.spans)):
                first, last = windows.answer_in(window)
                yield windows.inputs(window, length) | {
                    "start_position": first,
                    "end_position": last,
                    "is_impossible": first == 0,
                }

    def sums(self, head: Head, outputs: Tensors, batch: Tensors) -> Scalars:
        """The loss of a span is the mean of those of its start and end.

        The beam head adds half the loss of answerability, as in
        google-research/albert.
        """
        starts, ends = (
            batch["start_position"][:, 0],
            batch["end_position"][:, 0],
        )
        of_starts, of_ends = outputs["start_logits"], outputs["end_logits"]
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        losses = (
            cross_entropy(starts, of_starts) + cross_entropy(ends, of_ends)
        ) / 2
        if head.is_beam:
            is_impossible = tf.cast(batch["is_impossible"][:, 0], tf.float32)
            losses += 0.5 * tf.nn.sigmoid_cross_entropy_with_logits(
                is_impossible, outputs["null_logits"]
            )
        correct = correctness(of_starts, starts) * correctness(of_ends, ends)
        return _example_sums(batch, losses, correct)

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
        may_be_null = self.may_be_unanswerable(examples.task)
        null_odds = {answer.id: answer.null_odds for answer in found}
        return scores.score_answers(
            examples.examples,
            {answer.id: answer.text() for answer in found},
            null_odds if may_be_null else None,
            threshold,
            may_be_unanswerable=may_be_null,
        )

    def write(
        self, directory: str, examples: ExampleSet, found: Any, threshold: float
    ) -> str:
        scores.write_answers(directory, found, threshold)
        return directory


def _find_problem(question: Question, has_labels: bool) -> str:
    """Why a question is unusable for training; "" if it is usable."""
    for name in ("question", "document"):
        if not _are_full(getattr(question, name)):
            return f"the {name} is empty"
    if not has_labels or question.is_impossible:
        return ""
    if not question.answers:
        return "no answer, though the question is not marked as impossible"
    text, start = question.answers[0]
    found = question.document[max(start, 0) : start + len(text)]
    if not text.strip():
        return "the answer is empty"
    if start < 0 or found != text:
        return (
            f"the document has {found[:40]!r} at answer_start {start}, not the "
            f"answer {text[:40]!r}"
        )
    return ""


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
    if config.labels_are_lists and name != config_task.CLASSIFICATION:
        raise UserError(
            f"--labels_are_lists needs --task={config_task.CLASSIFICATION}",
            received=name,
        )
    if name in TASKS:
        return TASKS[name]
    if name not in OWN_TASKS:
        raise UserError(
            "--task must be one of " + ", ".join([*TASKS, *OWN_TASKS]),
            received=repr(name),
        )
    if config.data_dir:
        raise UserError(
            f"--task={name} must have --train_file, --dev_file or --test_file "
            "instead of --data_dir",
            received=config.data_dir,
        )
    kind = KINDS[config_task.MULTI_LABEL if config.labels_are_lists else name]
    config.require(*kind.needs)
    for package in kind.packages:
        importlib.import_module(package)  # fails before the training, not after
    named = {
        column: getattr(config, setting)
        for column, setting in kind.columns.items()
    }
    columns = Columns(**named, id=config.id_column)
    splits = {split: Split(columns) for split in FILES}
    return Task(name, kind.name, splits=splits, metrics=kind.score_names)
