"""The features of a task: text -> records -> TFRecord files, used again.

A record is what one call of the model reads: a text or a pair of texts, all
choices of a question, or one window of a document. A record of zeros is an
example of weight 0.

    OUTPUT_DIR/features/train-ID/train-00000-of-00001.tfrecord, dev-...
    OUTPUT_DIR/features/train-ID/metadata.json
    OUTPUT_DIR/features/predict-ID/...

ID is the beginning of the SHA-256 of everything that determines the features,
so a refused command leaves those of a run as they are. Sequences have the
length of the longest one, rounded up: the model computes less padding, with
the same result.
"""

import functools
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from albert_tf.config import FinetuningConfig, SequenceConfig
from albert_tf.config.task import (
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    TaskConfig,
    TaskHeadConfig,
)
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import (
    ChoiceExample,
    ExampleSet,
    TextExample,
)
from albert_tf.finetuning.tasks import TRAIN
from albert_tf.input.record_format import serialize
from albert_tf.input.record_sets import RecordSet
from albert_tf.io.files import (
    atomic_write,
    load_json_if_any,
    write_json,
)
from albert_tf.io.tfrecord import TFRecordWriter
from albert_tf.records.features import METADATA_FILE, sha256_of
from albert_tf.records.gaps import fill_gaps
from albert_tf.records.questions import WindowMaker
from albert_tf.records.tokenization import (
    ModelInputs,
    Tokenizer,
    join,
    truncate,
)

FEATURES_DIR = "features"
RECORDS_PER_SHARD = 16384

# Lengths are multiples of this number, which suits matrix units.
LENGTH_MULTIPLE = 64

# Number of characters of the SHA-256 in the name of a directory.
_ID_LENGTH = 16

# Seed of the order of training records. Official files may be sorted.
_ORDER_SEED = 0

_BATCH = 1000  # texts to tokenize in one call

# The values of a record by feature, int64 or float32, each `(length,)`.
Record = Mapping[str, np.ndarray]


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


