"""The outer loop of a run, with a trainer that only counts steps."""

import errno
import math
import types

import pytest
import tensorflow as tf

from albert_tf.cluster.preemption import StopRequest
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import PretrainingConfig, TrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import Phase, TrainingData
from albert_tf.runs import checkpoint_files
from albert_tf.runs.checkpoint_files import Checkpoint
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.log import RunLog, read_events, read_metrics
from albert_tf.runs.rollback import Rollbacks
from albert_tf.training.listener import Listener
from albert_tf.training.position import Position
from albert_tf.training.recovery import MAX_REREADS, Recovery
from albert_tf.training.run import Run
from albert_tf.training.step_times import StepTimes


class CountingTrainer:
    """A trainer that only counts steps."""

    def __init__(self, step):
        self.position = Position.at_start(["loss", "gradient_norm"])
        self.position.step = step
        self.rollbacks = ()
        self.boundaries, self.saved = [], []
        self.state = types.SimpleNamespace(
            objective=types.SimpleNamespace(
                listeners=lambda log_event: (), cost=lambda metrics: 1.0
            )
        )
        self.store = types.SimpleNamespace(
            save=self.save,
            save_best=self.save_best,
            seconds_stalled=0.0,
            best_is_of=lambda evaluation: True,
            wait=lambda: None,
            save_errors={},
        )

    def save(self, step, notes):
        """As for a step that was just saved as the best: it does not wait."""
        self.saved.append(step)
        self.store.seconds_stalled = 0.0
        return True

    def save_best(self, step, notes, loss, evaluation):
        """Every checkpoint is the best, and training waits 5 s for it."""
        self.store.seconds_stalled = 5.0
        return True

    def advance(self, until):
        self.boundaries.append(until)
        self.position.step = until
        return False


class StoppedTrainer(CountingTrainer):
    """A trainer that gets a request to stop in its first step."""

    def __init__(self, loss):
        super().__init__(0)
        self._loss = loss

    def advance(self, until):
        self.position.step += 1
        self.position.num_steps += 1
        self.position.totals["loss"] = self._loss
        return True


class NoProgress(Listener):
    was_steady = True

    def advance(self, times):
        return {"step_seconds_median": 1.0, "steps_per_second": 1.0}

    def log(self, step, metrics):
        pass


class EventLog:
    """A log that keeps the events, each with its facts."""

    def __init__(self):
        self.events = []

    def write(self, split, step, metrics):
        pass

    def write_event(self, kind, step, **facts):
        self.events.append((kind, step, facts))

    def finish(self):
        pass


@pytest.fixture
def train(tmp_path):
    """Trains from a step to 100; returns the trainer.

    By default, the store of the trainer only notes the steps. `notes` are those
    of the checkpoint that the run resumes from.
    """

    def train_from(
        step,
        evaluator=None,
        run_log=None,
        store=None,
        notes=None,
        **settings,
    ):
        config = PretrainingConfig.from_dict(
            {
                "optimizer": {"num_warmup_steps": 0},
                "training": {
                    "output_dir": str(tmp_path),
                    "num_train_steps": 100,
                    **settings,
                },
            }
        )
        trainer = CountingTrainer(step)
        trainer.position.restore(Checkpoint("", step, notes or {}))
        trainer.store = store or trainer.store
        trainer.rollbacks = Rollbacks.read(str(tmp_path))
        run = Run(
            config,
            TrainingData((Phase(0, "all", None),)),
            tf.distribute.OneDeviceStrategy("CPU:0"),
            trainer,
            evaluator,
            StopRequest(tf.Variable(0.0)),
            run_log,
            NoProgress(),
            Watchdog(),
        )
        assert run.train() == 0
        return trainer

    return train_from


@pytest.fixture
def start_run(train, tmp_path):
    """A function that starts a run, by default one that is complete.

    Its checkpoints are real, and its held-out loss is the number of its
    evaluations.
    """
    losses = []

    def evaluate(step, run_log):
        losses.append(len(losses) + 1)
        if run_log:
            run_log.write("eval", step, {"loss": losses[-1]})
        return {"loss": losses[-1]}

    def start(step=100, notes=None, **examples):
        log = RunLog.open(
            str(tmp_path), step, num_unlogged=(notes or {}).get("num_steps", 0)
        )
        store = CheckpointStore(str(tmp_path), {"kernel": tf.Variable(1.0)})
        evaluator = types.SimpleNamespace(
            run_and_log=evaluate, examples=examples
        )
        train(
            step,
            evaluator=evaluator,
            run_log=log,
            store=store,
            notes=notes,
        )

    return start


