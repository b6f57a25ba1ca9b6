"""Versions of installed packages, and of packages made of metadata only."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import pytest

from albert_tf.cluster import versions
from albert_tf.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]


def write_packages(directory, packages):
    """Packages of metadata only."""
    for name, version in packages.items():
        folder = directory / f"{name.replace('-', '_')}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs packages of metadata only; hides those of version ""."""
    find = importlib.metadata.distribution

    def install(**packages):
        packages = {n.replace("_", "-"): v for n, v in packages.items()}
        write_packages(tmp_path, {n: v for n, v in packages.items() if v})
        monkeypatch.syspath_prepend(tmp_path)

        def found(name):
            if packages.get(name) == "":
                raise importlib.metadata.PackageNotFoundError(name)
            return find(name)

        monkeypatch.setattr(importlib.metadata, "distribution", found)

    return install


def test_a_run_logs_the_versions_that_may_change_its_result(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_x")
    found = versions.software()
    assert {"Python", "tensorflow", "keras", "sentencepiece"} <= found.keys()
    assert found["keras"] == importlib.metadata.version("keras")
    assert found["XLA_FLAGS"] == "--xla_x"


def test_libtpu_has_the_version_of_the_distribution():
    needed = importlib.metadata.requires("albert-tf")
    version = str(versions.NEWEST_LIBTPU).removeprefix("<=")
    assert f'libtpu=={version}; extra == "tpu"' in needed


@pytest.mark.parametrize("libtpu", ["0.0.30", "0.0.33", ""])
def test_libtpu_that_ends_the_import_is_refused(installed, monkeypatch, libtpu):
    """0.0.33 was seen to abort `import tensorflow` of tensorflow-tpu 2.20.0."""
    installed(tensorflow_tpu="2.20.0", libtpu=libtpu)
    monkeypatch.setattr(versions, "TENSORFLOWS", ("tensorflow-tpu",))
    if libtpu == "0.0.33":
        with pytest.raises(UserError, match=r"install 'libtpu<=0\.0\.30'"):
            versions.import_tensorflow()
    else:
        versions.import_tensorflow()


@pytest.mark.slow
def test_a_quick_import_leaves_out_what_is_not_needed():
    """Keras works without these packages; later imports find them."""
    program = """if True:
        import sys
        from albert_tf.cluster import versions
        with versions.quick_import():
            import keras
        assert not {"sklearn", "matplotlib.pyplot", "jax"} & set(sys.modules)
        import matplotlib.pyplot, sklearn.metrics
        assert keras.ops.add(1, 2) == 3
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_run_refuses_before_tensorflow_is_imported(tmp_path):
    """The import of this TensorFlow would end the process."""
    (tmp_path / "tensorflow.py").write_text("import os; os.abort()")
    write_packages(tmp_path, {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.40"})
    code = (
        "from albert_tf import config, run_pretraining as r\n"
        "from albert_tf.cluster import versions\n"
        "versions.TENSORFLOWS = ('tensorflow-tpu',)\n"
        "training = config.TrainingConfig(output_dir='run')\n"
        "r.main(config.PretrainingConfig(training=training))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "libtpu must be <=0.0.30" in done.stderr


@pytest.mark.slow
def test_triton_is_imported_before_tensorflow(tmp_path):
    """After TensorFlow, the real one would end the process."""
    (tmp_path / "triton.py").write_text(
        "import sys\n"
        "print('late' if 'tensorflow' in sys.modules else 'early')\n"
        "sys.exit()"
    )
    done = subprocess.run(
        [sys.executable, "-c", "from albert_tf import load"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.stdout == "early\n", done.stderr
