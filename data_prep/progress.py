"""Progress bars of the data preparation commands."""

from typing import Any

from tqdm import tqdm


def show_bytes(description: str, num_bytes: int) -> Any:
    """Returns a bar over input bytes, with rate and remaining time."""
    return tqdm(
        desc=description,
        total=num_bytes,
        unit="B",
        unit_scale=True,
        mininterval=1,
    )


def show_count(description: str, total: int, unit: str) -> Any:
    """Returns a bar over items, each a `unit`, e.g. "example"."""
    return tqdm(
        desc=description,
        total=total,
        unit=unit,
        unit_scale=total >= 10_000,
        mininterval=1,
    )


def annotate(bar: Any, *, peak_memory: int, **counts: int) -> None:
    """Shows counts and the peak memory of a worker, in bytes, after a bar."""
    bar.set_postfix(
        **counts, memory=f"{peak_memory / 1e6:.0f}MB/worker", refresh=False
    )
