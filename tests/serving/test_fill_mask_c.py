"""fill_mask.c, compiled and run on an export."""

import os
import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf
import tensorflow_text

from tests.helpers.served_model import filled_lines

pytestmark = pytest.mark.slow  # compiles and starts a C program


@pytest.fixture(scope="module")
def c_program(tmp_path_factory):
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    program = tmp_path_factory.mktemp("c") / "fill_mask"
    library_dir = tf.sysconfig.get_lib()
    subprocess.run(
        [
            "gcc",
            *("-std=c11", "-Wall", "-Wextra", "-Werror", "-o", program),
            "albert_tf/serving/fill_mask.c",
            f"-I{tf.sysconfig.get_include()}",
            f"-L{library_dir}",
            "-l:libtensorflow_cc.so.2",
            "-l:libtensorflow_framework.so.2",
            f"-Wl,-rpath,{library_dir}",
        ],
        check=True,
    )
    return program


def run_c(program, export_dir, text):
    """In an environment without Python's variables."""
    ops = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"
    return subprocess.run(
        [
            program,
            export_dir,
            text,
            ops / "_sentencepiece_tokenizer.so",
            ops / "_normalize_ops.so",
        ],
        capture_output=True,
        check=False,
        text=True,
        env={"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def test_a_c_program_fills_masks_as_python_does(c_program, export_dir, served):
    text = "The [MASK] sat on[MASK]."
    run = run_c(c_program, export_dir, text)
    assert run.returncode == 0, run.stderr
    _, *wanted = filled_lines(served, [text])
    assert run.stdout.splitlines() == [line.strip() for line in wanted]
    assert len(wanted) == 2


def test_a_c_program_names_what_is_missing(
    c_program, export_without_text, tmp_path
):
    missing = run_c(c_program, tmp_path, "a [MASK]")
    assert missing.returncode == 1
    assert "Could not find SavedModel" in missing.stderr
    without_text = run_c(c_program, export_without_text, "a [MASK]")
    assert without_text.returncode == 1
    assert "was it exported for text" in without_text.stderr
