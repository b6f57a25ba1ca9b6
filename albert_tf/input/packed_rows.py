"""Checks of packed rows while training.

Training on a row with wrong example numbers or positions raises no error, but
tokens attend to other examples or have wrong positions. So each batch is
checked, in the `tf.data` graph. `data_prep.inspect_records` checks more.
"""

from collections.abc import Mapping

import tensorflow as tf

from albert_tf.records.features import CLS_ID, SENTENCE_LABEL


def find_faults(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Checks the examples of packed rows.

    Args:
        batch: The features of packed records, `(batch, length)` each; a row
            of zeros has no examples.

    Returns:
        bool, `(batch,)`, by description of a fault: whether a row has it.

    Example:
        The [CLS] of example 2, token id 2, is at position 3.

        >>> faults = find_faults({
        ...     "input_ids": tf.constant([[2, 9, 3, 2, 8, 3, 0]]),
        ...     "input_mask": tf.constant([[1, 1, 1, 2, 2, 2, 0]]),
        ...     "next_sentence_positions": tf.constant([[0, 4]]),
        ...     "next_sentence_labels": tf.constant([[1, 0]]),
        ...     "next_sentence_weights": tf.constant([[1.0, 1.0]]),
        ... })
        >>> [fault for fault, rows in faults.items() if rows[0]]
        ['next_sentence_positions must be those of the [CLS] tokens']
    """
    numbers = batch["input_mask"]
    before = tf.pad(numbers[:, :-1], [[0, 0], [1, 0]])
    starts = (numbers > 0) & (numbers != before)
    # Padding follows the last example.
    follows_padding = tf.pad(
        before[:, 1:] == 0, [[0, 0], [1, 0]], constant_values=False
    )
    continues = (numbers == before) | (numbers == 0)
    increases = (numbers == before + 1) & ~follows_padding

    slots = tf.range(1, batch["next_sentence_positions"].shape[1] + 1)
    is_slot = numbers[:, tf.newaxis, :] == slots[:, tf.newaxis]
    # The first position of each example; 0 for an unused slot.
    positions = tf.argmax(tf.cast(is_slot, tf.int8), 2, tf.int32)
    weights = tf.cast(tf.reduce_any(is_slot, 2), tf.float32)

    labels = batch[SENTENCE_LABEL]
    faults = {
        "input_mask must be at most max_examples_per_row": (
            numbers > slots[-1]
        ),
        "input_mask must number the examples 1, 2, ... without a gap, and be "
        "0 for padding": ~(continues | increases),
        "next_sentence_positions must be those of the [CLS] tokens": (
            positions != batch["next_sentence_positions"]
        ),
        "input_ids must begin each example with [CLS]": (
            starts & (batch["input_ids"] != CLS_ID)
        ),
        f"{SENTENCE_LABEL} must be 0 or 1": (labels < 0) | (labels > 1),
        "next_sentence_weights must be 1 for the examples of the row, and 0 "
        "for other slots": weights != batch["next_sentence_weights"],
    }
    if "masked_lm_positions" in batch:
        of_padding = (
            tf.gather(numbers, batch["masked_lm_positions"], batch_dims=1) == 0
        )
        faults["masked_lm_positions must not be those of padding"] = (
            of_padding & (batch["masked_lm_weights"] > 0)
        )
    return {
        fault: tf.reduce_any(found, axis=1) for fault, found in faults.items()
    }
