"""A table of checks, printed while they run."""

import contextlib
import logging as python_logging
import math
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf
from absl import logging

from albert_tf.errors import UserError, first_line

OK, WARN, FAIL, SKIP = "ok", "warn", "FAIL", "skip"


class Checklist:
    """Runs checks in order, and prints a row for each result.

    A failed check skips only the checks that need its result.

    Args:
        remedies: Default remedy of each check, by the name of the check, for
            errors without a remedy.
        memory_remedy: Remedy for a check that runs out of memory.

    Attributes:
        num_failed: Number of failed checks.

    Example:
        >>> checklist = Checklist({"devices": "", "memory": ""})
        >>> checklist.add(OK, "devices", "2 replicas")
        ok    devices  2 replicas
    """

    def __init__(
        self, remedies: Mapping[str, str], memory_remedy: str = ""
    ) -> None:
        self.num_failed = 0
        self._remedies = remedies
        self._memory_remedy = memory_remedy
        self._name_width = max(map(len, remedies))
        self._passed: set[str] = set()

    def add(self, verdict: str, name: str, text: str, remedy: str = "") -> None:
        """Prints a row.

        Args:
            verdict: OK, WARN, FAIL, or SKIP for a check that cannot run.
            remedy: What to do; "" prints no remedy.
        """
        self.num_failed += verdict == FAIL
        width = self._name_width
        lines = [f"{verdict:4}  {name:{width}}  {' '.join(text.split())}"]
        if remedy:
            remedy = " ".join(remedy.split())
            lines.append(f"{'':4}  {'':{width}}  -> {remedy}")
        print("\n".join(lines), flush=True)

    def run(self, name: str, check: Callable[[], None], *needed: str) -> None:
        """Runs a check, which adds its rows.

        Args:
            check: Adds rows. It fails if it raises an error or adds a row with
                FAIL.
            *needed: Names of the checks that must have passed before.
        """
        missing = [name for name in needed if name not in self._passed]
        if missing:
            self.add(SKIP, name, f"not checked, needs: {', '.join(missing)}")
            return
        num_failed = self.num_failed
        try:
            with _captured_warnings() as warnings:
                check()
            if self.num_failed == num_failed:
                self._passed.add(name)
        except UserError as error:
            remedy = error.remedy or self._remedies[name]
            self.add(FAIL, name, error.fault, remedy)
        except tf.errors.ResourceExhaustedError as error:
            text = f"out of memory: {first_line(error)}"
            self.add(FAIL, name, text, self._memory_remedy)
        except (OSError, tf.errors.OpError) as error:
            self.add(FAIL, name, first_line(error), self._remedies[name])
        for warning in warnings:
            self.add(WARN, name, warning)


@contextlib.contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """Collects the warnings of a block instead of logging them."""
    messages: list[str] = []

    def capture(record: python_logging.LogRecord) -> bool:
        if record.levelno < python_logging.WARNING:
            return True
        messages.append(record.getMessage())
        return False

    logger = logging.get_absl_logger()
    logger.addFilter(capture)
    try:
        yield messages
    finally:
        logger.removeFilter(capture)


def format_bytes(number: float) -> str:
    """Formats a number of bytes.

    Example:
        >>> format_bytes(1.4e9)
        '1.4 GB'
    """
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(int(math.log10(max(number, 1)) / 3), len(units) - 1)
    return f"{number / 1000**power:,.1f} {units[power]}"
