"""The loop of a run: evaluations, checkpoints and stops.

The runs are real, in this process. Faults are injected below the loop.
"""

import errno
import math
import shutil
import time

import pytest
import tensorflow as tf

from albert_tf.cluster.host import Host
from albert_tf.cluster.preemption import StopRequest
from albert_tf.cluster.strategy import make_strategy
from albert_tf.errors import RetryError, UserError
from albert_tf.io.artifact import lock
from albert_tf.runs import checkpoints
from albert_tf.runs.checkpoints import list_checkpoints
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training import evaluate
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import Trainer, train
from tests.helpers import tiny_run
from tests.helpers.run_processes import lines_without_timing

pytestmark = pytest.mark.usefixtures("eager")


def steps_of(directory):
    return [c.step for c in list_checkpoints(str(directory))]


def events_of(run_dir, kind):
    return [e for e in read_events(str(run_dir)) if e["event"] == kind]


def lines_of(run_dir, split):
    return [x for x in read_metrics(str(run_dir)) if x["split"] == split]


def run_with(config, stop, objective=None):
    objective = objective or Pretraining(config)
    data = objective.find_training_data()
    host = Host(make_strategy(config.distribution), stop, writes=True)
    held_out = objective.find_held_out(data)
    trainer = Trainer(config, objective, data, host, held_out)
    trainer.begin(None, time.time())
    return trainer.train()


def requested_stop():
    """A request that is there before the first step, which is still done."""
    stop = StopRequest(tf.Variable(0.0))
    stop.set("a test", 143)
    return stop


# --- evaluations ------------------------------------------------------------


@pytest.mark.slow
def test_a_complete_run_is_evaluated_and_logged_once(tiny_records, tmp_path):
    """It was trained without held-out records, and is started with them."""

    def start(**changes):
        config = tiny_run.make_config(
            tiny_records, tmp_path, num_train_steps=2, **changes
        )
        assert train(config) == 0

    start(eval_input_file=())
    trained = lines_of(tmp_path, "train")
    # Of the second step, halfway through the warm-up.
    assert trained[-1]["learning_rate"] == pytest.approx(0.01)
    start(max_eval_steps=2)
    (first,) = lines_of(tmp_path, "eval")
    start(max_eval_steps=2)
    assert lines_of(tmp_path, "eval") == [first]
    kinds = [
        event["event"]
        for event in read_events(str(tmp_path))
        if event["event"] not in ("start", "resume")
    ]
    assert kinds == [
        *["checkpoint", "checkpoint", "finish"],
        *["checkpoint", "finish"],  # the best
        "finish",
    ]
    assert lines_of(tmp_path, "train") == trained


@pytest.fixture
def fail_to_write(monkeypatch):
    """A function that lets writes of checkpoints in a directory fail."""

    def fail(parent):
        write = checkpoints.write_checkpoint

        def write_others(directory, *content):
            if f"/{parent}/" in directory:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(directory, *content)

        monkeypatch.setattr(checkpoints, "write_checkpoint", write_others)

    return fail


@pytest.mark.slow
def test_the_next_start_saves_a_best_checkpoint_that_was_not_written(
    tiny_records, tmp_path, fail_to_write, monkeypatch
):
    """Its evaluation is in the log. The regular checkpoint, which is written
    later, does not hide the error."""
    config = tiny_run.make_config(tiny_records, tmp_path, num_train_steps=2)
    fail_to_write("best")
    with pytest.raises(
        UserError,
        match=r"best/step-00000002 must .* run the same command again",
    ):
        train(config)
    monkeypatch.undo()
    assert steps_of(tmp_path / "checkpoints")[-1] == 2
    (line,) = lines_of(tmp_path, "eval")
    train(config)
    assert steps_of(tmp_path / "best") == [2]
    assert lines_of(tmp_path, "eval") == [line]


def test_a_last_save_without_an_answer_calls_for_a_retry(tmp_path, monkeypatch):
    """TensorFlow gives up only after minutes, so its error is raised here."""
    write = checkpoints.write_checkpoint
    error = tf.errors.AbortedError(
        None,
        None,
        "All 10 retry attempts failed. The last failure: Error executing an "
        "HTTP request: HTTP response code 503 with body '{}'\n\t when "
        "initiating an upload to gs://bucket/run/x",
    )

    def fail_after_step_0(directory, step, *arguments):
        if step:
            raise error
        write(directory, step, *arguments)

    monkeypatch.setattr(checkpoints, "write_checkpoint", fail_after_step_0)
    config = tiny_run.make_synthetic_config(tmp_path)
    with pytest.raises(
        RetryError, match=r"checkpoint .*step-\d+ must be written.* code 503"
    ):
        run_with(config, requested_stop())


