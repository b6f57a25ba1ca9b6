"""Converts texts to the inputs of a model, in Python.

Training records (`data_prep`) and exported models, which tokenize in their
graph (`serving.text_tokenizer`), use the same inputs for the same texts.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from albert_tf.records.features import CLS_ID, PAD_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer

Tokens: TypeAlias = Sequence[list[int]]


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
    """
    first = first[: max(room - len(second), (room + 1) // 2)]
    return first, second[: room - len(first)]


def truncate(
    firsts: Tokens, seconds: Tokens | None, max_seq_length: int
) -> tuple[Tokens, Tokens | None]:
    """Cuts texts, or pairs of texts, to fit into a sequence.

    Args:
        firsts: Token ids of each text.
        seconds: Token ids of each second text; None for single texts.
        max_seq_length: Number of tokens, with `[CLS]` and `[SEP]`.

    Raises:
        ValueError: If `firsts` and `seconds` differ in length, or if
            `max_seq_length` has no room for `[CLS]` and `[SEP]`.
    """
    smallest = 2 if seconds is None else 3
    if max_seq_length < smallest:
        raise ValueError(
            f"max_seq_length must be at least {smallest}, for [CLS] and [SEP]. "
            f"Received: {max_seq_length}"
        )
    if seconds is None:
        return [first[: max_seq_length - 2] for first in firsts], None
    pairs = [
        truncate_pair(first, second, max_seq_length - 3)
        for first, second in zip(firsts, seconds, strict=True)
    ]
    return [first for first, _ in pairs], [second for _, second in pairs]


def join(
    firsts: Tokens, seconds: Tokens | None = None, length: int = 0
) -> ModelInputs:
    """Makes the sequences of texts, or of pairs of texts.

    Args:
        firsts: Token ids of each text.
        seconds: Token ids of each second text; None for single texts.
        length: Length of the rows; 0 for that of the longest sequence.

    Example:
        >>> inputs = join([[7], [7, 7]], [[8, 9], []])
        >>> inputs.input_ids.tolist()
        [[2, 7, 3, 8, 9, 3], [2, 7, 7, 3, 3, 0]]
        >>> inputs.segment_ids.tolist()
        [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0]]
    """
    begins = [[CLS_ID, *first, SEP_ID] for first in firsts]
    rows = begins
    if seconds is not None:
        rows = [
            [*begin, *second, SEP_ID]
            for begin, second in zip(begins, seconds, strict=True)
        ]
    shape = (len(rows), length or max(map(len, rows), default=0))
    inputs = ModelInputs(
        np.full(shape, PAD_ID, np.int32),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int32),
    )
    for i, (begin, row) in enumerate(zip(begins, rows, strict=True)):
        inputs.input_ids[i, : len(row)] = row
        inputs.input_mask[i, : len(row)] = 1
        inputs.segment_ids[i, len(begin) : len(row)] = 1
    return inputs


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
        ValueError: If `texts` and `text_pairs` differ in length, or if
            `max_seq_length` has no room for `[CLS]` and `[SEP]`.
    """
    firsts = [tokenizer.encode_with_masks(text) for text in texts]
    seconds = None
    if text_pairs is not None:
        seconds = [tokenizer.encode_with_masks(text) for text in text_pairs]
    return join(*truncate(firsts, seconds, max_seq_length))
