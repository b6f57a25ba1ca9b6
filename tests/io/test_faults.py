"""Messages of Python and TensorFlow, as they were seen, and their remedies."""

import errno
import os

import pytest
import tensorflow as tf

import albert_tf
from albert_tf.errors import RetryError, UserError
from albert_tf.io import faults, files

HTTP = "Error executing an HTTP request: HTTP response code "
# TensorFlow's error, and words of the explanation. training/test_cloud_storage
# has refusals of a server.
REMOTE = {
    "missing object": (
        tf.errors.NotFoundError,
        HTTP + "404 with body '{}'\n\t when reading gs://b/r/x",
        ["gs://b/r/x must be accessible. Received: HTTP 404"],
    ),
    "unavailable": (
        tf.errors.AbortedError,
        "All 10 retry attempts failed. The last failure: " + HTTP + "503 with "
        "body '{}'\n\t when reading metadata of gs://b/r/x",
        [
            "Cloud Storage must answer requests for gs://b/r/x",
            "HTTP response code 503",
            "Run the same command again",
        ],
    ),
    "no network": (
        tf.errors.AbortedError,
        "All 10 retry attempts failed. The last failure: Error executing an "
        "HTTP request: libcurl code 6 meaning 'Couldn't resolve host name', "
        "error details: Could not resolve host\n\t when reading gs://b/r/x",
        ["Cloud Storage must answer requests for gs://b/r/x", "libcurl code 6"],
    ),
    "incomplete": (
        tf.errors.InternalError,
        "File contents are inconsistent for file: gs://b/r/x @ 0.",
        ["gs://b/r/x must be read completely"],
    ),
}


@pytest.mark.parametrize("name", REMOTE)
def test_errors_of_cloud_storage_name_path_and_remedy(name):
    make, text, words = REMOTE[name]
    explained = faults.explain(make(None, None, text))
    assert isinstance(explained, UserError)
    assert isinstance(explained, RetryError) == (name != "missing object")
    assert all(word in str(explained) for word in words), explained
    assert "\n" not in str(explained)


def test_errors_of_local_files_name_path_and_reason(tmp_path):
    (tmp_path / "file").touch()
    for path, said in {
        "file/child": "be accessible. Received: Not a directory",
        ".": "be accessible. Received: Is a directory",
        "x" * 300: "be accessible. Received: File name too long",
        "none": "exist. Received: No such file",
    }.items():
        with pytest.raises(OSError) as error:
            (tmp_path / path).read_bytes()
        explained = str(faults.explain(error.value))
        assert str(tmp_path / path) in explained
        assert said in explained


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EROFS, errno.EMFILE, errno.EFBIG]
)
def test_python_and_tensorflow_are_explained_alike(number):
    reason = os.strerror(number)
    python = faults.explain(OSError(number, reason, "run/log"))
    operation = "{{function_node __wrapped__SaveV2}} "
    tensorflow = faults.explain(
        tf.errors.UnknownError(None, None, f"{operation}run/log; {reason}")
    )
    assert str(python) == str(tensorflow)
    assert "run/log must be " in str(python)


def test_a_failed_save_is_explained_without_its_operation(tmp_path):
    """TensorFlow names the operation after the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(tf.errors.OpError, match=r"\[Op:SaveV2\]") as error:
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / "file" / "x"),
            tensor_names=["a"],
            shape_and_slices=[""],
            tensors=[tf.zeros(1)],
        )
    explained = str(faults.explain(error.value))
    assert "Received: Not a directory" in explained
    assert "Op:" not in explained and "{{" not in explained


def test_other_errors_are_not_explained():
    for error in (
        ValueError("gs://bucket/x"),
        OSError(errno.ECHILD, "No child processes"),
        tf.errors.InternalError(None, None, "a bug near gs://bucket/x"),
        tf.errors.InvalidArgumentError(None, None, "shape; Permission"),
    ):
        assert faults.explain(error) is None
    assert "ulimit -v" in str(faults.explain(MemoryError()))


@pytest.mark.parametrize("scheme", ["s3", "hdfs", "https", "abfs"])
def test_an_unknown_scheme_is_named(scheme):
    """By functions for notebooks, too, which nothing else explains."""
    path = f"{scheme}://a/b"
    recipe = {"vocab_size": 30000, "input_file": (f"{path}/c.tfrecord",)}
    config = albert_tf.recipe("mini_en_16", output_dir=path, **recipe)
    for use, argument in (
        (files.find, f"{path}/*.txt"),
        (albert_tf.load, path),
        (albert_tf.Tokenizer, path),
        (albert_tf.train, config),
        (albert_tf.train, config.replace(output_dir="none")),
    ):
        with pytest.raises(UserError) as raised:
            use(argument)
        said = str(raised.value)
        assert said.startswith(path) and " must be local or on " in said
        assert f"Received: {scheme}://. Mount it, or copy it" in said
