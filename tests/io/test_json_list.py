"""A list of dataclasses in a file."""

import dataclasses
import json

import pytest

from albert_tf.errors import UserError
from albert_tf.io.json_list import JsonList


@dataclasses.dataclass(frozen=True)
class Fact:
    step: int
    reason: str


class Facts(JsonList[Fact]):
    FILE_NAME = "facts.json"
    ITEM_TYPE = Fact
    CONTENT = "the facts of the run"
    REMEDY = "Restore it."


def test_another_process_reads_what_was_added(tmp_path):
    facts = Facts.read(str(tmp_path))
    assert len(facts) == 0
    facts.extend([Fact(3, "a"), Fact(5, "b")])
    facts.extend([Fact(8, "c")])
    assert list(Facts.read(str(tmp_path))) == list(facts)
    stored = json.loads((tmp_path / "facts.json").read_text())
    assert stored[2] == {"step": 8, "reason": "c"}


def test_items_can_be_added_without_writing(tmp_path):
    facts = Facts.read(str(tmp_path))
    facts.extend([Fact(3, "a")], writes=False)
    assert len(facts) == 1
    assert not list(tmp_path.iterdir())


def test_a_file_of_other_keys_is_refused(tmp_path):
    (tmp_path / "facts.json").write_text('[{"file": "a"}]')
    with pytest.raises(UserError, match=r"facts\.json must hold the facts"):
        Facts.read(str(tmp_path))
