"""The Python interface, `import albert_tf`."""

import pathlib
import subprocess
import sys

import pytest

import albert_tf

ROOT = pathlib.Path(__file__).parents[2]


def test_every_public_name_exists():
    assert len(albert_tf.__all__) > 10
    for name in albert_tf.__all__:
        assert getattr(albert_tf, name).__name__ == name
        assert name in dir(albert_tf)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = albert_tf.absent


def test_import_and_configs_need_no_tensorflow():
    code = (
        "import sys, albert_tf\n"
        "assert 'numpy' not in sys.modules\n"
        "albert_tf.ModelConfig(), albert_tf.PretrainingConfig\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
