import dataclasses
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
INSTALLED = all(map(importlib.util.find_spec, tpu_compiler.PACKAGES))


def check_config(**changes):
    config = tiny_config(precision="mixed_bfloat16", global_batch_size=64)
    return CompileCheckConfig(run=config, topology="v5e:2x4", **changes)


@pytest.mark.skipif(INSTALLED, reason="the compiler is installed")
def test_without_the_compiler_the_error_says_what_to_install():
    with pytest.raises(UserError, match=r"libtpu.*tpu-compile"):
        compile_check.main(check_config())


def test_another_version_of_jax_is_refused(monkeypatch):
    """The error names the extra, which pins the supported version."""
    versions = dict.fromkeys(tpu_compiler.PACKAGES, "0.11.0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", versions.get)
    with pytest.raises(UserError, match=r"0\.11\.0 and 0\.11\.0.*tpu-compile"):
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
    """An unknown flag, which the compiler refuses, shows that it read them."""
    hardware = tmp_path / "hardware.flags"
    flags = tiny_run.as_flags(tiny_config(), tmp_path / "model.json")

    def run():
        return subprocess.run(
            [
                *(sys.executable, "-m", "tpu.compile_check", *flags),
                *(f"--flagfile={hardware}", "--quick", "--json"),
            ],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )

    hardware.write_text("--accelerator_type=v5litepod-8\n")
    done = run()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["topology"], found["num_cores"]) == ("v5e:2x4", 8)
    assert found["peak_bytes"] > 0
    assert "libtpu" in found["versions"]
    with hardware.open("a") as file:
        file.write("--libtpu_init_args=--xla_flag_that_does_not_exist=true\n")
    done = run()
    assert done.returncode not in (0, compile_check.EXIT_DOES_NOT_COMPILE)
    assert b"xla_flag_that_does_not_exist" in done.stderr
