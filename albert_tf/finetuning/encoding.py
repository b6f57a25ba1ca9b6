"""Text -> the features of records, for each kind of task."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import (
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.finetuning.example_types import (
    ChoiceExample,
    ExampleSet,
    TextExample,
)
from albert_tf.finetuning.features import Record
from albert_tf.finetuning.windows import DocumentWindows, WindowMaker
from albert_tf.records.encoding import truncate_pair
from albert_tf.records.features import CLS_ID, PAD_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer

_BATCH = 1000  # texts to tokenize in one call


def make_records(
    examples: ExampleSet,
    tokenizer: Tokenizer,
    config: TaskConfig,
    max_seq_length: int,
) -> Iterator[Record]:
    """Yields the records of examples, in order, as `task_features` lists them.

    A question has a record for each window of its document. A question whose
    answer cannot be found is reported to `examples`; in training, it has no
    record.

    Args:
        examples: The examples of one split.
        tokenizer: The tokenizer of the model.
        config: Lengths and stride.
        max_seq_length: Number of tokens in a sequence; shorter sequences are
            padded.

    Raises:
        UserError: If the lengths leave no room for a document, or an answer
            cannot be found and `on_bad_example` is "error".
    """
    kind = examples.task.kind
    if kind == QUESTION_ANSWERING:
        maker = WindowMaker(tokenizer, config, max_seq_length)
        for number, example in enumerate(examples.examples):
            windows = maker.make(example)
            if windows.problem and not _is_known(examples, example.id):
                examples.report_bad(example.id, windows.problem)
            if not (windows.problem and examples.is_training):
                for window in range(len(windows.spans)):
                    yield _shared(number) | _window_features(
                        windows, window, max_seq_length
                    )
        return
    label_dtype = np.float32 if kind == REGRESSION else np.int64
    numbered = enumerate(examples.examples)
    for batch in iter(lambda: list(itertools.islice(numbered, _BATCH)), []):
        rows = [example for _, example in batch]
        sequences = (
            _choice_sequences(rows, tokenizer, config, max_seq_length)
            if kind == MULTIPLE_CHOICE
            else _text_sequences(rows, tokenizer, max_seq_length)
        )
        for (number, example), sequence in zip(batch, sequences, strict=True):
            label = np.array([example.label or 0], label_dtype)
            yield _shared(number) | sequence | {"label": label}


def _is_known(examples: ExampleSet, name: str) -> bool:
    return any(bad.where == name for bad in examples.bad)


def _shared(number: int) -> dict[str, np.ndarray]:
    return {
        "example_number": np.array([number]),
        "example_weight": np.ones(1, np.float32),
    }


def sequence_features(
    first: Sequence[int], second: Sequence[int] | None, max_seq_length: int
) -> dict[str, np.ndarray]:
    """The features of `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`.

    Args:
        first: Token ids.
        second: Token ids, or None; `()` gives `[CLS] first [SEP] [SEP]`.
        max_seq_length: Length of the features.

    Returns:
        int64 `input_ids`, `input_mask`, `segment_ids`, `(max_seq_length,)`.

    Example:
        >>> features = sequence_features([7], [8, 9], 7)
        >>> features["input_ids"].tolist()
        [2, 7, 3, 8, 9, 3, 0]
        >>> features["segment_ids"].tolist()
        [0, 0, 0, 1, 1, 1, 0]
    """
    tokens = [CLS_ID, *first, SEP_ID]
    segment_ids = np.zeros(max_seq_length, np.int64)
    if second is not None:
        segment_ids[len(tokens) : len(tokens) + len(second) + 1] = 1
        tokens += [*second, SEP_ID]
    input_ids = np.full(max_seq_length, PAD_ID, np.int64)
    input_ids[: len(tokens)] = tokens
    return {
        "input_ids": input_ids,
        "input_mask": (np.arange(max_seq_length) < len(tokens)).astype(
            np.int64
        ),
        "segment_ids": segment_ids,
    }


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    encoded = tokenizer.encode_batch(texts)
    return [ids.tolist() for ids in np.split(encoded.ids, encoded.ends[:-1])]


def _text_sequences(
    examples: Sequence[TextExample], tokenizer: Tokenizer, length: int
) -> Iterator[dict[str, np.ndarray]]:
    firsts = _tokenize(tokenizer, [e.text for e in examples])
    if examples[0].text_pair is None:
        for first in firsts:
            yield sequence_features(first[: length - 2], None, length)
        return
    seconds = _tokenize(tokenizer, [e.text_pair or "" for e in examples])
    for first, second in zip(firsts, seconds, strict=True):
        yield sequence_features(
            *truncate_pair(first, second, length - 3), length
        )


def _choice_sequences(
    examples: Sequence[ChoiceExample],
    tokenizer: Tokenizer,
    config: TaskConfig,
    length: int,
) -> Iterator[dict[str, np.ndarray]]:
    """The sequences `[CLS] passage [SEP] question choice [SEP]` of a question.

    A choice replaces the "_" of a question that has one. Question and choice
    lose their beginning above `max_qa_length` tokens; the passage loses its
    end, as in google-research/albert.
    """
    longest = min(config.max_qa_length, length - 3)
    passages = _tokenize(tokenizer, [e.passage for e in examples])
    for example, passage in zip(examples, passages, strict=True):
        texts = [
            example.question.replace("_", choice)
            if "_" in example.question
            else f"{example.question} {choice}"
            for choice in example.choices
        ]
        sequences = []
        for tokens in _tokenize(tokenizer, texts):
            second = tokens[-longest:]
            first = passage[: length - 3 - len(second)]
            sequences.append(sequence_features(first, second, length))
        yield {
            name: np.concatenate([sequence[name] for sequence in sequences])
            for name in sequences[0]
        }


def _window_features(
    windows: DocumentWindows, window: int, length: int
) -> dict[str, np.ndarray]:
    begin, end = windows.spans[window]
    p_mask = np.ones(length, np.int64)
    p_mask[0] = 0
    p_mask[windows.offset : windows.offset + end - begin] = 0
    first, last = windows.answer_in(window)
    return sequence_features(
        windows.query, windows.tokens.ids[begin:end].tolist(), length
    ) | {
        "window_number": np.array([window]),
        "p_mask": p_mask,
        "start_position": np.array([first]),
        "end_position": np.array([last]),
        "is_impossible": np.array([int(first == 0)]),
    }
