"""Random examples, one per row and packed several to a row."""

import itertools

import numpy as np

VOCAB_SIZE = 61
LENGTH = 24
NUM_PREDICTIONS = 5
NUM_SLOTS = 3
# The lengths of the examples of each row: full and partly filled, with one
# to NUM_SLOTS examples.
ROWS = ((24,), (10, 14), (5, 6, 7), (9, 11), (8, 8, 8), (20,), (12, 7), (16, 5))


def make_examples():
    """A batch of the 16 examples of `ROWS`, one per row, as NumPy arrays."""
    random = np.random.default_rng(0)
    lengths = list(itertools.chain(*ROWS))
    batch = {
        name: np.zeros((len(lengths), width), dtype)
        for name, width, dtype in (
            ("input_ids", LENGTH, np.int32),
            ("input_mask", LENGTH, np.int32),
            ("segment_ids", LENGTH, np.int32),
            ("masked_lm_positions", NUM_PREDICTIONS, np.int32),
            ("masked_lm_ids", NUM_PREDICTIONS, np.int32),
            ("masked_lm_weights", NUM_PREDICTIONS, np.float32),
        )
    }
    for row, length in enumerate(lengths):
        num_masked = 1 + length // 5
        positions = 1 + random.choice(length - 1, num_masked, replace=False)
        batch["input_ids"][row, :length] = random.integers(
            5, VOCAB_SIZE, length
        )
        batch["input_ids"][row, 0] = 2
        batch["input_mask"][row, :length] = 1
        batch["segment_ids"][row, length // 2 : length] = 1
        batch["masked_lm_positions"][row, :num_masked] = np.sort(positions)
        batch["masked_lm_ids"][row, :num_masked] = random.integers(
            5, VOCAB_SIZE, num_masked
        )
        batch["masked_lm_weights"][row, :num_masked] = 1
    labels = random.integers(0, 2, (len(lengths), 1))
    return batch | {"next_sentence_labels": labels.astype(np.int32)}


def pack(examples):
    """The batch of `make_examples`, packed as `ROWS` says."""
    num_rows = len(ROWS)
    batch = {
        name: np.zeros((num_rows, width), value.dtype)
        for name, value in examples.items()
        for width in [
            NUM_PREDICTIONS + NUM_SLOTS - 1
            if name.startswith("masked_lm")
            else NUM_SLOTS
            if name == "next_sentence_labels"
            else LENGTH
        ]
    }
    batch["next_sentence_positions"] = np.zeros((num_rows, NUM_SLOTS), np.int32)
    batch["next_sentence_weights"] = np.zeros((num_rows, NUM_SLOTS), np.float32)
    numbers = itertools.count()
    for row, lengths in enumerate(ROWS):
        begin = first_slot = 0
        for slot, length in enumerate(lengths):
            number = next(numbers)
            example = {name: value[number] for name, value in examples.items()}
            tokens = slice(begin, begin + length)
            for name in "input_ids", "segment_ids":
                batch[name][row, tokens] = example[name][:length]
            batch["input_mask"][row, tokens] = slot + 1
            num_masked = int(example["masked_lm_weights"].sum())
            slots = slice(first_slot, first_slot + num_masked)
            for name in "masked_lm_ids", "masked_lm_weights":
                batch[name][row, slots] = example[name][:num_masked]
            batch["masked_lm_positions"][row, slots] = (
                begin + example["masked_lm_positions"][:num_masked]
            )
            batch["next_sentence_labels"][row, slot] = example[
                "next_sentence_labels"
            ][0]
            batch["next_sentence_positions"][row, slot] = begin
            batch["next_sentence_weights"][row, slot] = 1
            begin += length
            first_slot += num_masked
    return batch
