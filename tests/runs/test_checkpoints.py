import errno
import pathlib
import random
import re
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import TrainingConfig
from albert_tf.errors import UserError
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.runs import checkpoints
from albert_tf.runs import directory as run_directory
from albert_tf.runs.directory import write_config
from tests.helpers import tiny_run
from tests.helpers.forked_program import ForkedCode


def store_of(directory, shapes, **settings):
    variables = {
        name: tf.Variable(tf.zeros(shape)) for name, shape in shapes.items()
    }
    store = checkpoints.CheckpointStore(str(directory), variables, **settings)
    return store, variables


def save(store, step, **notes):
    store.save(step, notes)
    store.wait()


def steps_in(directory):
    return [c.step for c in checkpoints.list_checkpoints(str(directory))]


def test_variables_and_notes_are_restored_bit_for_bit(tmp_path):
    shapes = {"encoder/layer_norm/gamma": (3,), "encoder/S/kernel": (2, 5)}
    store, variables = store_of(tmp_path, shapes)
    for number, variable in enumerate(variables.values()):
        variable.assign(tf.random.stateless_normal(variable.shape, (1, number)))
    third = float(tf.constant(1.0) / 3.0)
    save(store, 7, totals={"loss": third}, phase=["a", 0.1])

    other, restored = store_of(tmp_path, dict(reversed(shapes.items())))
    checkpoint = other.restore()
    assert checkpoint.step == 7
    assert checkpoint.notes == {"totals": {"loss": third}, "phase": ["a", 0.1]}
    for name, variable in variables.items():
        np.testing.assert_array_equal(restored[name], variable)


def test_all_replicas_are_restored(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        store, variables = store_of(tmp_path, {"kernel": (2, 3)})
    variables["kernel"].assign(tf.fill((2, 3), 5.0))
    save(store, 1)
    variables["kernel"].assign(tf.zeros((2, 3)))
    store.restore()
    for value in strategy.experimental_local_results(variables["kernel"]):
        np.testing.assert_array_equal(value, np.full((2, 3), 5.0))


def test_a_save_holds_the_values_at_the_time_of_the_call(tmp_path):
    """Training goes on while the checkpoint is written."""
    store, variables = store_of(tmp_path, {"kernel": (500, 1000)})
    variables["kernel"].assign(tf.ones((500, 1000)))
    store.save(1, {})
    for _ in range(20):
        variables["kernel"].assign_add(tf.ones((500, 1000)))
    store.wait()
    store.restore()
    assert (variables["kernel"].numpy() == 1).all()


def test_workers_other_than_the_chief_write_nothing(tmp_path):
    store, _ = store_of(tmp_path, {"kernel": (2,)}, writes=False)
    save(store, 3)
    store.save_best(3, {}, 1.0)
    assert not list(tmp_path.iterdir())


def test_newest_checkpoints_and_multiples_are_kept_and_can_be_restored(
    tmp_path,
):
    """A step is written once, and files of users stay."""
    mine = tmp_path / "checkpoints" / "good" / "copy"
    mine.parent.mkdir(parents=True)
    mine.write_text("of mine")
    store, variables = store_of(
        tmp_path, {"kernel": (2,)}, keep_max=2, keep_every_n_steps=20
    )
    for step in (0, 10, 20, 30, 40, 50, 60):
        variables["kernel"].assign([step, step])
        assert store.save(step, {})
        assert not store.save(step, {})
        store.wait()
    assert steps_in(tmp_path / "checkpoints") == [20, 40, 50, 60]
    assert mine.exists()

    assert store.restore().step == 60
    assert not store.save(60, {})
    store.restore(20)
    np.testing.assert_array_equal(variables["kernel"], [20, 20])
    with pytest.raises(UserError, match=r"Received: 10\. .*steps: 20, 40, 50"):
        store.restore(10)


def test_the_best_checkpoint_does_not_delay_that_of_the_same_step(
    tmp_path, monkeypatch
):
    """Writing the first lasts until the second save has returned."""
    store, _ = store_of(tmp_path, {"w": (2,)})
    write, may_write = checkpoints.write_checkpoint, threading.Event()

    def write_later(*arguments):
        assert may_write.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoints, "write_checkpoint", write_later)
    store.save_best(10, {}, 1.0)
    assert store.save(10, {})
    may_write.set()
    store.wait()
    assert (tmp_path / "best" / "step-00000010").exists()
    assert store.restore().step == 10


