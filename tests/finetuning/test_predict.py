"""The checkpoint and the null threshold of predictions."""

import pytest
import tensorflow as tf

from albert_tf.config import FinetuningConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.predict import _wanted_step, best_threshold
from albert_tf.finetuning.scores import score_answers
from albert_tf.records.documents import Question
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.rollback import Rollback, Rollbacks


def test_a_discarded_checkpoint_is_not_used_as_the_best(tmp_path):
    store = CheckpointStore(str(tmp_path), {"kernel": tf.Variable([1.0])})
    store.save_best(6, {}, 2.0)
    store.wait()
    config = FinetuningConfig.from_dict(
        {"training": {"output_dir": str(tmp_path), "checkpoint": "best"}}
    )
    assert _wanted_step(config) == 6
    Rollbacks.read(str(tmp_path)).add(Rollback(8, 5, 3, 1.0, "nan"))
    with pytest.raises(UserError, match="checkpoint=best needs a checkpoint"):
        _wanted_step(config)


@pytest.mark.parametrize(("first_answer", "answered"), [("no", 0), ("yes", 1)])
def test_the_best_threshold_gives_the_best_f1(first_answer, answered):
    """Also if it is best to answer no question, and all odds are negative."""
    questions = [
        Question("a", "Is it?", "yes", (("yes", 0),), False),
        Question("b", "Is it?", "yes", (), True),
        Question("c", "Is it?", "yes", (), True),
    ]
    answers = {"a": first_answer, "b": "yes", "c": "yes"}
    odds = {"a": -7.0, "b": -5.0, "c": -2.0}
    best = score_answers(questions, answers, odds)

    threshold = best_threshold(best, list(odds.values()))

    scores = score_answers(questions, answers, odds, threshold)
    assert scores["f1"] == best["best_f1"]
    assert sum(value <= threshold for value in odds.values()) == answered