@pytest.mark.slow
def test_an_interrupted_evaluation_is_repeated_by_the_next_process(
    tiny_records, tmp_path, monkeypatch
):
    """Even if that process is interrupted, too; within a run, and at its end.
    It is logged once. A process without held-out records leaves it out.
    """

    def config(name, **changes):
        changes = {"eval_every_n_steps": 4, **changes}
        return tiny_run.make_config(tiny_records, tmp_path / name, **changes)

    assert train(config("undisturbed")) == 0
    evaluate_whole = evaluate.Evaluator.collect
    for cut_at in (4, 12, 12):
        stop = StopRequest(tf.Variable(0.0))

        def evaluate_and_stop(evaluator, cut_at=cut_at, stop=stop):
            seen = read_metrics(str(tmp_path / "cut"))
            if seen[-1]["step"] == cut_at:
                stop.set("a test", 143)
            return evaluate_whole(evaluator)

        with monkeypatch.context() as patch:
            patch.setattr(evaluate.Evaluator, "collect", evaluate_and_stop)
            assert run_with(config("cut"), stop) == 143
        last = lines_without_timing(tmp_path / "cut")[-1]
        assert last["split"] == "train"
        assert steps_of(tmp_path / "cut/checkpoints")[-1] == cut_at
    shutil.copytree(tmp_path / "cut", tmp_path / "without")
    without = config("without", eval_input_file=(), eval_every_n_steps=0)
    assert train(without) == 0
    assert train(config("cut")) == 0
    cut, undisturbed = (
        lines_without_timing(tmp_path / name) for name in ("cut", "undisturbed")
    )
    assert cut == undisturbed


# --- checkpoints ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minutes", "every", "saved"),
    [
        (1e-9, 0, [0, 2, 4, 5, 6, 8, 10, 12]),
        (60.0, 3, [0, 3, 5, 6, 9, 10, 12]),
    ],
)
def test_checkpoints_are_also_saved_after_minutes_and_at_multiples(
    tmp_path, minutes, every, saved
):
    """After minutes at the end of a device loop, which that does not change."""
    train(
        tiny_run.make_synthetic_config(
            tmp_path,
            save_checkpoints_steps=5,
            save_checkpoints_minutes=minutes,
            keep_every_n_steps=every,
        )
    )
    found = [event["step"] for event in events_of(tmp_path, "checkpoint")]
    assert found == saved


# --- stops ------------------------------------------------------------------


def test_a_directory_that_another_command_uses_is_refused(tmp_path):
    config = tiny_run.make_synthetic_config(tmp_path)
    used = pytest.raises(UserError, match="by one command at a time")
    with lock(str(tmp_path)), used:
        train(config)


class NotANumber(Pretraining):
    def metrics(self, sums):
        return {**super().metrics(sums), "loss": tf.constant(math.nan)}


def test_a_run_that_has_diverged_saves_nothing_when_it_is_stopped(tmp_path):
    """It would continue from weights that are not finite. Another start of the
    same command would diverge again, so the status asks for no retry."""
    config = tiny_run.make_synthetic_config(tmp_path)
    with pytest.raises(UserError, match=r"stay finite.*at step 1") as raised:
        run_with(config, requested_stop(), NotANumber(config))
    assert raised.value.exit_status == 1
    assert steps_of(tmp_path / "checkpoints") == [0]


# --- failed reads -----------------------------------------------------------


CANCELLED = tf.errors.CancelledError(None, None, "Collective ops is aborted")
WRONG_BIT = tf.errors.DataLossError(None, None, "a bit")


@pytest.mark.parametrize(
    ("cause", "strategy", "is_damaged", "error", "words"),
    [
        (WRONG_BIT, "one_device", False, RetryError, "Start the same command"),
        (CANCELLED, "mirrored", True, UserError, "Copy the shard"),
    ],
)
def test_a_failed_read_of_intact_records_asks_for_another_start(
    tiny_records,
    tmp_path,
    monkeypatch,
    cause,
    strategy,
    is_damaged,
    error,
    words,
):
    """A replica that cannot read may cancel the sum of the other one."""
    records = shutil.copytree(tiny_records, tmp_path / "records")
    for shard in (records / "train").glob("*.tfrecord"):
        content = bytearray(shard.read_bytes())
        content[52] ^= is_damaged
        shard.write_bytes(content)

    def fail(*_arguments):
        raise cause

    devices = {"num_logical_cpus": 2} if strategy == "mirrored" else {}
    config = tiny_run.make_config(
        records, tmp_path / "run", strategy=strategy, **devices
    )
    monkeypatch.setattr(Trainer, "_call_program", fail)
    with pytest.raises(error, match=words) as raised:
        train(config)
    assert type(raised.value) is error


@pytest.mark.slow
def test_a_read_that_fails_twice_in_the_same_way_asks_for_a_person(
    tiny_records, tmp_path, monkeypatch
):
    """The second start makes progress, so its failure counts as a new one."""
    config = tiny_run.make_config(
        tiny_records, tmp_path, eval_input_file=(), save_checkpoints_steps=2
    )
    call_program, statuses = Trainer._call_program, []
    for good_steps in (0, 2, 0):

        def fail_later(trainer, num_steps, good_steps=good_steps):
            if trainer.position.step + num_steps > good_steps:
                raise WRONG_BIT
            return call_program(trainer, num_steps)

        monkeypatch.setattr(Trainer, "_call_program", fail_later)
        with pytest.raises(UserError, match="a bit") as raised:
            train(config)
        statuses.append(raised.value.exit_status)
    assert statuses == [75, 75, 1]


# --- profiles ---------------------------------------------------------------


@pytest.mark.slow
def test_profiled_steps_leave_a_trace(tmp_path):
    """Even if the run ends before the last of them."""
    train(tiny_run.make_synthetic_config(tmp_path, profile_steps="8:99"))
    traces = list((tmp_path / "tensorboard").rglob("*.xplane.pb"))
    assert traces and all(trace.stat().st_size for trace in traces)
    assert "profile" in [e["event"] for e in read_events(str(tmp_path))]