def test_another_shape_or_name_is_refused_naming_both(tmp_path):
    store, _ = store_of(tmp_path, {"kernel": (2, 5)})
    save(store, 1)
    wider, _ = store_of(tmp_path, {"kernel": (2, 6)})
    with pytest.raises(
        UserError,
        match=r"kernel has shape \[2, 5\] in the checkpoint and \[2, 6\] in ",
    ):
        wider.restore()
    renamed, _ = store_of(tmp_path, {"weights/S": (2, 5)})
    with pytest.raises(UserError, match="weights/S has shape none in the"):
        renamed.restore()


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x40
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def extend(path):
    path.write_bytes(path.read_bytes() + b"0")


DATA = "variables.data-00000-of-00001"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (DATA, flip_a_byte, "Checksum does not match"),
        (DATA, cut, "2399 of 2400 bytes"),
        (DATA, extend, "2401 of 2400 bytes"),
        (DATA, pathlib.Path.unlink, "is missing"),
        ("variables.index", flip_a_byte, "variables.index"),
        ("variables.index", cut, r"variables.index has \d+ of \d+ bytes"),
        ("variables.index", pathlib.Path.unlink, "is missing"),
        ("checkpoint.json", flip_a_byte, "checkpoint.json"),
        ("checkpoint.json", cut, "checkpoint.json"),
        ("checkpoint.json", pathlib.Path.unlink, ""),
    ],
)
def test_a_torn_checkpoint_is_skipped(tmp_path, name, damage, message, caplog):
    store, variables = store_of(tmp_path, {"kernel": (20, 30)})
    for step in (1, 2):
        variables["kernel"].assign(tf.fill((20, 30), float(step)))
        save(store, step)
    torn = tmp_path / "checkpoints" / "step-00000002"
    damage(torn / name)

    another, restored = store_of(tmp_path, {"kernel": (20, 30)})
    assert another.restore().step == 1
    assert (restored["kernel"].numpy() == 1).all()
    assert re.search(message, caplog.text), caplog.text
    # After training to step 2 again, its checkpoint is intact.
    restored["kernel"].assign(tf.fill((20, 30), 2.0))
    save(another, 2)
    last, values = store_of(tmp_path, {"kernel": (20, 30)})
    assert last.restore().step == 2
    assert (values["kernel"].numpy() == 2).all()


@pytest.mark.parametrize("name", ["lr[0.01]", "a?b", "a*c", "d\\e"])
def test_the_name_of_a_run_must_not_be_a_glob(name):
    """TensorFlow would find no checkpoint there."""
    with pytest.raises(UserError, match="output_dir must not contain"):
        TrainingConfig(output_dir=name)
    TrainingConfig(output_dir="gs://bucket/ru n_2.1-a")


def test_a_checkpoint_that_cannot_be_removed_is_harmless(tmp_path, monkeypatch):
    """As in a bucket that grants no right to delete."""
    store, _ = store_of(tmp_path, {"kernel": (2,)}, keep_max=1)
    save(store, 1)

    def refuse(path):
        raise tf.errors.PermissionDeniedError(None, None, f"may not {path}")

    monkeypatch.setattr(tf.io.gfile, "remove", refuse)
    save(store, 2)
    assert not store.save_errors
    assert store_of(tmp_path, {"kernel": (2,)})[0].restore().step == 2


def test_a_torn_checkpoint_of_a_requested_step_is_refused(tmp_path):
    store, _ = store_of(tmp_path, {"kernel": (20, 30)})
    save(store, 1)
    save(store, 2)
    store.save_best(3, {}, 1.0)
    store.wait()
    flip_a_byte(tmp_path / "checkpoints" / "step-00000002" / DATA)
    with pytest.raises(
        UserError, match=r"must be intact.*step-00000002\. .* of 1, 2, 3, or"
    ):
        store.restore(2)
    cut(tmp_path / "checkpoints" / "step-00000001" / "checkpoint.json")
    with pytest.raises(UserError, match=r"step-00000002, .*step-00000001"):
        store.restore()


def test_a_full_disk_leaves_the_last_checkpoint_intact(small_disk, caplog):
    """The log does not ask for a new start: training goes on."""
    store, variables = store_of(small_disk, {"kernel": (100, 100)})
    variables["kernel"].assign_add(tf.ones((100, 100)))
    save(store, 1)
    filler = small_disk / "other"
    filler.write_bytes(bytes(small_disk.free() - 8192))

    save(store, 2)  # training goes on
    error = str(store.save_errors["checkpoints"])
    assert "step-00000002" in error
    assert "run the same command again" in error
    assert "step-00000002: the disk is full: " in caplog.text
    assert "run the same command again" not in caplog.text
    assert steps_in(small_disk / "checkpoints") == [1]
    variables["kernel"].assign(tf.zeros((100, 100)))
    assert store.restore().step == 1
    np.testing.assert_array_equal(variables["kernel"], np.ones((100, 100)))

    filler.unlink()
    save(store, 3)
    assert not store.save_errors
    assert steps_in(small_disk / "checkpoints") == [1, 3]


