"""Waits for other hosts outside of the training loop are guarded, too."""

import types

import pytest
import tensorflow as tf

from albert_tf.config import FinetuningConfig, PretrainingConfig
from albert_tf.errors import RetryError
from albert_tf.finetuning import predict
from albert_tf.training import evaluate
from albert_tf.training.position import Position
from albert_tf.training.recovery import Recovery
from tests.helpers import tpu_bridge
from tests.helpers.limits import Limits

HANG_TIMEOUT_S = 7


def test_the_return_to_a_checkpoint_has_a_limit():
    limits, restored = Limits(), []
    trainer = types.SimpleNamespace(
        position=Position(step=9, totals={}),
        stream=types.SimpleNamespace(check_intact=lambda begin, end: None),
        store=types.SimpleNamespace(wait=lambda: None),
        restore=lambda avoided: restored.append(limits.active[:]) or True,
        close_batches=lambda: None,
    )
    recovery = Recovery(
        PretrainingConfig(),
        trainer,
        tf.distribute.OneDeviceStrategy("CPU:0"),
        None,
        (),
        lambda kind, **facts: None,
        limits,
    )
    recovery.read_again(tf.errors.DataLossError(None, None, "a bit"), 12)
    assert restored == [["the return to a checkpoint"]]
    assert not limits.active


@pytest.fixture
def two_hosts(monkeypatch):
    """A slice of two hosts, the last of which does not answer."""
    strategy = tpu_bridge.make_tpu_strategy(monkeypatch)
    cluster = tf.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"]})
    monkeypatch.setattr(type(strategy.extended), "num_hosts", 2)
    monkeypatch.setattr(
        strategy.cluster_resolver, "cluster_spec", lambda: cluster
    )
    return strategy


class EvaluatorOfLostHost:
    """An evaluator whose last host is lost during the evaluation."""

    def __init__(self, *_, watchdog):
        assert watchdog.limit_s() == HANG_TIMEOUT_S

    def collect(self):
        raise tf.errors.UnavailableError(
            None, None, "/job:worker/replica:0/task:1: connection refused"
        )

    def run_and_log(self, step, run_log):
        return self.collect()


NAMES_THE_HOST = pytest.raises(
    RetryError, match="no answer from worker 1 at localhost:2"
)
DISTRIBUTION = {"hang_timeout_s": HANG_TIMEOUT_S}


def test_an_evaluation_has_limits_and_names_a_lost_host(
    two_hosts, monkeypatch, tmp_path
):
    config = PretrainingConfig.from_dict(
        {
            "data": {"eval_input_file": ["eval.tfrecord"]},
            "training": {"output_dir": str(tmp_path)},
            "distribution": DISTRIBUTION,
        }
    )
    monkeypatch.setattr(evaluate, "make_strategy", lambda _: two_hosts)
    for module, name, value in (
        (evaluate.run_directory, "check_evaluation", None),
        (evaluate.run_directory, "load_config", config),
        (evaluate.trained_model, "restore_model", 4),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    monkeypatch.setattr(evaluate, "Evaluator", EvaluatorOfLostHost)
    objective = types.SimpleNamespace(
        find_held_out=lambda: "records", make_model=lambda: "model"
    )
    with NAMES_THE_HOST:
        evaluate.evaluate_run(config, lambda config: objective)


def test_predictions_have_limits_and_name_a_lost_host(two_hosts, monkeypatch):
    config = FinetuningConfig.from_dict({"distribution": DISTRIBUTION})
    objective = types.SimpleNamespace(make_model=lambda: "model")
    monkeypatch.setattr(predict, "Finetuning", lambda *_: objective)
    monkeypatch.setattr(predict, "restore_model", lambda *_: 4)
    monkeypatch.setattr(predict, "Evaluator", EvaluatorOfLostHost)
    files = types.SimpleNamespace(records=lambda split: "records")
    predictor = predict.Predictor(config, files, None, two_hosts)
    with NAMES_THE_HOST:
        predictor.predict("dev")
