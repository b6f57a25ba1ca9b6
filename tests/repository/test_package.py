"""The wheel, and what it contains besides code, from an empty directory."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import albert_tf
from albert_tf.__main__ import COMMANDS
from albert_tf.config import ModelConfig, PretrainingConfig, flags
from albert_tf.errors import UserError
from albert_tf.io import shipped

ROOT = pathlib.Path(__file__).parents[2]


def test_recipes_and_architectures_have_names(tmp_path, monkeypatch):
    """No two recipes share one, but for the parts in include/."""
    recipes = [*ROOT.glob("configs/*/*.flags")]
    assert len({path.stem for path in recipes}) == len(recipes) > 50
    monkeypatch.chdir(tmp_path)
    for path in recipes:
        assert shipped.find(path.stem, shipped.RECIPE) == str(path)
    for path in ROOT.glob("configs/models/*.json"):
        by_name = ModelConfig.from_json_file(path.stem)
        assert by_name == ModelConfig.from_json_file(str(path))


def test_a_flag_file_names_others_relative_to_itself(tmp_path, monkeypatch):
    """All other paths belong to the working directory."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "part.flags").write_text("# A part.\n--seed=7\n")
    (own / "all.flags").write_text(
        "--flagfile=base_v2_125k\n--flagfile=part.flags\n\n"
        "--input_file=part.flags\n--output_dir=part.flags\n"
    )
    monkeypatch.chdir(tmp_path)
    config = flags.parse_line(
        PretrainingConfig, ["--flagfile", "own/all.flags"]
    )
    assert config.training.seed == 7
    assert config.training.num_train_steps == 125_000
    assert config.data.input_file == ("part.flags",)
    assert config.training.output_dir == "part.flags"
    # A file of the user comes before a name.
    pathlib.Path("base_v2_125k").write_text("--flagfile=base_v2_125k")
    with pytest.raises(UserError, match="does not contain itself"):
        flags.parse_line(PretrainingConfig, ["--flagfile=base_v2_125k"])
    with pytest.raises(UserError, match="or the name of a recipe"):
        flags.parse_line(PretrainingConfig, ["--flagfile=../base_v1_125k"])
    with pytest.raises(UserError, match="Did you mean base_v1_125k or "):
        flags.parse_line(PretrainingConfig, ["--flagfile=bse_v1_125k"])


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_directory(tmp_path):
    """It has recipes, architectures and the released model, by name."""
    source, site = tmp_path / "source", tmp_path / "site"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, tracked.stdout.decode().split("\0")):
        if (ROOT / name).exists() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = ["--no-deps", "--no-build-isolation", f"--wheel-dir={tmp_path}"]
    subprocess.run([*pip, "wheel", *build, source], check=True)
    (wheel,) = tmp_path.glob("albert_tf-*.whl")
    assert albert_tf.__version__ in wheel.name
    install = ["install", "--no-deps", "--no-index", f"--target={site}"]
    subprocess.run([*pip, *install, wheel], check=True)
    shutil.rmtree(source)
    (tmp_path / "empty").mkdir()

    def run(*arguments, status=0):
        done = subprocess.run(
            [site / "bin" / "albert-tf", *arguments],
            cwd=tmp_path / "empty",
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stderr if status else done.stdout

    assert set(COMMANDS) <= set(run("--help").split())
    assert run("--version") == f"albert-tf {albert_tf.__version__}\n"
    assert "must be one of" in run("dance", status=1)
    assert re.search(r"^tensorflow==2\.21", run("constraints"), re.M)

    (tmp_path / "empty" / "text").write_text("A dog ran. It barked.\n\n" * 200)
    run(
        "build_tfrecords",
        "--input_file=text",
        "--spm_model_file=albert_mini_en",
        "--output_dir=records",
        "--max_seq_length=16",
        "--max_predictions_per_seq=3",
        "--sentence_objective=none",
    )
    table = run(
        "run-pretraining",
        "--flagfile=mini_en_16",
        "--input_file=records/train/*.tfrecord",
        "--init_checkpoint=albert_mini_en",
        "--model=num_hidden_layers=1,max_position_embeddings=512",
        "--global_batch_size=4",
        "--nojit_compile",
        "--output_dir=run",
        "--dry_run",
    )
    assert "albert_mini_en" in table