SAVE_FOR_EVER = """
import itertools, sys
import tensorflow as tf
from albert_tf.runs.checkpoints import CheckpointStore

variables = {n: tf.Variable(tf.zeros((300, 300))) for n in "abc"}
store = CheckpointStore(sys.argv[1], variables, keep_max=2)
restored = store.restore()
for step in itertools.count(restored.step + 1 if restored else 1):
    for variable in variables.values():
        variable.assign(tf.fill((300, 300), float(step)))
    store.save(step, {"step": step})
"""


@pytest.mark.slow
def test_a_crash_at_any_moment_leaves_an_intact_checkpoint(tmp_path):
    """The process is killed ten times while it saves and removes."""
    rng = random.Random(0)
    variables = {n: tf.Variable(tf.zeros((300, 300))) for n in "abc"}
    newest = 0
    for _ in range(10):
        with ForkedCode(SAVE_FOR_EVER, [str(tmp_path)]) as process:
            there = []
            while not there or there[-1] <= newest + 3:
                assert process.poll() is None
                time.sleep(0.001)
                there = steps_in(tmp_path / "checkpoints")
            time.sleep(0.02 * rng.random())
        store = checkpoints.CheckpointStore(
            str(tmp_path), variables, writes=False
        )
        checkpoint = store.restore()
        assert checkpoint.step > newest
        newest = checkpoint.step
        for variable in variables.values():
            assert (variable.numpy() == checkpoint.step).all()
        assert checkpoint.notes == {"step": checkpoint.step}


def test_a_run_loads_with_its_own_settings_and_weights(tiny_records, tmp_path):
    with pytest.raises(UserError, match=r"config\.json must exist"):
        run_directory.load_run(str(tmp_path))
    config = tiny_run.make_config(tiny_records, tmp_path)
    write_config(str(tmp_path), config)
    model = AlbertPretrainer(config.model, "sop")
    model.build()
    store = checkpoints.CheckpointStore(
        str(tmp_path), checkpoints.model_variables(model)
    )
    bias = model.variables[0]
    for step in (2, 4):
        bias.assign(np.full(bias.shape, step))
        save(store, step)
    for wanted, step in ((0, 4), (2, 2)):
        *loaded, found = run_directory.load_run(str(tmp_path), wanted)
        assert (loaded[0], found) == (config, step)
        assert (loaded[1].variables[0].numpy() == step).all()


# --- the best checkpoint ------------------------------------------------------


def test_the_best_checkpoint_is_kept_separately(tmp_path):
    """NaN is never the best, and the best of an earlier process counts."""
    store, variables = store_of(tmp_path, {"kernel": (2,)}, keep_max=1)
    assert store.best_step() is None
    losses = {5: float("nan"), 10: 3.0, 20: 2.0, 30: 2.5, 35: float("nan")}
    for step, loss in losses.items():
        variables["kernel"].assign([step, step])
        store.save(step, {})
        assert store.save_best(step, {}, loss) == (step in (10, 20))
    store.wait()
    assert steps_in(tmp_path / "checkpoints") == [35]
    assert steps_in(tmp_path / "best") == [20]

    another, restored = store_of(tmp_path, {"kernel": (2,)})
    assert another.best_step() == 20
    another.save_best(40, {}, 2.1)
    another.wait()
    assert steps_in(tmp_path / "best") == [20]
    assert another.restore(20).notes["held_out_loss"] == 2.0
    np.testing.assert_array_equal(restored["kernel"], [20, 20])


def test_a_checkpoint_that_was_not_written_is_not_the_best(
    tmp_path, monkeypatch
):
    store, _ = store_of(tmp_path, {"kernel": (2,)})
    store.save_best(10, {}, 3.0)
    store.wait()

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(checkpoints, "write_checkpoint", fail)
        store.save_best(20, {}, 2.0)
        store.wait()
    save(store, 20)
    assert list(store.save_errors) == ["best"]
    store.save_best(30, {}, 2.5)
    store.wait()
    assert not store.save_errors
    assert steps_in(tmp_path / "best") == [30]
