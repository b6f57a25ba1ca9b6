"""A list of dataclasses that a run keeps as JSON in its directory."""

import dataclasses
import posixpath
from collections.abc import Iterable, Iterator
from typing import ClassVar, Generic, Self, TypeVar

from albert_tf.errors import UserError
from albert_tf.io.files import load_json_if_any, write_json

Item = TypeVar("Item")


class JsonList(Generic[Item]):
    """A list and its JSON file, which `extend` writes.

    Example:
        >>> import tempfile
        >>> @dataclasses.dataclass
        ... class Note:
        ...     step: int
        >>> class Notes(JsonList[Note]):
        ...     FILE_NAME, ITEM_TYPE = "notes.json", Note
        ...     CONTENT, REMEDY = "the notes of the run", "Remove it."
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     Notes.read(run_dir).extend([Note(step=7)])
        ...     list(Notes.read(run_dir))
        [Note(step=7)]
    """

    FILE_NAME: ClassVar[str]
    ITEM_TYPE: ClassVar[type]
    CONTENT: ClassVar[str]  # for errors, e.g. "the rollbacks of the run"
    REMEDY: ClassVar[str]  # for a damaged file

    def __init__(self, path: str, items: Iterable[Item] = ()) -> None:
        self._path = path
        self._items = list(items)

    @classmethod
    def read(cls, run_dir: str) -> Self:
        """Reads the list of a run directory; empty if it has no such file.

        Raises:
            UserError: If the file is damaged.
        """
        path = posixpath.join(run_dir, cls.FILE_NAME)
        try:
            items = [
                cls.ITEM_TYPE(**values)
                for values in load_json_if_any(path) or ()
            ]
        except TypeError as error:
            raise UserError(
                f"{path} must hold {cls.CONTENT}",
                received=str(error),
                remedy=cls.REMEDY,
            ) from None
        return cls(path, items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def extend(self, items: Iterable[Item], writes: bool = True) -> None:
        """Adds items; `writes` says whether to write the file."""
        self._items += items
        if writes:
            values = [dataclasses.asdict(item) for item in self._items]  # type: ignore[call-overload]
            write_json(self._path, values)
