"""Estimates of training steps: from made-up programs, and by the compiler."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import pathlib
import subprocess
import sys

import pytest
from google.protobuf import text_format
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from albert_tf.errors import UserError
from albert_tf.interop.weight_names import list_weights
from tests.helpers import tiny_run
from tests.helpers.compiled_runs import small_config, tiny_config
from tpu import compile_check, topologies, tpu_compiler
from tpu.compile_check import CompileCheckConfig

ROOT = pathlib.Path(__file__).parents[2]


# --- without the compiler -----------------------------------------------------

# The entry sums two arrays, and runs a loop whose counter begins at 1.
PROGRAM = """
entry_computation_id: 4
computations { id: 1
  instructions { id: 10 opcode: "add" backend_config: '"estimated_cycles":"9"' }
}
computations { id: 2
  instructions { id: 20 opcode: "fusion" called_computation_ids: 1
    backend_config: '{"estimated_cycles":"1000"}' }
}
computations { id: 3 root_id: 33
  instructions { id: 31 opcode: "constant" literal { s32s: 5 } }
  instructions { id: 32 opcode: "get-tuple-element" tuple_index: 0 }
  instructions { id: 33 opcode: "compare" comparison_direction: "LT"
    operand_ids: [32, 31] }
}
computations { id: 4
  instructions { id: 41 opcode: "constant" literal { s32s: 1 } }
  instructions { id: 42 opcode: "copy" operand_ids: 41
    backend_config: '{"estimated_cycles":"7"}' }
  instructions { id: 43 opcode: "all-reduce" called_computation_ids: 1
    shape { element_type: TUPLE
      tuple_shapes { element_type: F32 dimensions: 8 }
      tuple_shapes { element_type: BF16 dimensions: [2, 3] } } }
  instructions { id: 44 opcode: "tuple" operand_ids: [42, 43] }
  instructions { id: 45 opcode: "while" operand_ids: 44
    called_computation_ids: [2, 3] backend_config: '{}' }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "cycles", "uncounted_loops"),
    [
        # The counter is 1 to 4. The fusion has the cycles, not its operations.
        ("", "", 4 * 1000 + 7, 0),
        ("{}", '{"known_trip_count":{"n":"12"}}', 12 * 1000 + 7, 0),
        # The first value of the counter is not a constant.
        ("[42, 43]", "[43, 43]", 1000 + 7, 1),
    ],
)
def test_a_loop_body_counts_for_each_iteration(
    old, new, cycles, uncounted_loops
):
    module = text_format.Parse(
        PROGRAM.replace(old, new), hlo_pb2.HloModuleProto()
    )
    assert tpu_compiler.program_cost(module) == tpu_compiler.Cost(
        cycles=cycles,
        all_reduce_bytes=8 * 4 + 2 * 3 * 2,
        num_all_reduces=1,
        uncounted_loops=uncounted_loops,
    )


def test_a_missing_compiler_is_refused(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name != "libtpu"
    )
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.10.2")
    with pytest.raises(UserError, match=r"no libtpu.*tpu-compile"):
        tpu_compiler.check_installed()


def test_the_batch_must_fit_the_slice():
    config = CompileCheckConfig(
        run=tiny_config(global_batch_size=20), accelerator_type="v5litepod-8"
    )
    with pytest.raises(UserError, match=r"replicas \(8\).*Nearest: 16 and 24"):
        compile_check.main(config)


def test_estimates_are_described_with_what_they_are_for():
    """Real chips may take 50 % longer."""
    stored = json.loads((ROOT / "tpu" / "compiled.json").read_text())
    stored = stored["base_v1_125k"]
    del stored["flags"]
    changes = {"step_s": 0.0441, "days": 2.0, "chip_hours": 400.0}
    estimate = compile_check.Estimate(**{**stored, **changes})
    said = compile_check.describe(estimate)
    for line in (
        "v5e:16x16: 256 chips, 256 cores",
        "rows per core  2 x 8",
        "HBM, GiB       1.40 of 15.75",
        "44 to 66",
        "2.00 to 3.00",
        "400 to 600",
    ):
        assert line in said
    unknown = dataclasses.replace(estimate, uncounted_loops=1)
    assert "TOO LOW" in compile_check.describe(unknown)


# --- by the compiler ----------------------------------------------------------


@pytest.mark.tpu_compile
def test_the_compilers_error_is_printed(capsys):
    run = small_config(global_batch_size=2**14)
    config = CompileCheckConfig(
        run=run, accelerator_type="v5litepod-1", quick=True
    )
    assert compile_check.main(config) == compile_check.EXIT_DOES_NOT_COMPILE
    said = capsys.readouterr().out
    assert "DOES NOT COMPILE" in said
    assert "RESOURCE_EXHAUSTED" in said
    assert "15.75G" in said
    assert "Try --gradient_accumulation_steps=" in said