def task_features(
    kind: str, num_choices: int = 0, num_classes: int = 0
) -> tuple[TaskFeature, ...]:
    """Returns the features of a record of a kind of `config.task.KINDS`."""
    sequences = num_choices if kind == MULTIPLE_CHOICE else 1
    shared = (
        # Tokens, `[CLS] A [SEP] B [SEP]`; padded with <pad>.
        TaskFeature("input_ids", "int64", sequences),
        # 1 for a token, 0 for padding.
        TaskFeature("input_mask", "int64", sequences),
        # 0 up to the first [SEP], 1 up to the second; padded with 0.
        TaskFeature("segment_ids", "int64", sequences),
        # 1.0; 0.0 for a record that only fills a batch.
        TaskFeature("example_weight", "float32"),
    )
    if kind == REGRESSION:
        return (*shared, TaskFeature("label", "float32"))
    if kind == MULTI_LABEL:
        # 1 for a class of the text, 0 for another.
        return (*shared, TaskFeature("labels", "float32", size=num_classes))
    if kind == TOKEN_CLASSIFICATION:
        return (
            *shared,
            # For the first token of a word its number, from 1; 0 for others.
            TaskFeature("word_numbers", "int64", 1),
            # Index of the tag of that word; 0 elsewhere, and in test files.
            TaskFeature("token_labels", "int64", 1),
        )
    if kind != QUESTION_ANSWERING:
        # Index of the class or choice; 0 without a label, as in test files.
        return (*shared, TaskFeature("label", "int64"))
    return (
        *shared,
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


# --- text -> records ----------------------------------------------------------


def make_records(
    examples: ExampleSet,
    tokenizer: Tokenizer,
    config: TaskConfig,
    max_seq_length: int,
) -> Iterator[Record]:
    """Yields the records of examples, in order, as `task_features` lists them.

    A question has a record for each window of its document. A question whose
    answer cannot be found is added to `examples.bad`; in training, it has no
    record.

    Raises:
        UserError: If the lengths leave no room for a document.
    """
    task = examples.task
    if task.kind == QUESTION_ANSWERING:
        maker = WindowMaker(tokenizer, config, max_seq_length)
        records = _window_records(examples, maker, max_seq_length)
    elif task.kind == MULTIPLE_CHOICE:
        records = _choice_records(
            examples.examples, tokenizer, config.max_qa_length, max_seq_length
        )
    elif task.kind == TOKEN_CLASSIFICATION:
        records = _word_records(examples, tokenizer, max_seq_length)
    else:
        records = _text_records(examples.examples, tokenizer, max_seq_length)
    num_classes = len(task.labels)
    features = task_features(task.kind, task.num_choices, num_classes)
    for values in records:
        values["example_weight"] = 1.0
        if task.kind == MULTI_LABEL:
            values["labels"] = np.isin(
                range(num_classes), values["label"] or ()
            )
        yield {
            f.name: np.ravel(values[f.name]).astype(f.dtype) for f in features
        }


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    encoded = tokenizer.encode_batch(texts)
    return [ids.tolist() for ids in np.split(encoded.ids, encoded.ends[:-1])]


def _text_records(
    examples: Sequence[TextExample], tokenizer: Tokenizer, length: int
) -> Iterator[dict[str, Any]]:
    for begin in range(0, len(examples), _BATCH):
        batch = examples[begin : begin + _BATCH]
        firsts = _tokenize(tokenizer, [e.text for e in batch])
        seconds = None
        if batch[0].text_pair is not None:
            seconds = _tokenize(tokenizer, [e.text_pair or "" for e in batch])
        inputs = join(*truncate(firsts, seconds, length), length)
        for example, *rows in zip(batch, *inputs, strict=True):
            yield ModelInputs(*rows)._asdict() | {"label": example.label or 0}


def _word_records(
    examples: ExampleSet, tokenizer: Tokenizer, length: int
) -> Iterator[dict[str, Any]]:
    """The first token of a word has its label, as in BERT's paper, section 5.3.

    Words whose first token is beyond the length have none.
    """
    for example in examples.examples:
        pieces = _tokenize(tokenizer, example.words)
        ends = np.cumsum([1, *map(len, pieces)])
        firsts = {
            position: number
            for number, position in enumerate(ends[:-1])
            if pieces[number] and position < length - 1
        }
        if lost := int((ends[:-1] >= length - 1).sum()):
            problem = f"{lost} of {len(pieces)} words beyond max_seq_length"
            examples.bad.append((example.id, problem))
        ids = [piece for word in pieces for piece in word]
        inputs = join([ids[: length - 2]], length=length)
        numbers, labels = np.zeros((2, length), np.int64)
        numbers[[*firsts]] = [number + 1 for number in firsts.values()]
        if example.label is not None:
            labels[[*firsts]] = [example.label[n] for n in firsts.values()]
        yield inputs._asdict() | {
            "word_numbers": numbers,
            "token_labels": labels,
        }


def _choice_records(
    examples: Sequence[ChoiceExample],
    tokenizer: Tokenizer,
    max_qa_length: int,
    length: int,
) -> Iterator[dict[str, Any]]:
    """The sequences `[CLS] passage [SEP] question choice [SEP]` of a question.

    Question and choice keep their last `max_qa_length` tokens together; the
    passage loses its end, as in google-research/albert.
    """
    longest = min(max_qa_length, length - 3)
    for example in examples:
        texts = [fill_gaps(example.question, c) for c in example.choices]
        passage, *ends = _tokenize(tokenizer, [example.passage, *texts])
        seconds = [ids[-longest:] for ids in ends]
        firsts = [passage[: length - 3 - len(second)] for second in seconds]
        inputs = join(firsts, seconds, length)
        yield inputs._asdict() | {"label": example.label or 0}


def _window_records(
    examples: ExampleSet, maker: WindowMaker, length: int
) -> Iterator[dict[str, Any]]:
    reported = {where for where, _ in examples.bad}
    for question in examples.examples:
        windows = maker.make(question)
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


# --- records -> files ---------------------------------------------------------


class FeatureFiles(NamedTuple):
    """A directory of features.

    Attributes:
        splits: Number of records by file name, by split.
        checksums: SHA-256 by file name.
        inputs_sha256: SHA-256 of everything that determines the features.
    """

    directory: str
    max_seq_length: int
    splits: dict[str, dict[str, int]]
    checksums: dict[str, str]
    inputs_sha256: str

    def names(self, split: str) -> tuple[str, ...]:
        """Paths of the files of a split; () without that split."""
        return tuple(
            posixpath.join(self.directory, name)
            for name in self.splits.get(split, ())
        )

    def records(self, split: str) -> RecordSet:
        """The records of a split."""
        path = functools.partial(posixpath.join, self.directory)
        counts = self.splits[split]
        return RecordSet(
            {path(name): count for name, count in counts.items()},
            checksums={path(name): self.checksums[name] for name in counts},
            directory=self.directory,
        )


def find_or_write(
    config: FinetuningConfig,
    head: TaskHeadConfig,
    tokenizer: Tokenizer,
    sets: Mapping[str, ExampleSet],
    scratch: str = "",
) -> FeatureFiles:
    """Returns the features of examples; writes them if there are none.

    Args:
        head: What the model predicts.
        sets: The examples of each split.
        scratch: Where to write instead of `output_dir`, for a dry run.
    """
    task, length = config.task, config.data.max_seq_length
    inputs = {
        "examples": {
            split: sha256_of("\n".join(map(repr, examples.examples)).encode())
            for split, examples in sets.items()
        },
        "vocabulary": describe_vocabulary(tokenizer),
        "max_seq_length": length,
        "kind": head.kind,
        "doc_stride": task.doc_stride,
        "max_query_length": task.max_query_length,
        "max_qa_length": task.max_qa_length,
    }
    inputs_sha256 = sha256_of(json.dumps(inputs, sort_keys=True).encode())
    purpose = "train" if TRAIN in sets else "predict"
    name = f"{purpose}-{inputs_sha256[:_ID_LENGTH]}"
    parent = posixpath.join(config.training.output_dir, FEATURES_DIR)
    directory = posixpath.join(parent, name)
    stored = load_json_if_any(posixpath.join(directory, METADATA_FILE))
    if stored and stored["inputs_sha256"] == inputs_sha256:
        logging.info("using the features in %s", directory)
        return FeatureFiles(directory, **stored)
    records = {
        split: make_records(examples, tokenizer, task, length)
        for split, examples in sets.items()
    }
    directory = posixpath.join(scratch or parent, name)
    return write(directory, records, head, length, inputs_sha256)


def describe_vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of `records_metadata.json` of a run."""
    return {
        "vocabulary_sha256": tokenizer.sha256,
        "vocabulary_kind": tokenizer.kind,
        "do_lower_case": tokenizer.do_lower_case,
        "vocab_size": tokenizer.vocab_size,
    }


def write(
    directory: str,
    splits: Mapping[str, Iterable[Record]],
    head: TaskHeadConfig,
    max_seq_length: int,
    inputs_sha256: str = "",
) -> FeatureFiles:
    """Writes records; those of "train" in random order, the others in order."""
    features = task_features(head.kind, head.num_choices, len(head.labels))
    records = {
        split: [_without_padding(record, features) for record in found]
        for split, found in splits.items()
    }
    for split, rows in records.items():
        if not rows:
            raise UserError(
                f"at least one example of the {split} set must be usable",
                received="none: no window has a complete answer",
                remedy="Check the file, or set a smaller --doc_stride.",
            )
    longest = max(
        record["input_ids"].shape[1]
        for rows in records.values()
        for record in rows
    )
    rounded = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    files = FeatureFiles(
        directory,
        min(rounded, max_seq_length),
        {split: {} for split in records},
        {},
        inputs_sha256,
    )
    for split, rows in records.items():
        order = np.arange(len(rows))
        if split == TRAIN:
            order = np.random.default_rng(_ORDER_SEED).permutation(order)
        num_shards = -(-len(rows) // RECORDS_PER_SHARD)
        for shard in range(num_shards):
            begin = shard * RECORDS_PER_SHARD
            of_shard = order[begin : begin + RECORDS_PER_SHARD]
            name = f"{split}-{shard:05d}-of-{num_shards:05d}.tfrecord"
            with (
                atomic_write(posixpath.join(directory, name)) as file,
                TFRecordWriter(file) as writer,
            ):
                for i in of_shard:
                    padded = _padded(rows[i], features, files.max_seq_length)
                    writer.write(serialize(features, padded))
                files.checksums[name] = writer.sha256()
            files.splits[split][name] = len(of_shard)
    metadata = files._asdict()
    del metadata["directory"]
    write_json(posixpath.join(directory, METADATA_FILE), metadata)
    return files


def _without_padding(
    record: Record, features: Sequence[TaskFeature]
) -> dict[str, np.ndarray]:
    """Sequences of the longest length and in the smallest type; saves memory.

    They are `(num_sequences, length)`.
    """
    count = features[0].num_sequences
    length = int(record["input_mask"].reshape(count, -1).sum(axis=1).max())
    cut = dict(record)
    for name, _, num_sequences, _ in features:
        if num_sequences:
            values = record[name].reshape(count, -1)[:, :length]
            cut[name] = values.astype(np.min_scalar_type(values.max()))
    return cut


def _padded(
    record: Record, features: Sequence[TaskFeature], length: int
) -> dict[str, list[float]]:
    """Lists the values of a record, with sequences padded to `length`."""
    values = dict(record)
    for name, _, num_sequences, _ in features:
        if num_sequences:
            padding = ((0, 0), (0, length - values[name].shape[1]))
            is_p_mask = int(name == "p_mask")  # no answer contains padding
            values[name] = np.pad(
                values[name], padding, constant_values=is_p_mask
            )
    return {name: value.ravel().tolist() for name, value in values.items()}
