"""Best fit: which examples share a row."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from albert_tf.config import SequenceConfig
from data_prep.builder.packing import BestFit

LENGTH, PREDICTIONS, EXAMPLES = 40, 7, 4
SHAPE = SequenceConfig(
    max_seq_length=LENGTH,
    max_predictions_per_seq=PREDICTIONS,
    max_examples_per_row=EXAMPLES,
)


def pack(lengths, masked, shape=SHAPE, batch_size=1000):
    best_fit = BestFit(shape)
    rows = []
    for begin in range(0, len(lengths), batch_size):
        batch = slice(begin, begin + batch_size)
        rows += best_fit.add(lengths[batch], masked[batch])
    return rows + best_fit.close()


def pack_plainly(lengths, masked):
    """Best fit by a search of all rows, without a limit on open rows."""
    complete, open_rows = [], []

    def count(values, row):
        return sum(values[i] for i in row)

    for number in range(len(lengths)):
        rows = [
            row
            for row in open_rows
            if count(lengths, [*row, number]) <= LENGTH
            and count(masked, [*row, number]) <= PREDICTIONS + EXAMPLES - 1
        ]
        row = max(rows, key=lambda row: count(lengths, row), default=[])
        if row:
            open_rows.remove(row)
        row = [*row, number]
        is_full = len(row) == EXAMPLES or LENGTH - count(lengths, row) < 4
        (complete if is_full else open_rows).append(row)
    return complete + sorted(open_rows)


examples = st.lists(
    st.tuples(st.integers(4, LENGTH), st.integers(0, PREDICTIONS)),
    max_size=60,
)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(examples, st.integers(1, 20))
def test_every_example_is_in_one_row_that_has_room_for_it(examples, size):
    lengths = [length for length, _ in examples]
    masked = [num_masked for _, num_masked in examples]
    rows = pack(lengths, masked, batch_size=size)
    numbers = [number for row in rows for number in row]
    assert sorted(numbers) == list(range(len(examples)))
    for row in rows:
        assert row == sorted(row)
        assert 1 <= len(row) <= EXAMPLES
        assert sum(lengths[i] for i in row) <= LENGTH
        assert sum(masked[i] for i in row) <= PREDICTIONS + EXAMPLES - 1
    # The sizes of the batches have no influence.
    assert rows == pack(lengths, masked)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(examples)
def test_an_example_goes_to_the_row_with_the_least_sufficient_room(examples):
    lengths = [length for length, _ in examples]
    masked = [num_masked for _, num_masked in examples]
    assert pack(lengths, masked) == pack_plainly(lengths, masked)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    st.lists(st.integers(5, 512), min_size=1, max_size=40),
    st.sampled_from([2, 3, 8]),
)
def test_masks_of_ordinary_examples_do_not_change_the_rows(lengths, num):
    """An example of n tokens has max(1, round(0.15 n)) masks. The P + K - 1
    slots of a row hold those of K examples."""
    shape = SequenceConfig(max_examples_per_row=num)
    masked = [max(1, round(0.15 * length)) for length in lengths]
    assert pack(lengths, masked, shape) == pack(
        lengths, [0] * len(lengths), shape
    )


def test_at_most_64_rows_are_open():
    """Two examples of 21 to 30 tokens do not fit a row of 40. The fullest row
    is closed to make room for a new one."""
    lengths = np.random.default_rng(0).integers(21, 31, 500).tolist()
    best_fit = BestFit(SHAPE)
    complete = []
    for number, length in enumerate(lengths):
        rows = best_fit.add([length], [1])
        complete += rows
        assert number + 1 - len(complete) == min(number + 1, 64)
        if rows:
            open_lengths = [
                lengths[i]
                for i in range(number)
                if [i] not in complete or [i] in rows
            ]
            assert lengths[rows[0][0]] == max(open_lengths)
    assert len(complete + best_fit.close()) == 500


def test_a_row_is_closed_after_2048_examples():
    """Nothing fits the first row, and all other examples fill theirs."""
    best_fit = BestFit(SHAPE)
    assert best_fit.add([20], [1]) == []
    assert best_fit.add([40] * 2048, [1] * 2048)[-1] == [2048]
    assert best_fit.add([40], [1]) == [[0], [2049]]
