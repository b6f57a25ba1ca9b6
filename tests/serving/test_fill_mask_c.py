"""fill_mask.c, compiled and run on an export."""

import os
import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2

from tests.helpers.exports import filled_lines


@pytest.mark.slow
def test_a_c_program_fills_masks_as_python_does(export_dir, served, tmp_path):
    """In an environment without Python's variables."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    library_dir = tf.sysconfig.get_lib()
    subprocess.run(
        [
            "gcc",
            *("-std=c11", "-Wall", "-Wextra", "-Werror"),
            *("-o", tmp_path / "fill_mask"),
            "albert_tf/serving/fill_mask.c",
            f"-I{tf.sysconfig.get_include()}",
            f"-L{library_dir}",
            "-l:libtensorflow_cc.so.2",
            "-l:libtensorflow_framework.so.2",
            f"-Wl,-rpath,{library_dir}",
        ],
        check=True,
    )
    saved = saved_model_pb2.SavedModel.FromString(
        (export_dir / "saved_model.pb").read_bytes()
    )
    signature = saved.meta_graphs[0].signature_def["fill_mask_text"]
    ops = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"

    def fill(directory):
        return subprocess.run(
            [
                tmp_path / "fill_mask",
                directory,
                "The [MASK] sat on[MASK].",
                signature.inputs["text"].name,
                signature.outputs["top_pieces"].name,
                signature.outputs["top_probabilities"].name,
                ops / "_sentencepiece_tokenizer.so",
                ops / "_normalize_ops.so",
            ],
            capture_output=True,
            check=False,
            text=True,
            env={"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    run = fill(export_dir)
    assert run.returncode == 0, run.stderr
    _, *wanted = filled_lines(served, ["The [MASK] sat on[MASK]."])
    assert run.stdout.splitlines() == [line.strip() for line in wanted]
    assert len(wanted) == 2
    missing = fill(tmp_path)
    assert missing.returncode == 1
    assert "Could not find SavedModel" in missing.stderr
