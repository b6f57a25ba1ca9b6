"""Labels that do not fit the kind of the task."""

import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples


@pytest.mark.parametrize(
    ("kind", "header", "row", "message"),
    [
        (
            "regression",
            "text,label",
            "a,abc",
            r"label of .*t\.csv must be a finite number\. "
            "Received: 'abc' in line 2",
        ),
        ("regression", "text,label", "a,inf", "must be a finite number"),
        (
            "multiple_choice",
            "text,question,x,y,label",
            "a,b,c,d,1st",
            "must be the number of a choice from 0, or a letter from A.*'1st'",
        ),
        (
            "question_answering",
            "text,question,answer,answer_start",
            "a dog,who?,dog,second",
            "answer of .* must be a text, with a number as.*'second'",
        ),
    ],
)
def test_a_wrong_label_is_refused_with_what_was_wanted(
    tmp_path, kind, header, row, message
):
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n{row}\n")
    columns = {"choice_columns": ("x", "y")} if "choice" in kind else {}
    with pytest.raises(UserError, match=message):
        read_examples(
            TaskConfig(task=kind, train_file=str(path), **columns), "train"
        )