def held_out_losses(run_dir):
    lines = read_metrics(str(run_dir))
    return [line["loss"] for line in lines if line["split"] == "eval"]


def evaluations_in(directory):
    found = checkpoint_files.list_checkpoints(str(directory))
    return [(c.step, c.notes["evaluation"]) for c in found]


def test_a_complete_run_logs_an_evaluation_only_if_the_log_has_none(
    start_run, tmp_path
):
    """It was trained without held-out records, and is started with them."""
    start_run(max_eval_steps=3)
    start_run(max_eval_steps=3)
    assert held_out_losses(tmp_path) == [1]
    kinds = [event["event"] for event in read_events(str(tmp_path))]
    assert kinds == ["checkpoint", "finish", "finish"]


def test_a_complete_run_is_evaluated_on_other_held_out_examples(
    start_run, tmp_path
):
    """The new line replaces that of the examples before, although it is
    higher."""
    start_run(max_eval_steps=3)
    for _ in range(2):
        start_run(max_eval_steps=5)
    assert held_out_losses(tmp_path) == [2]
    assert evaluations_in(tmp_path / "best") == [(100, {"max_eval_steps": 5})]


def test_the_next_start_saves_a_best_checkpoint_that_was_not_written(
    start_run, tmp_path, monkeypatch
):
    """Its evaluation is in the log. The regular checkpoint, which is written
    later, does not hide the error."""
    write = checkpoint_files.write_checkpoint

    def fail_for_the_best(directory, *content):
        if "/best/" in directory:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(directory, *content)

    with monkeypatch.context() as full_disk:
        full_disk.setattr(
            checkpoint_files, "write_checkpoint", fail_for_the_best
        )
        with pytest.raises(
            UserError,
            match=r"best/step-00000100 must .* run the same command again",
        ):
            start_run(step=90)
    (regular,) = checkpoint_files.list_checkpoints(
        str(tmp_path / "checkpoints")
    )
    assert regular.step == 100
    assert held_out_losses(tmp_path) == [1]
    start_run()
    assert evaluations_in(tmp_path / "best") == [(100, {})]
    assert held_out_losses(tmp_path) == [1]


# Of a checkpoint within a loop.
WITHIN_LOOP = {
    "num_steps": 2,
    "totals": {"loss": 6.0, "gradient_norm": 1.0},
    "learning_rate": 0.25,
}


def test_a_last_step_within_the_loop_of_a_longer_run_is_logged(
    start_run, tmp_path
):
    """Once, even if the run is started again: its checkpoint stays the same."""
    log = RunLog.open(str(tmp_path), 0)
    log.write("train", 98, {"loss": 4.0})
    for _ in range(2):
        start_run(notes=WITHIN_LOOP)
    assert held_out_losses(tmp_path) == [1]
    before, line = (
        line for line in read_metrics(str(tmp_path)) if line["split"] == "train"
    )
    assert before == {"split": "train", "step": 98, "loss": 4.0}
    assert line["step"] == 100
    assert line["loss"] == 6 / 2
    assert line["learning_rate"] == 0.25


def test_the_divergence_of_such_a_last_loop_is_found(start_run):
    diverged = {**WITHIN_LOOP, "totals": {"loss": math.nan}}
    with pytest.raises(UserError, match=r"finite.*loss nan .* at step 100"):
        start_run(notes=diverged)


def stop(trainer, run_dir):
    """Trains until the trainer is stopped; returns the exit status."""
    stop = StopRequest(tf.Variable(0.0))
    stop.set("a test", 143)
    run = Run(
        PretrainingConfig(training=TrainingConfig(output_dir=str(run_dir))),
        TrainingData((Phase(0, "all", None),)),
        tf.distribute.OneDeviceStrategy("CPU:0"),
        trainer,
        None,
        stop,
        None,
        NoProgress(),
        Watchdog(),
    )
    return run.train()


@pytest.mark.parametrize(("loss", "saved"), [(math.nan, []), (3.0, [1])])
def test_a_run_that_has_diverged_saves_nothing_when_it_is_stopped(
    tmp_path, caplog, loss, saved
):
    """It would continue from weights that are not finite."""
    trainer = StoppedTrainer(loss)
    assert stop(trainer, tmp_path) == 143
    assert trainer.saved == saved
    assert ("NO CHECKPOINT SAVED at step 1" in caplog.text) == (not saved)


