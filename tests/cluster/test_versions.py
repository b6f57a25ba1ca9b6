"""Versions of installed packages, and of packages made of metadata only."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import pytest

from albert_tf.cluster import versions
from albert_tf.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs packages of metadata only, ahead of the installed ones."""

    def install(**packages):
        for name, version in packages.items():
            name = name.replace("_", "-")
            directory = tmp_path / f"{name.replace('-', '_')}.dist-info"
            directory.mkdir()
            (directory / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.fixture
def uninstalled(monkeypatch):
    """Hides a package that may be installed."""

    def uninstall(hidden):
        version = importlib.metadata.version

        def version_unless_hidden(name):
            if name == hidden:
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(
            importlib.metadata, "version", version_unless_hidden
        )

    return uninstall


def remedies():
    return {
        found.name: found.remedy
        for found in versions.check_installed()
        if found.remedy
    }


def test_the_versions_of_the_tests_are_supported():
    versions.import_tensorflow()
    assert remedies() == {}
    names = {found.name for found in versions.check_installed()}
    assert {"Python", "tensorflow", "keras", "sentencepiece"} <= names


def test_limits_are_those_of_the_distribution():
    setup = (ROOT / "setup.py").read_text()
    for name, (first, below) in versions.SUPPORTED.items():
        if name == "Python":
            assert f'python_requires=">={first},<{below}"' in setup
            continue
        (limits,) = re.findall(
            rf'^ +(?:"cpu": \[)?"{name}([<>=.,\d]+)"', setup, re.M
        )
        if name == "sentencepiece":
            limits = limits.replace("<=0.2.1", "<0.2.2")
        assert limits == f">={first}" + (f",<{below}" if below else "")
    assert f'"libtpu=={versions.NEWEST_LIBTPU}"' in setup


@pytest.mark.parametrize(
    ("name", "version", "remedy"),
    [
        ("tensorflow", "2.19.1", "pip install 'tensorflow>=2.20,<2.22'"),
        ("tensorflow", "2.22.0rc0", "pip install 'tensorflow>=2.20,<2.22'"),
        ("keras", "2.15.0", "pip install 'keras>=3.12,<4'"),
        ("sentencepiece", "0.2.2", "pip install 'sentencepiece>=0.2.0,<0.2.2'"),
    ],
)
def test_an_unsupported_version_is_named_with_a_supported_one(
    installed, name, version, remedy
):
    installed(**{name: version})
    assert remedies()[name] == remedy


def test_tensorflow_text_must_have_the_same_minor_release(installed):
    installed(tensorflow="2.20.0", tensorflow_text="2.21.1")
    assert remedies() == {
        "tensorflow-text": "pip install 'tensorflow-text>=2.20,<2.21'"
    }


def test_several_tensorflows_in_one_directory_are_refused(installed):
    installed(tensorflow="2.20.0", tensorflow_tpu="2.20.0", libtpu="0.0.30")
    installed_as_one = remedies()["tensorflow tensorflow-tpu"]
    assert installed_as_one.startswith(
        "pip uninstall tensorflow tensorflow-tpu"
    )


@pytest.mark.parametrize(
    ("libtpu", "fits"), [("0.0.30", True), ("0.0.33", False), ("", False)]
)
def test_libtpu_that_ends_the_import_is_refused(
    installed, uninstalled, monkeypatch, libtpu, fits
):
    """0.0.33 was seen to abort `import tensorflow` of tensorflow-tpu 2.20.0."""
    packages = {"tensorflow_tpu": "2.20.0"}
    if libtpu:
        packages["libtpu"] = libtpu
    else:
        uninstalled("libtpu")
    installed(**packages)
    monkeypatch.setattr(versions, "TENSORFLOWS", ("tensorflow-tpu",))
    if libtpu == "0.0.33":
        with pytest.raises(UserError, match=r"libtpu==0\.0\.30"):
            versions.import_tensorflow()
    else:
        versions.import_tensorflow()
    assert ("libtpu" not in remedies()) == fits


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
    for name, version in (("tensorflow-tpu", "2.20.0"), ("libtpu", "0.0.40")):
        directory = tmp_path / f"{name.replace('-', '_')}.dist-info"
        directory.mkdir()
        (directory / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
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
    assert "libtpu must be at most 0.0.30" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["-c", "from albert_tf import load"],
        ["-m", "albert_tf.convert_checkpoint", "--verify"],
        ["-c", "import tests.conftest, tensorflow"],
    ],
    ids=["Python", "convert_checkpoint", "tests"],
)
def test_triton_is_imported_before_tensorflow(tmp_path, command):
    """After TensorFlow, the real one would end the process."""
    (tmp_path / "triton.py").write_text(
        "import sys\n"
        "print('late' if 'tensorflow' in sys.modules else 'early')\n"
        "sys.exit()"
    )
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.stdout == "early\n", done.stderr
