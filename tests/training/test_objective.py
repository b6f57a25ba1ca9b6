"""A second objective trains, evaluates, logs and resumes by the same code.

A classification task of three classes, on records of its own: features of its
own names and lengths, a head of its own on the pooled output, examples with a
weight each, and a metric that is computed from collected predictions.
"""

import dataclasses
import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.input.record_format import RecordFormat
from albert_tf.input.record_sets import Phase, RecordSet, TrainingData
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.runs.checkpoints import list_checkpoints
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training import preflight
from albert_tf.training.evaluate import evaluate_run
from albert_tf.training.objective import Objective, weighted_sums
from albert_tf.training.progress import TIMING_METRICS
from albert_tf.training.train import train
from tests.helpers import tiny_run

LENGTH, NUM_CLASSES, NUM_TRAIN, NUM_HELD_OUT = 12, 3, 40, 13


@dataclasses.dataclass(frozen=True)
class TaskFeature:
    name: str
    dtype: str
    size: int

    def length(self, shape):
        return self.size


FEATURES = (
    TaskFeature("tokens", "int64", LENGTH),
    TaskFeature("weight", "float32", 1),
    TaskFeature("label", "int64", 1),
)


class Classifier(keras.layers.Layer):
    """A head on the pooled output of ALBERT."""

    def __init__(self, config):
        super().__init__(name="classifier")
        self.albert = AlbertPretrainer(config.model, "sop")
        self.head = keras.layers.Dense(NUM_CLASSES, name="head")

    def build(self):
        self.albert.build()
        self.head.build((None, self.albert.config.hidden_size))

    def call(self, batch, dropout, target):
        tokens = batch["tokens"]
        outputs = self.albert(
            {
                "input_ids": tokens,
                "input_mask": tf.ones_like(tokens),
                "segment_ids": tf.zeros_like(tokens),
                # The last block is needed at position 0 only.
                "masked_lm_positions": tf.zeros_like(tokens[:, :1]),
            },
            dropout=dropout,
            target=target,
        )
        return self.head(outputs["pooled_output"])


