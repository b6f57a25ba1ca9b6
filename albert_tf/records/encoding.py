"""Converts texts to the inputs of a model, in Python.

Training records (`data_prep`) and exported models, which tokenize in their
graph (`serving.text_tokenizer`), have the same inputs for the same texts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.records.features import CLS_ID, PAD_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer


class ModelInputs(NamedTuple):
    """A batch of texts, int32, `(batch, length)`.

    Attributes:
        input_ids: `[CLS] A [SEP]` for a text, `[CLS] A [SEP] B [SEP]` for a
            pair; padded with `<pad>`.
        input_mask: 1 for a token, 0 for padding.
        segment_ids: 1 for the second text and its `[SEP]`, 0 elsewhere.
    """

    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray


def truncate_pair(
    first: list[int], second: list[int], room: int
) -> tuple[list[int], list[int]]:
    """Cuts the ends of two texts until they have at most `room` tokens.

    The longer text is cut first; of two equally long ones, the second.

    Example:
        >>> truncate_pair([1, 2, 3, 4], [5, 6, 7, 8], 5)
        ([1, 2, 3], [5, 6])
        >>> truncate_pair([1, 2, 3, 4], [5], 3)
        ([1, 2], [5])
    """
    first = first[: max(room - len(second), (room + 1) // 2)]
    return first, second[: room - len(first)]


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    text_pairs: Sequence[str] | None = None,
    max_seq_length: int = 512,
) -> ModelInputs:
    """Tokenizes texts, or pairs of texts, for a model.

    The rows are as long as the longest one needs. A text that is too long is
    truncated at its end. The longer text of a pair is truncated first.

    Args:
        tokenizer: The tokenizer of the model.
        texts: Texts, in which "[MASK]" is the mask token.
        text_pairs: The second text of each pair; None for single texts.
        max_seq_length: Maximum number of tokens in a row, `[CLS]` and `[SEP]`
            included; at most `max_position_embeddings` of the model.

    Raises:
        ValueError: If `texts` and `text_pairs` differ in length.

    Example:
        >>> class WordLengths:  # in place of a Tokenizer
        ...     def encode_with_masks(self, text):
        ...         return [100 + len(word) for word in text.split()]
        >>> inputs = encode(WordLengths(), ["It rains", "Fine"])
        >>> inputs.input_ids.tolist()
        [[2, 102, 105, 3], [2, 104, 3, 0]]
        >>> inputs.input_mask.tolist()
        [[1, 1, 1, 1], [1, 1, 1, 0]]
    """
    rows: list[tuple[list[int], list[int]]] = []
    if text_pairs is None:
        for text in texts:
            first = tokenizer.encode_with_masks(text)[: max_seq_length - 2]
            rows.append(([CLS_ID, *first, SEP_ID], []))
    else:
        room = max_seq_length - 3
        for text, text_pair in zip(texts, text_pairs, strict=True):
            first = tokenizer.encode_with_masks(text)
            second = tokenizer.encode_with_masks(text_pair)
            first, second = truncate_pair(first, second, room)
            rows.append(([CLS_ID, *first, SEP_ID], [*second, SEP_ID]))
    length = max(
        (len(first) + len(second) for first, second in rows), default=0
    )
    inputs = ModelInputs(
        np.full((len(rows), length), PAD_ID, np.int32),
        np.zeros((len(rows), length), np.int32),
        np.zeros((len(rows), length), np.int32),
    )
    for row, (first, second) in enumerate(rows):
        end = len(first) + len(second)
        inputs.input_ids[row, :end] = first + second
        inputs.input_mask[row, :end] = 1
        inputs.segment_ids[row, len(first) : end] = 1
    return inputs
