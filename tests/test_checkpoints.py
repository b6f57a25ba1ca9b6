import numpy as np
import pytest
import tensorflow as tf
import tiny_run

from albert_tf import checkpoints, files, train
from albert_tf.errors import UserError


def store_of(directory, shapes, keep_max=5):
    variables = {
        name: tf.Variable(tf.zeros(shape)) for name, shape in shapes.items()
    }
    store = checkpoints.CheckpointStore(str(directory), variables, keep_max)
    return store, variables


def test_variables_come_back_by_path(tmp_path):
    shapes = {"encoder/layer_norm/gamma": (3,), "encoder/S/kernel": (2, 5)}
    store, variables = store_of(tmp_path, shapes)
    for number, variable in enumerate(variables.values()):
        variable.assign(tf.fill(variable.shape, number + 1.5))
    store.save(7)

    other, restored = store_of(tmp_path, dict(reversed(shapes.items())))
    assert other.restore().endswith("ckpt-7")
    for name, variable in variables.items():
        np.testing.assert_array_equal(restored[name], variable)


def test_what_a_worker_but_the_chief_saves_is_not_kept(tmp_path):
    variables = {"kernel": tf.Variable(tf.zeros((2,)))}
    store = checkpoints.CheckpointStore(str(tmp_path), variables, writes=False)
    store.save(3)
    assert not list(tmp_path.iterdir())


def test_a_new_run_has_nothing_to_restore(tmp_path):
    store, _ = store_of(tmp_path, {"kernel": (2,)})
    assert store.restore() is None


def test_the_newest_are_kept_and_any_kept_step_can_be_asked_for(tmp_path):
    store, variables = store_of(tmp_path, {"kernel": (2,)}, keep_max=2)
    for step in (10, 20, 30):
        variables["kernel"].assign([step, step])
        store.save(step)

    assert store.restore().endswith("ckpt-30")
    store.restore(20)
    np.testing.assert_array_equal(variables["kernel"], [20, 20])
    with pytest.raises(UserError, match=r"Received: 10\. There are: 20, 30"):
        store.restore(10)


def test_another_shape_or_name_is_refused_with_both(tmp_path):
    store, _ = store_of(tmp_path, {"kernel": (2, 5)})
    store.save(1)
    wider, _ = store_of(tmp_path, {"kernel": (2, 6)})
    with pytest.raises(
        UserError, match=r"kernel has shape \[2, 5\] there and \[2, 6\] here"
    ):
        wider.restore()
    renamed, _ = store_of(tmp_path, {"weights/S": (2, 5)})
    with pytest.raises(UserError, match="weights/S has shape none there"):
        renamed.restore()


def test_a_full_disk_leaves_the_last_checkpoint(small_disk):
    store, variables = store_of(small_disk, {"kernel": (100, 100)})
    variables["kernel"].assign_add(tf.ones((100, 100)))
    store.save(1)
    (small_disk / "other").write_bytes(bytes(small_disk.free() - 8192))

    with pytest.raises(tf.errors.OpError) as error:
        store.save(2)
    assert files.is_full_disk(error.value)
    variables["kernel"].assign(tf.zeros((100, 100)))
    assert store.restore().endswith("ckpt-1")
    np.testing.assert_array_equal(variables["kernel"], np.ones((100, 100)))


def test_every_variable_of_model_and_optimizer_is_saved(tiny_records, tmp_path):
    """tf.train.Checkpoint of a Keras 3 model would drop those in lists."""
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=2, eval_input_file=()
    )
    train.train(config)
    newest = tf.train.latest_checkpoint(tmp_path / "checkpoints")
    saved = tf.train.load_checkpoint(newest).get_variable_to_shape_map()
    saved = [name for name in saved if name.startswith("variables/")]
    state = train.make_state(config)

    count = len(state.pretrainer.variables)
    assert count > 20
    assert len(saved) == 3 * count + 1  # two moments each, and the step


def test_a_run_loads_with_its_own_settings_and_weights(tiny_records, tmp_path):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        num_train_steps=4,
        save_checkpoints_steps=2,
        eval_input_file=(),
    )
    train.train(config)

    loaded, newest, step = checkpoints.load_run(str(tmp_path))
    assert (loaded, step) == (config, 4)
    _, older, step = checkpoints.load_run(str(tmp_path), 2)
    assert step == 2
    name = "albert/embeddings/word_embeddings"
    weights = [checkpoints.model_variables(m)[name] for m in (newest, older)]
    assert np.abs(weights[0] - weights[1]).max() > 1e-4


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"config\.json must exist"):
        checkpoints.load_run(str(tmp_path))
