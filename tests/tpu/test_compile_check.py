import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from albert_tf.errors import UserError
from tests.helpers import tiny_run
from tests.helpers.compiled_runs import small_config, tiny_config
from tpu import compile_check, tpu_compiler
from tpu.compile_check import CompileCheckConfig
from tpu.estimates import Estimate

ROOT = pathlib.Path(__file__).parents[2]


def check_config(**changes):
    config = tiny_config(precision="mixed_bfloat16", global_batch_size=64)
    return CompileCheckConfig(run=config, topology="v5e:2x4", **changes)


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "no jax, jaxlib, libtpu"), ("0.11.0", "0.11.0 and 0.11.0")],
)
def test_other_compilers_are_refused(monkeypatch, version, message):
    """The error names the extra, which pins the supported version."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: version)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(UserError, match=f"{message}.*tpu-compile"):
        tpu_compiler.check_installed()
    pinned = f'"jax[tpu]=={tpu_compiler.JAX_VERSION}"'
    assert pinned in (ROOT / "setup.py").read_text()


def test_the_slice_is_required():
    """--topology replaces the slice of a flag file of configs/hardware."""
    config = dataclasses.replace(check_config(), topology="")
    with pytest.raises(UserError, match=r"--topology is required.*hardware"):
        compile_check.main(config)
    config = dataclasses.replace(config, accelerator_type="v5litepod-256")
    assert str(config.where) == "v5e:16x16"
    config = dataclasses.replace(config, topology="v4:2x2x1")
    assert str(config.where) == "v4:2x2x1"


def test_estimates_are_described_with_what_they_are_for():
    """Real chips may take 50 % longer."""
    stored = json.loads((ROOT / "tpu" / "compiled.json").read_text())
    stored = stored["base_v1_125k"]
    del stored["flags"]
    changes = {"step_s": 0.0441, "days": 2.0, "chip_hours": 400.0}
    said = compile_check.describe(Estimate(**{**stored, **changes}))
    for line in (
        "v5e:16x16: 256 chips, 256 cores",
        "2 micro-batches of 8 examples of 512 tokens, mixed_bfloat16, no remat",
        "peak 1.40 of 15.75 GiB (9%)",
        f"{stored['cycles']:,}, estimated\n",
        "44.1 to 66.2 ms",
        "2.00 to 3.00 days, 400 to 600 chip-hours",
    ):
        assert line in said
    unknown = Estimate(**{**stored, "uncounted_loops": 1})
    assert "TOO LOW" in compile_check.describe(unknown)


@pytest.mark.tpu_compile
def test_the_compilers_error_is_printed(capsys):
    config = dataclasses.replace(
        check_config(quick=True),
        run=small_config(global_batch_size=2**14),
        topology="v5litepod-1",
    )
    assert compile_check.main(config) == compile_check.EXIT_DOES_NOT_COMPILE
    said = capsys.readouterr().out
    assert "DOES NOT COMPILE" in said
    assert "RESOURCE_EXHAUSTED" in said
    assert "15.75G" in said


@pytest.mark.tpu_compile
def test_the_command_reads_slice_and_compiler_flags_from_a_flag_file(tmp_path):
    """The compiler refuses an unknown flag."""
    hardware = tmp_path / "hardware.flags"
    hardware.write_text("--accelerator_type=v5litepod-8\n")
    command = [sys.executable, "-m", "tpu.compile_check", "--quick", "--json"]
    command += tiny_run.as_flags(tiny_config(), tmp_path / "model.json")
    command += [f"--flagfile={hardware}"]
    run = functools.partial(
        subprocess.run, command, cwd=ROOT, capture_output=True, check=False
    )
    done = run()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["topology"], found["num_cores"]) == ("v5e:2x4", 8)
    assert found["peak_bytes"] > 0 and "libtpu" in found["versions"]
    with hardware.open("a") as file:
        file.write("--libtpu_init_args=--xla_flag_that_does_not_exist=true\n")
    done = run()
    assert done.returncode not in (0, compile_check.EXIT_DOES_NOT_COMPILE)
    assert b"xla_flag_that_does_not_exist" in done.stderr
