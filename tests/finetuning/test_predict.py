"""The checkpoint that predictions are computed from."""

import pytest
import tensorflow as tf

from albert_tf.config import FinetuningConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.predict import _wanted_step
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
