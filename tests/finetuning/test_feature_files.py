import pytest

from albert_tf.config import TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.feature_files import find_or_write


def test_a_set_without_a_usable_example_is_refused(tmp_path):
    """E.g. questions whose answers are longer than all windows."""
    head = TaskHeadConfig("question_answering")
    with pytest.raises(UserError, match="example of the train set must be"):
        find_or_write(str(tmp_path), {"train": list}, head, 64, {})
