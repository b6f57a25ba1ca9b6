"""The bars that the commands of data preparation show."""

from typing import Any

from tqdm import tqdm


def show_bytes(what: str, num_bytes: int) -> Any:
    """A bar over input bytes, with rate and remaining time.

    Args:
        what: What is being done, e.g. "reading inputs".
        num_bytes: All there is to do.
    """
    return tqdm(
        desc=what, total=num_bytes, unit="B", unit_scale=True, mininterval=1
    )


def show_count(what: str, total: int, unit: str) -> Any:
    """A bar over things, with rate and remaining time.

    Args:
        what: What is being done, e.g. "writing shards".
        total: All there is to do.
        unit: What is counted, e.g. "example".
    """
    return tqdm(
        desc=what,
        total=total,
        unit=unit,
        unit_scale=total >= 10_000,
        mininterval=1,
    )


def annotate(bar: Any, *, peak_memory: int, **counts: int) -> None:
    """Puts counts and a worker's peak memory, in bytes, behind a bar."""
    bar.set_postfix(
        **counts, memory=f"{peak_memory / 1e6:.0f}MB/worker", refresh=False
    )
