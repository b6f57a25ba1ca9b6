"""Changes of a lowered program, and the simulation of its generated code."""

import re

import pytest
import tensorflow as tf

from albert_tf.cluster.devices import TPU_CHIPS
from tests.helpers.compiled_runs import tiny_config
from tpu import cycles, replica_program, topologies, tpu_compiler
from tpu.estimates import FLAGS_VARIABLE
from tpu.own_process import run_apart

pytestmark = pytest.mark.tpu_compile

V5E = TPU_CHIPS["v5e"]
SIZE = 2048


def test_a_simplified_program_has_no_gathers_but_the_same_results():
    """Each product with the vocabulary is between two barriers."""
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib.mlir import ir

    from tpu import program_rewrites

    config = tiny_config(precision="mixed_bfloat16", global_batch_size=4)
    vocab_size = config.model.vocab_size
    hlo = replica_program.lower(config, 2)
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        program_rewrites.convert_for_tpu(module)
        before = str(module)
        program_rewrites.simplify_for_simulation(module, vocab_size)
        module.operation.verify()
        after = str(module)
    assert set(re.findall(r"stablehlo\.(?:gather|scatter)", before)) == {
        "stablehlo.gather",
        "stablehlo.scatter",
    }
    assert not re.search(r"stablehlo\.(gather|scatter)", after)
    # The types of the arguments and results of the main function.
    signature = re.compile(r"func\.func .*@main\(.*\n")
    assert signature.search(before)[0] == signature.search(after)[0]
    lines = after.splitlines()
    products = [
        index
        for index, line in enumerate(lines)
        if "dot_general" in line and f"{vocab_size}x" in line
    ]
    assert products
    for index in products:
        assert "optimization_barrier" in lines[index - 1]
        assert "optimization_barrier" in lines[index + 1]


def simulate():
    """The cost of a product and of a sum, for one v5e.

    libtpu must have the flag when it is loaded, so this runs in a process of
    its own.
    """
    operand = tf.TensorSpec([SIZE, SIZE], tf.bfloat16)
    where = topologies.parse("v5e:2x2")
    devices = tpu_compiler.slice_devices(
        where.libtpu_name(), where.libtpu_options()
    )
    found = []
    for operation in (lambda a, b: tf.matmul(a, b)), (lambda a, b: a + b):
        hlo = tf.function(
            operation, jit_compile=True
        ).experimental_get_compiler_ir(operand, operand)(
            stage="hlo_serialized", platform_name="CPU"
        )
        program = tpu_compiler.compile_program(hlo, devices[:1])
        cost = cycles.program_cost(program.hlo, V5E.hbm_bytes_s / V5E.clock_hz)
        found.append(cost)
    return found


def test_generated_code_is_simulated(tmp_path):
    """A product is limited by the matrix units, a sum by the HBM."""
    flag = tpu_compiler.simulation_flag(str(tmp_path))
    costs = run_apart(simulate, environment={FLAGS_VARIABLE: flag})
    least_s = 2 * SIZE**3 / V5E.peak_flops, 3 * 2 * SIZE**2 / V5E.hbm_bytes_s
    for cost, seconds in zip(costs, least_s, strict=True):
        assert cost.unsimulated_cycles == 0
        assert 1 <= cost.code_cycles / (seconds * V5E.clock_hz) < 1.1, cost
