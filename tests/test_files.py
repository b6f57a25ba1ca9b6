import pytest
import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError


def test_a_full_disk_leaves_the_old_file(small_disk):
    path = small_disk / "config.json"
    files.write_text(str(path), "old")
    with pytest.raises(OSError) as error:
        files.write_text(str(path), "new" * small_disk.free())
    assert files.is_full_disk(error.value)
    assert path.read_text() == "old"


def test_a_full_disk_is_known_from_tensorflow_s_error(small_disk):
    path = str(small_disk / "shard")
    with (
        pytest.raises(tf.errors.ResourceExhaustedError) as error,
        files.written_whole(path) as partial,
        tf.io.gfile.GFile(partial, "wb") as file,
    ):
        file.write(bytes(2 * small_disk.free()))
    assert files.is_full_disk(error.value)
    assert not (small_disk / "shard").exists()

    out_of_memory = tf.errors.ResourceExhaustedError(None, None, "OOM")
    assert not files.is_full_disk(out_of_memory)


def test_a_block_that_fails_leaves_no_file_of_the_final_name(tmp_path):
    path = tmp_path / "shard"
    with pytest.raises(KeyError), files.written_whole(str(path)) as partial:
        with open(partial, "w") as file:
            file.write("half")
        raise KeyError
    assert not path.exists()


def test_json_that_is_missing_or_torn_is_named(tmp_path):
    path = str(tmp_path / "metadata.json")
    assert files.load_json_if_any(path) is None
    with pytest.raises(UserError, match=r"metadata\.json must exist"):
        files.load_json(path)
    files.write_text(path, '{"half":')
    with pytest.raises(UserError, match=r"metadata\.json must be JSON"):
        files.load_json_if_any(path)
