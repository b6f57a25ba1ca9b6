"""The faults of a batch of records, the first of each record."""

from collections.abc import Callable, Mapping

import numpy as np


class BatchFaults:
    """Collects the first fault of each row of a batch.

    Attributes:
        features: The features, `(batch, length)` each, by name.
        faults: Descriptions by row.
        is_faulty: bool, `(batch,)`.

    Example:
        >>> batch = BatchFaults({"label": np.array([[0], [7]])})
        >>> label = batch.features["label"]
        >>> batch.refuse_values("label", label > 1, "0 or 1")
        >>> batch.faults
        {1: 'label[0] must be 0 or 1. Received: 7'}
    """

    def __init__(self, features: Mapping[str, np.ndarray]) -> None:
        self.features = features
        self.faults: dict[int, str] = {}
        num_rows = len(next(iter(features.values())))
        self.is_faulty = np.zeros(num_rows, bool)

    def refuse(
        self, is_faulty: np.ndarray, describe: Callable[[int], str]
    ) -> None:
        """Adds a fault to rows without one; `is_faulty` is bool, `(batch,)`."""
        for row in np.flatnonzero(is_faulty & ~self.is_faulty).tolist():
            self.faults[row] = describe(row)
        self.is_faulty |= is_faulty

    def refuse_values(
        self,
        name: str,
        is_faulty: np.ndarray,
        expected: str | Callable[[int, int], str],
        values: np.ndarray | None = None,
    ) -> None:
        """Adds a fault to rows where `is_faulty`, `(batch, length)`, is True.

        `expected` describes a correct value, at a row and column if needed.
        The fault shows `values`, by default those of the feature.
        """
        shown = self.features[name] if values is None else values

        def describe(row: int) -> str:
            column = int(is_faulty[row].argmax())
            what = expected(row, column) if callable(expected) else expected
            received = shown[row, column]
            return f"{name}[{column}] must be {what}. Received: {received}"

        self.refuse(np.asarray(is_faulty.any(axis=1)), describe)
