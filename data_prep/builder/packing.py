"""Packs the examples of a shard into rows of `max_seq_length` tokens.

An example goes, in the order of the shard, to the open row with the least room
that suffices: streaming best fit. No example is divided or thrown away. At most
64 rows are open, so memory is bounded, and the rows depend on nothing but the
examples of the shard and their order.

A row also has room for a limited number of masked tokens, P + K - 1, where P is
`max_predictions_per_seq` and K is `max_examples_per_row`. If P is the fraction
`masked_lm_prob` of the row, rounded up, this limit has no influence on ordinary
text: the numbers of masked tokens of K examples, each rounded and at least 1,
do not exceed it in sum. Examples of very long words may have more masked
tokens; they then go to different rows.

References:
    [Krell et al., 2021](https://arxiv.org/abs/2107.02027) pack BERT's examples;
    their algorithm sorts the lengths of all examples first.
    [Ding et al., 2024](https://arxiv.org/abs/2404.10830) use best fit.
"""

from albert_tf.records.features import RecordShape

# Largest number of rows that wait for more examples.
_MAX_OPEN_ROWS = 64

# A row is closed when this many examples have come since its first one. So
# restoring the order of the examples needs bounded memory.
_MAX_AGE = 2048

# The shortest example is [CLS], two words and [SEP].
_SHORTEST_EXAMPLE = 4


class _Row:
    """An open row.

    Attributes:
        room: Number of further tokens that it can hold.
        mask_room: Number of further masked tokens that it can hold.
        examples: Numbers of its examples.
    """

    __slots__ = ("examples", "mask_room", "room")

    def __init__(self, room: int, mask_room: int) -> None:
        self.room = room
        self.mask_room = mask_room
        self.examples: list[int] = []


class BestFit:
    """Assigns examples to rows.

    Example:
        Example 2 goes to the row of example 0, which has room for 4 tokens,
        not to the row of example 1, which has room for 5. Rows with room for
        less than the shortest example are complete.

        >>> from albert_tf.config import SequenceConfig
        >>> shape = SequenceConfig(
        ...     max_seq_length=10,
        ...     max_predictions_per_seq=2,
        ...     max_examples_per_row=3,
        ... )
        >>> best_fit = BestFit(shape)
        >>> best_fit.add([6, 5, 4, 8], [1, 1, 1, 1])
        [[0, 2], [3]]
        >>> best_fit.close()
        [[1]]
    """

    def __init__(self, shape: RecordShape) -> None:
        self._length = shape.max_seq_length
        self._max_examples = shape.max_examples_per_row
        self._max_masked = shape.max_predictions_per_seq + (
            shape.max_examples_per_row - 1
        )
        self._next_example = 0
        # Open rows in the order of their first examples.
        self._open: dict[_Row, None] = {}
        # The same rows by their room, in the order of their last examples.
        self._by_room: list[list[_Row]] = [[] for _ in range(self._length)]
        # Bit n is set if there is an open row with room n.
        self._rooms = 0

    def add(self, lengths: list[int], num_masked: list[int]) -> list[list[int]]:
        """Adds examples, and returns the rows that are complete by then.

        Args:
            lengths: Number of tokens of each example.
            num_masked: Largest number of masked tokens of each example.

        Returns:
            Lists of the numbers of examples, which count all examples added so
            far. The numbers of a row increase.
        """
        complete: list[list[int]] = []
        for length, masked in zip(lengths, num_masked, strict=True):
            row = self._take_best(length, masked)
            if row is None:
                complete += self._close_old_rows()
                row = _Row(self._length, self._max_masked)
            row.room -= length
            row.mask_room -= masked
            row.examples.append(self._next_example)
            self._next_example += 1
            if (
                row.room < _SHORTEST_EXAMPLE
                or len(row.examples) == self._max_examples
            ):
                self._open.pop(row, None)
                complete.append(row.examples)
                continue
            if row not in self._open:
                if len(self._open) == _MAX_OPEN_ROWS:
                    least_room = (self._rooms & -self._rooms).bit_length() - 1
                    complete.append(self._close(self._by_room[least_room][0]))
                self._open[row] = None
            self._by_room[row.room].append(row)
            self._rooms |= 1 << row.room
        return complete

    def close(self) -> list[list[int]]:
        """Returns the rows that are still open, and forgets them."""
        rows = [row.examples for row in self._open]
        self._open.clear()
        for of_room in self._by_room:
            of_room.clear()
        self._rooms = 0
        return rows

    def _take_best(self, length: int, masked: int) -> _Row | None:
        """Removes the row with the least sufficient room from `_by_room`."""
        rooms = self._rooms >> length
        room = length - 1
        while rooms:
            step = (rooms & -rooms).bit_length()
            room += step
            rooms >>= step
            for row in self._by_room[room]:
                if row.mask_room >= masked:
                    self._remove(row)
                    return row
        return None

    def _close_old_rows(self) -> list[list[int]]:
        old = []
        for row in self._open:
            if self._next_example - row.examples[0] <= _MAX_AGE:
                break
            old.append(row)
        return [self._close(row) for row in old]

    def _close(self, row: _Row) -> list[int]:
        self._remove(row)
        del self._open[row]
        return row.examples

    def _remove(self, row: _Row) -> None:
        """Removes a row from `_by_room`."""
        of_room = self._by_room[row.room]
        of_room.remove(row)
        if not of_room:
            self._rooms ^= 1 << row.room
