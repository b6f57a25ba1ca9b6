"""Text -> the features of records, for each kind of task."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import (
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.finetuning.examples import (
    ChoiceExample,
    ExampleSet,
    TextExample,
)
from albert_tf.finetuning.features import Record
from albert_tf.records.documents import WindowMaker
from albert_tf.records.encoding import ModelInputs, join, truncate
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
                    first, last = windows.answer_in(window)
                    values = windows.inputs(window, max_seq_length) | {
                        "window_number": window,
                        "start_position": first,
                        "end_position": last,
                        "is_impossible": first == 0,
                    }
                    yield _shared(number) | {
                        name: np.atleast_1d(value).astype(np.int64)
                        for name, value in values.items()
                    }
        return
    label_dtype = np.float32 if kind == REGRESSION else np.int64
    for begin in range(0, len(examples.examples), _BATCH):
        batch = examples.examples[begin : begin + _BATCH]
        sequences = (
            _choice_sequences(batch, tokenizer, config, max_seq_length)
            if kind == MULTIPLE_CHOICE
            else _text_sequences(batch, tokenizer, max_seq_length)
        )
        pairs = zip(batch, sequences, strict=True)
        for number, (example, sequence) in enumerate(pairs, begin):
            label = np.array([example.label or 0], label_dtype)
            yield _shared(number) | sequence | {"label": label}


def _is_known(examples: ExampleSet, name: str) -> bool:
    return any(bad.where == name for bad in examples.bad)


def _shared(number: int) -> dict[str, np.ndarray]:
    return {
        "example_number": np.array([number]),
        "example_weight": np.ones(1, np.float32),
    }


def _features(arrays: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of `ModelInputs` by name, each with its rows joined, int64."""
    return {
        name: values.ravel().astype(np.int64)
        for name, values in zip(ModelInputs._fields, arrays, strict=True)
    }


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    encoded = tokenizer.encode_batch(texts)
    return [ids.tolist() for ids in np.split(encoded.ids, encoded.ends[:-1])]


def _text_sequences(
    examples: Sequence[TextExample], tokenizer: Tokenizer, length: int
) -> Iterator[dict[str, np.ndarray]]:
    firsts = _tokenize(tokenizer, [e.text for e in examples])
    seconds = None
    if examples[0].text_pair is not None:
        seconds = _tokenize(tokenizer, [e.text_pair or "" for e in examples])
    inputs = join(*truncate(firsts, seconds, length), length)
    return map(_features, zip(*inputs, strict=True))


def _choice_sequences(
    examples: Sequence[ChoiceExample],
    tokenizer: Tokenizer,
    config: TaskConfig,
    length: int,
) -> Iterator[dict[str, np.ndarray]]:
    """The sequences `[CLS] passage [SEP] question choice [SEP]` of a question.

    A choice replaces each "_" of its question. If the question has no "_", the
    choice follows it. Question and choice together keep their last
    `max_qa_length` tokens; the passage loses its end, as in
    google-research/albert.
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
        seconds = [ids[-longest:] for ids in _tokenize(tokenizer, texts)]
        firsts = [passage[: length - 3 - len(second)] for second in seconds]
        yield _features(join(firsts, seconds, length))
