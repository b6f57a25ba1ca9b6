"""The bar that the commands of data preparation show."""

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