def test_only_an_error_of_its_own_checkpoint_ends_a_stopped_run(tmp_path):
    """After one of best/, a scheduler still starts the command again."""
    trainer = StoppedTrainer(3.0)
    trainer.store.save_errors["best"] = UserError("best/ must be written")
    assert stop(trainer, tmp_path) == 143
    trainer = StoppedTrainer(3.0)
    trainer.store.save_errors["checkpoints"] = UserError("it must be written")
    with pytest.raises(UserError, match="it must be written"):
        stop(trainer, tmp_path)


def test_reads_that_fail_at_later_steps_are_not_counted_together():
    """Storage may fail now and then in a run of months."""
    position = Position(10, {}, times=StepTimes([]))
    recovery = Recovery(
        PretrainingConfig(),
        types.SimpleNamespace(
            position=position,
            stream=types.SimpleNamespace(check_intact=lambda *_: None),
            store=types.SimpleNamespace(wait=lambda: None),
            restore=lambda avoided: True,
            close_batches=lambda: None,
        ),
        tf.distribute.OneDeviceStrategy("CPU:0"),
        None,
        (),
        lambda *_, **__: None,
        Watchdog(),
    )
    error = tf.errors.DataLossError(None, None, "a bit")
    for step in range(10, 10 + 3 * MAX_REREADS):
        position.step = step
        recovery.read_again(error, step + 2)
    for _ in range(MAX_REREADS - 1):
        recovery.read_again(error, step + 2)
    with pytest.raises(tf.errors.DataLossError):
        recovery.read_again(error, step + 2)


@pytest.mark.parametrize("kind", ["rollback", "read_again"])
def test_a_return_to_a_checkpoint_logs_the_time_that_it_loses(tmp_path, kind):
    """The checkpoint is of step 5, and the lines of the log of 4 and 8."""
    log = RunLog.open(str(tmp_path), step=0)
    log.write("train", 4, {"loop_seconds": 100.0})
    log.write("train", 8, {"loop_seconds": 40.0, "compile_seconds": 20.0})
    log.write("eval", 8, {"evaluation_seconds": 8.0})
    position = Position(10, {}, times=StepTimes([4.0, 2.0]))
    events = {}

    def restore(avoided):
        # The checkpoint holds the time of step 5, which line 8 includes.
        position.step, position.times = 5, StepTimes([1.0])
        return True

    recovery = Recovery(
        PretrainingConfig(training=TrainingConfig(on_divergence="rollback")),
        types.SimpleNamespace(
            position=position,
            rollbacks=Rollbacks.read(str(tmp_path)),
            stream=types.SimpleNamespace(check_intact=lambda *_: None),
            store=types.SimpleNamespace(wait=lambda: None),
            restore=restore,
            close_batches=lambda: None,
        ),
        tf.distribute.OneDeviceStrategy("CPU:0"),
        log,
        (),
        lambda kind, **facts: events.update({kind: facts}),
        Watchdog(),
    )
    if kind == "rollback":
        recovery.roll_back("loss nan", {})
    else:
        recovery.read_again(tf.errors.DataLossError(None, None, "a bit"), 12)
    assert events[kind]["lost_s"] == 40 + 20 + 8 + 4 + 2 - 1


def test_checkpoints_that_are_kept_for_ever_are_saved(train):
    """Multiples of 30 are no multiples of 40, the interval of the others."""
    often = {"save_checkpoints_steps": 40, "keep_every_n_steps": 30}
    expected = [30, 40, 60, 80, 90, 100]
    assert train(0, **often).saved == expected
    assert train(50, **often).saved == expected[2:]


def test_without_held_out_records_an_interrupted_evaluation_is_skipped(train):
    """The process that was interrupted had held-out records."""
    trainer = train(40, notes={"to_evaluate": True})
    assert trainer.position.step == 100


def test_the_wait_for_each_checkpoint_is_logged_also_for_the_best(train):
    """The best one and the regular one of the last step share a copy."""
    log = EventLog()
    evaluator = types.SimpleNamespace(
        run_and_log=lambda step, log: {"loss": 1}, examples={}
    )
    train(20, evaluator=evaluator, run_log=log, save_checkpoints_steps=60)
    waits = [
        (step, facts["best"], facts["stalled_s"])
        for kind, step, facts in log.events
        if kind == "checkpoint"
    ]
    assert waits == [(60, False, 0.0), (100, True, 5.0), (100, False, 0.0)]
