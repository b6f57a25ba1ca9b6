import numpy as np
import pytest

from albert_tf.config import TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.features import find_or_write

REGRESSION = TaskHeadConfig("regression")


def make_record(value):
    return {
        "input_ids": np.array([2, 7, 3, 0]),
        "input_mask": np.array([1, 1, 1, 0]),
        "segment_ids": np.zeros(4, int),
        "label": np.array([value], np.float32),
        "example_weight": np.ones(1, np.float32),
    }


def find(parent, value=0.5, scratch=""):
    """The features of one example, whose label is `value`."""
    splits = {"train": lambda: [make_record(value)]}
    inputs = {"label": value}
    return find_or_write(
        str(parent), "train", splits, REGRESSION, 4, inputs, str(scratch)
    )


def contents(directory):
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_mtime)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_other_inputs_leave_features_as_they_are(tmp_path):
    """The run that reads them may be in training."""
    first = find(tmp_path)
    before = contents(tmp_path)

    other = find(tmp_path, value=1.5)

    assert other.checksums != first.checksums
    assert contents(tmp_path).items() > before.items()
    assert find(tmp_path) == first


def test_features_of_earlier_versions_are_used(tmp_path):
    """Their directory has the name of the purpose alone. With other inputs,
    they are neither used nor removed."""
    directory = find(tmp_path).directory
    (tmp_path / "train").mkdir()
    for path in tmp_path.glob("train-*/*"):
        path.rename(tmp_path / "train" / path.name)
    before = contents(tmp_path / "train")

    assert find(tmp_path).directory == str(tmp_path / "train")
    assert find(tmp_path, value=1.5).directory not in (
        str(tmp_path / "train"),
        directory,
    )
    assert contents(tmp_path / "train") == before


def test_a_dry_run_uses_the_features_of_the_run_and_writes_elsewhere(tmp_path):
    run, scratch = tmp_path / "run", tmp_path / "scratch"

    assert find(run, scratch=scratch).directory.startswith(str(scratch))
    assert not run.exists()
    written = find(run)
    assert find(run, scratch=scratch) == written


def test_a_set_without_a_usable_example_is_refused(tmp_path):
    """E.g. questions whose answers are longer than all windows."""
    head = TaskHeadConfig("question_answering")
    with pytest.raises(UserError, match="example of the train set must be"):
        find_or_write(str(tmp_path), "train", {"train": list}, head, 64, {})