@pytest.mark.tpu_compile
def test_the_command_reads_compiler_flags_from_a_flag_file(tmp_path):
    """The compiler refuses an unknown flag."""
    hardware = tmp_path / "hardware.flags"
    hardware.write_text(
        "--accelerator_type=v5litepod-8\n"
        "--libtpu_init_args=--xla_flag_that_does_not_exist=true\n"
    )
    command = [sys.executable, "-m", "tpu.compile_check", "--quick"]
    command += tiny_run.as_flags(tiny_config(), tmp_path / "model.json")
    command += [f"--flagfile={hardware}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode not in (0, compile_check.EXIT_DOES_NOT_COMPILE)
    assert b"xla_flag_that_does_not_exist" in done.stderr


@pytest.mark.tpu_compile
def test_the_step_compiles_for_a_slice_and_keeps_recomputation(capsys):
    """Otherwise, the compiler would merge the two computations of --remat.

    The slice has two cores per chip.
    """
    config = small_config(
        global_batch_size=32 * 4 * 8, gradient_accumulation_steps=4, remat=True
    )
    settings = {"accelerator_type": "v3-8", "quick": True, "json": True}
    assert not compile_check.main(CompileCheckConfig(run=config, **settings))
    found = json.loads(capsys.readouterr().out)
    found = compile_check.Estimate(**found)
    assert found.num_cores == 8 and "libtpu" in found.versions
    assert not found.error
    assert found.uncounted_loops == 0
    listed = list_weights(config.model, "sop")
    weights = 4 * sum(math.prod(weight.shape) for weight in listed)
    # Weights and two moments, padded to whole tiles; float32 gradients.
    assert 1 <= found.argument_bytes / (3 * weights) < 1.3
    assert 1 <= found.all_reduce_bytes / weights < 1.001
    assert found.argument_bytes < found.peak_bytes < found.chip_memory_bytes
    assert found.cycles is found.step_s is None
    # The compiler counts the operations of the formula, and others. Without
    # --remat, they are 1.04 of the formula's, and the peak is 55 MB.
    assert 1.3 < found.flops / found.model_flops < 1.5
    assert found.peak_bytes < 45e6


# Rows per core, heads, and tokens of a row, of the step below. As for the
# recipes, the on-chip memory could hold an attention bias of packed rows, but
# not the exponentials that all layers keep for the backward pass.
ROWS, HEADS, TOKENS = 256, 2, 256


@pytest.mark.tpu_compile
@pytest.mark.long
def test_a_full_compile_estimates_times_and_is_as_good_as_before(monkeypatch):
    """A step on packed rows with dropout. No number may change by more than
    3 %, unless the change is an improvement, or worth its cost.

    No memory holds an attention bias of packed rows: an array with a number for
    each pair of positions of each row, but not for each head.
    """
    config = small_config(
        global_batch_size=8 * ROWS,
        dropout_schedule="0:0.1",
        packing="best_fit",
    )
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            max_position_embeddings=TOKENS,
        ),
        data=dataclasses.replace(config.data, max_seq_length=TOKENS),
    )
    programs, program_cost = [], tpu_compiler.program_cost
    monkeypatch.setattr(
        tpu_compiler,
        "program_cost",
        lambda module: programs.append(module) or program_cost(module),
    )
    found = compile_check.estimate(config, topologies.parse("v5litepod-8"))
    assert 0 < found.mfu < 1
    assert found.step_s == pytest.approx(
        found.cycles / 1.5e9 + found.all_reduce_s
    )
    assert found.chip_hours == pytest.approx(found.days * 24 * 8)
    numbers = {
        "all_reduce_bytes": 1266792,
        "cycles": 9356469,
        "flops": 170677649408,
        "num_all_reduces": 2,
        "peak_bytes": 413253120,
    }
    got = {name: getattr(found, name) for name in numbers}
    assert got == pytest.approx(numbers, rel=0.03)
    shapes = {shape for _, shape in arrays_in_memory(programs[0])}
    sizes = {math.prod(s) for s in shapes if s[-2:] == (TOKENS, TOKENS)}
    assert ROWS * HEADS * TOKENS**2 in sizes  # the exponentials
    assert ROWS * TOKENS**2 not in sizes


def arrays_in_memory(module):
    """Dtypes and shapes of the arrays in HBM or on-chip memory."""
    operations = [o for c in module.computations for o in c.instructions]
    # Values inside a fusion are in no memory.
    fused = {
        number
        for operation in operations
        if operation.opcode == "fusion"
        for number in operation.called_computation_ids
    }
    shapes = [
        operation.shape
        for computation in module.computations
        if computation.id not in fused
        for operation in computation.instructions
    ]
    for shape in shapes:  # the loop adds to it
        shapes += shape.tuple_shapes
    name = xla_data_pb2.PrimitiveType.Name
    return {(name(s.element_type), (*s.dimensions,)) for s in shapes}