class Classification(Objective):
    metric_names = ("loss", "accuracy")

    def __init__(self, config, directory):
        self.config, self.directory = config, directory

    def find_training_data(self):
        return TrainingData((Phase(0, "", self._records("train")),))

    def find_held_out(self, data=None):
        return self._records("eval")

    def _records(self, split):
        count = {"train": NUM_TRAIN, "eval": NUM_HELD_OUT}[split]
        file = str(self.directory / f"{split}.tfrecord")
        return RecordSet(
            (file,), (count,), ("",), None, str(self.directory), ((file,),)
        )

    def record_format(self, records):
        return RecordFormat(FEATURES, {"tokens": 400, "label": NUM_CLASSES})

    def describe_records(self, records):
        return [f"{NUM_CLASSES} classes"]

    def make_model(self):
        model = Classifier(self.config)
        model.build()
        # The masked-LM and sentence heads are not part of the task.
        model.albert.masked_lm.trainable = False
        model.albert.sentence.trainable = False
        return model

    def initial_weights(self, data):
        return None

    def write_report(self, run_dir, initial):
        pass

    def weights(self, batch):
        return {"label": tf.reduce_sum(batch["weight"])}

    def sums(self, logits, batch):
        return weighted_sums(
            "label", logits, batch["label"][:, 0], batch["weight"][:, 0]
        )

    def loss(self, sums, weights):
        return tf.math.divide_no_nan(sums["label_loss_sum"], weights["label"])

    def metrics(self, sums):
        weight = sums["label_weight_sum"]
        return {
            "loss": tf.math.divide_no_nan(sums["label_loss_sum"], weight),
            "accuracy": tf.math.divide_no_nan(
                sums["label_correct_sum"], weight
            ),
        }

    def predictions(self, logits, batch):
        return {
            "answer": tf.argmax(logits, axis=-1),
            "label": batch["label"][:, 0],
        }

    def evaluate(self, sums, predictions):
        matches = predictions["answer"] == predictions["label"]
        return {
            **super().evaluate(sums, predictions),
            "matches": float(np.mean(matches)),
            "examples": float(len(matches)),
        }

    def describe(self, metrics):
        return f"accuracy {metrics['accuracy']:.1%}"

    def describe_evaluation(self, metrics, records):
        return [self.describe(metrics)]

    def num_parameters(self):
        return 10_000

    def flops_per_step(self):
        return 10**6

    def memory_per_replica(self, num_replicas):
        return {"weights": 40_000}

    def chance_loss(self):
        return float(np.log(NUM_CLASSES))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Sequences of one repeated token, which determines the class."""
    directory = tmp_path_factory.mktemp("task")
    rng = np.random.default_rng(0)
    for split, count in (("train", NUM_TRAIN), ("eval", NUM_HELD_OUT)):
        path = str(directory / f"{split}.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for label in rng.integers(0, NUM_CLASSES, count):
                example = tf.train.Example()
                feature = example.features.feature
                tokens = np.full(LENGTH, 100 + 50 * label)
                feature["tokens"].int64_list.value.extend(tokens)
                feature["weight"].float_list.value.append(1.0)
                feature["label"].int64_list.value.append(label)
                writer.write(example.SerializeToString())
    return directory


def make_task(records, run_dir, **changes):
    changes = {
        "num_train_steps": 24,
        "save_checkpoints_steps": 12,
        "eval_every_n_steps": 12,
        "max_eval_steps": 0,
        "optimizer": "adamw",
        "learning_rate": 0.003,
        **changes,
    }
    config = tiny_run.make_config(records, run_dir, **changes)
    return config, Classification(config, records)


def lines_of(run_dir):
    return [
        {n: v for n, v in line.items() if n not in TIMING_METRICS}
        for line in read_metrics(str(run_dir))
    ]


@pytest.mark.slow
def test_a_second_objective_learns_and_is_evaluated(records, tmp_path, capsys):
    """It learns the class of each token; padding is not evaluated."""
    config, objective = make_task(records, tmp_path)
    assert train(config, objective) == 0
    trained, evaluated = (
        [line for line in lines_of(tmp_path) if line["split"] == split]
        for split in ("train", "eval")
    )
    assert trained[0]["loss"] == pytest.approx(np.log(NUM_CLASSES), abs=0.3)
    assert trained[-1]["accuracy"] > 0.9
    newest = evaluated[-1]
    assert newest["examples"] == NUM_HELD_OUT
    assert newest["matches"] == pytest.approx(newest["accuracy"])
    assert newest["matches"] > 0.9
    assert "masked_lm_loss" not in trained[-1]

    capsys.readouterr()
    evaluate_run(config, lambda c: Classification(c, records))
    printed = json.loads(capsys.readouterr().out)
    del newest["split"]
    assert printed == pytest.approx(newest)


@pytest.mark.slow
def test_a_second_objective_resumes(records, tmp_path, monkeypatch):
    """A run that is killed at its evaluation at step 12, with a checkpoint of
    step 6, ends like an undisturbed run."""
    train(*make_task(records, tmp_path / "alone"))

    class Killed(BaseException):
        pass

    config, objective = make_task(
        records, tmp_path / "killed", save_checkpoints_steps=6
    )

    def kill(self, metrics, records):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(
            objective, "describe_evaluation", types.MethodType(kill, objective)
        )
        with pytest.raises(Killed):
            train(config, objective)
    steps = [
        c.step for c in list_checkpoints(str(tmp_path / "killed/checkpoints"))
    ]
    assert steps == [0, 6]
    train(*make_task(records, tmp_path / "killed"))
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "alone")
    kinds = [e["event"] for e in read_events(str(tmp_path / "killed"))]
    assert kinds.count("resume") == 1


@pytest.mark.slow
def test_a_second_objective_gives_the_same_on_two_replicas(records, tmp_path):
    """All logged metrics are equal, also those of collected predictions."""
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {
        "num_train_steps": 4,
        "epsilon": 0.1,
        "dropout_schedule": "0:0.0",  # masks differ by replica
    }
    train(*make_task(records, one, **settings))
    mirrored = {"strategy": "mirrored", "num_logical_cpus": 2}
    train(*make_task(records, two, **settings, **mirrored))
    for line, other in zip(lines_of(one), lines_of(two), strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            if name != "split":
                assert other[name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.slow
def test_the_dry_run_checks_a_second_objective(records, tmp_path, capsys):
    config, objective = make_task(records, tmp_path / "run")
    assert preflight.run(config, objective) == 0
    table = capsys.readouterr().out
    assert "uniform predictions give 1.099" in table
    assert "3 classes" in table
