"""The largest number of tokens that dynamic masking can mask in an example.

Masking takes spans while they fit the budget of an example. If no span fits,
masking takes a single larger one (`albert_tf/records/masking.py`).
"""

import numpy as np

from albert_tf.config import MaskingConfig
from data_prep.words import find_words


def largest_mask_counts(
    input_ids: np.ndarray, token_boundary: np.ndarray, config: MaskingConfig
) -> np.ndarray:
    """Returns the largest number of masked tokens of each example.

    Args:
        input_ids: int32, `(batch, length)`, padded with `<pad>`.
        token_boundary: `(batch, length)`, 1 where a word begins.
        config: Parameters of the masking rule.

    Returns:
        int64, `(batch,)`. It is the budget, except for examples of few and
        long words.

    Example:
        15 % of 11 tokens are 2. But if the span of three words is drawn, it
        does not fit, so that its 3 + 1 + 4 tokens are masked.

        >>> input_ids = np.array([[2, 7, 8, 8, 7, 7, 8, 8, 8, 3, 3]])
        >>> token_boundary = np.array([[1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1]])
        >>> config = MaskingConfig(ngram=3, max_predictions_per_seq=9)
        >>> largest_mask_counts(input_ids, token_boundary, config)
        array([8])
    """
    num_rows = len(input_ids)
    largest = config.max_predictions_per_seq
    num_tokens = np.count_nonzero(input_ids, axis=1)
    budgets = np.rint(num_tokens * config.masked_lm_prob).astype(np.int64)
    budgets = budgets.clip(1, largest)
    words = find_words(input_ids, token_boundary)
    num_maskable = np.bincount(words.rows, words.sizes, num_rows)
    num_words = np.bincount(words.rows[words.sizes > 0], minlength=num_rows)
    # A span has at most `ngram` words, which gives the least number of spans.
    # If none fits, each span has more tokens than the budget.
    num_spans = -(-num_words // config.ngram)
    may_exceed = num_maskable >= (budgets + 1) * num_spans
    spans = words.sizes.copy()
    segments = np.cumsum(words.opens_segment)
    for num_more in range(config.ngram):
        if num_more:
            same_segment = segments[num_more:] == segments[:-num_more]
            spans = spans[: len(same_segment)] + np.where(
                same_segment, words.sizes[num_more:], 0
            )
        counts = np.where(spans <= largest, spans, 0)
        rows = words.rows[: len(spans)]
        exceeds = may_exceed[rows]
        np.maximum.at(budgets, rows[exceeds], counts[exceeds])
    return budgets
