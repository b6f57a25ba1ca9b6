"""Shapes that fill the registers of a TPU."""

_LANES, _SUBLANES = 128, 8


def num_unused_positions(num_positions: int, length: int) -> int:
    """Number of positions to add to those that the heads read, on a TPU.

    The registers of a TPU hold these positions as padding in any case. If they
    are part of the program, the compiler finds a better schedule.

    Args:
        num_positions: Positions that the heads read of each row.
        length: Positions of a row.
    """
    filled = _round_up(num_positions, _LANES)
    if filled >= length:
        filled = _round_up(num_positions, _SUBLANES)
    return filled - num_positions


def _round_up(number: int, multiple: int) -> int:
    return number + -number % multiple
