"""The features of a fine-tuning record, for each kind of task.

A record is what one call of the model reads: a text or a pair of texts, all
choices of a question, or one window of a document. A record of zeros is an
example of weight 0.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from albert_tf.config import SequenceConfig
from albert_tf.config.task_head import (
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)

# The values of a record by feature, int64 or float32, each `(length,)`.
Record = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TaskFeature:
    """A feature of a record.

    Attributes:
        name: Key in the record and in a batch.
        dtype: "int64" or "float32", as stored.
        num_sequences: Number of sequences of `max_seq_length` tokens that the
            feature holds, one after another. 0: a single value.

    Example:
        >>> shape = SequenceConfig(
        ...     max_seq_length=128, max_predictions_per_seq=1
        ... )
        >>> TaskFeature("input_ids", "int64", num_sequences=4).length(shape)
        512
    """

    name: str
    dtype: str
    num_sequences: int = 0

    def length(self, shape: SequenceConfig) -> int:
        """Returns the number of values in a record."""
        return self.num_sequences * shape.max_seq_length or 1


def task_features(kind: str, num_choices: int = 0) -> tuple[TaskFeature, ...]:
    """Returns the features of a record.

    Args:
        kind: One of `config.task_head.KINDS`.
        num_choices: Number of choices of a question, for "multiple_choice".

    Example:
        >>> shape = SequenceConfig(
        ...     max_seq_length=128, max_predictions_per_seq=1
        ... )
        >>> for feature in task_features("multiple_choice", num_choices=4):
        ...     print(feature.name, feature.dtype, feature.length(shape))
        input_ids int64 512
        input_mask int64 512
        segment_ids int64 512
        example_number int64 1
        example_weight float32 1
        label int64 1
    """
    sequences = num_choices if kind == MULTIPLE_CHOICE else 1
    shared = (
        # Tokens, `[CLS] A [SEP] B [SEP]`; padded with <pad>.
        TaskFeature("input_ids", "int64", sequences),
        # 1 for a token, 0 for padding.
        TaskFeature("input_mask", "int64", sequences),
        # 0 up to the first [SEP], 1 up to the second; padded with 0.
        TaskFeature("segment_ids", "int64", sequences),
        # Index of the example in its file; windows of one question share it.
        TaskFeature("example_number", "int64"),
        # 1.0; 0.0 for a record that only fills a batch.
        TaskFeature("example_weight", "float32"),
    )
    if kind == REGRESSION:
        return (*shared, TaskFeature("label", "float32"))
    if kind != QUESTION_ANSWERING:
        # Index of the class or choice; 0 without a label, as in test files.
        return (*shared, TaskFeature("label", "int64"))
    return (
        *shared,
        # Index of the window among those of its question.
        TaskFeature("window_number", "int64"),
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
