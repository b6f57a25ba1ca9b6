"""Estimates of training steps: from made-up programs, and by the compiler."""

import dataclasses
import math
import re

import pytest
import tensorflow as tf

from albert_tf.cluster.devices import TPU_CHIPS
from albert_tf.errors import UserError
from albert_tf.modeling.dropout import Masks
from albert_tf.modeling.kernels import attend
from albert_tf.modeling.target import ProgramTarget
from albert_tf.training import cost
from tests.helpers.compiled_runs import small_config, tiny_config
from tpu import estimates, topologies, tpu_compiler

HLO = """\
HloModule jit_step, is_scheduled=true

%inside (p.1: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  ROOT %a.1 = f32[8]{0} add(%p.1, %p.1), backend_config={"estimated_cycles":"9"}
}

%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {
  %b = (s32[], f32[8]{0}) parameter(0)
  %f.1 = f32[8] fusion(%b), calls=%inside, x={"estimated_cycles":"1000"}
  ROOT %t.1 = (s32[], f32[8]{0}) tuple(%b, %f.1)
}

%condition (c: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  %c = (s32[], f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%c), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %one = s32[]{:T(128)} constant(1)
  %copied = s32[]{:T(128)} copy(%one), backend_config={"estimated_cycles":"7"}
  %sum = (f32[8]{0:T(256)}, bf16[2,3]{1,0}) all-reduce(%x, %x), to_apply=%inside
  %t.2 = (s32[], f32[8]{0}) tuple(%copied, %x)
  %loop = (s32[], f32[8]) while(%t.2), body=%body, condition=%condition, x={}
  ROOT %out = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


@pytest.mark.parametrize(
    ("old", "new", "cycles", "uncounted_loops"),
    [
        # The counter is 1 to 4. The fusion has the cycles, not its operations.
        ("", "", 4 * 1000 + 7, 0),
        ("x={}", 'x={"known_trip_count":{"n":"12"}}', 12 * 1000 + 7, 0),
        # The first value of the counter is not a constant.
        ("tuple(%copied, %x)", "tuple(%x, %x)", 1000 + 7, 1),
    ],
)
def test_a_loop_body_counts_for_each_iteration(
    old, new, cycles, uncounted_loops
):
    found = estimates.program_cost(HLO.replace(old, new))
    assert found == estimates.Cost(
        cycles=cycles,
        collective_bytes=8 * 4 + 2 * 3 * 2,
        num_collectives=1,
        uncounted_loops=uncounted_loops,
    )


def test_an_indivisible_batch_is_refused():
    config = tiny_config(global_batch_size=20)
    with pytest.raises(UserError, match="Nearest: 16 and 24") as error:
        estimates.estimate(config, topologies.parse("v5e:2x4"))
    assert "number of replicas (8)" in str(error.value)


@pytest.mark.tpu_compile
def test_the_step_compiles_for_slices_and_keeps_recomputation():
    """Otherwise, the compiler would merge the two computations of --remat.

    The first slice has two cores per chip.
    """
    found = []
    for name, parts, remat in ("v3:2x2", 4, False), ("v6e:16x16", 1, True):
        where = topologies.parse(name)
        config = small_config(
            global_batch_size=32 * parts * where.num_cores,
            gradient_accumulation_steps=parts,
            remat=remat,
        )
        one = estimates.estimate(config, where, quick=True)
        assert not one.error
        assert one.uncounted_loops == 0
        weights = 4 * cost.num_parameters(config.model, "sop")
        # Weights and two moments, padded to whole tiles; float32 gradients.
        assert 1 <= one.argument_bytes / (3 * weights) < 1.3
        assert 1 <= one.all_reduce_bytes / weights < 1.001
        assert one.argument_bytes < one.peak_bytes < one.chip_memory_bytes
        assert one.step_s is None
        found.append(one)
    # The compiler counts the operations of the formula, and others.
    kept, computed_again = (one.flops / one.model_flops for one in found)
    assert 1 <= kept < 1.1 and 1.3 < computed_again < 1.5
    assert found[1].peak_bytes < 0.8 * found[0].peak_bytes


def compile_for(version, function, *operands):
    """The program of a compiled function, for one chip of a version."""
    hlo = function.experimental_get_compiler_ir(*operands)(
        stage="hlo_serialized", platform_name="CPU"
    )
    shape = (2, 2, 1)[: TPU_CHIPS[version].dimensions]
    where = topologies.Slice(version, shape)
    devices = tpu_compiler.slice_devices(
        where.libtpu_name(), where.libtpu_options()
    )
    return tpu_compiler.compile_program(hlo, devices[:1])


@pytest.mark.tpu_compile
def test_a_large_product_runs_at_the_peak():
    """Checks our clock rates: a large product should fill the matrix units."""
    size = 4096

    @tf.function(jit_compile=True)
    def product(a, b):
        return tf.matmul(a, b)

    operands = [tf.TensorSpec([size, size], tf.bfloat16)] * 2
    shares = {}
    for version, chip in TPU_CHIPS.items():
        program = compile_for(version, product, *operands)
        seconds = estimates.program_cost(program.hlo).cycles / chip.clock_hz
        shares[version] = 2 * size**3 / seconds / chip.peak_flops
    # Clocks are rounded: 0.7 GHz of v2 give 2 % more than its peak.
    assert all(0.75 < share < 1.02 for share in shares.values()), shares


# Rows per core, heads, and tokens of a row, of the step below. As for the
# recipes, the on-chip memory could hold an attention bias of packed rows, but
# not the exponentials that all layers keep for the backward pass.
ROWS, HEADS, TOKENS = 256, 2, 256


@pytest.mark.tpu_compile
def test_a_full_compile_estimates_times_and_is_as_good_as_before(monkeypatch):
    """A step on packed rows with dropout. No number may change by more than
    3 %, unless the change is an improvement, or worth its cost.

    No memory holds an attention bias of packed rows: an array with a number for
    each pair of positions of each row, but not for each head.
    """
    config = small_config(
        global_batch_size=8 * ROWS, dropout_schedule="0:0.1", packing="best_fit"
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
    programs, compile_program = [], tpu_compiler.compile_program

    def compile_and_keep(*args, **options):
        programs.append(compile_program(*args, **options))
        return programs[-1]

    monkeypatch.setattr(tpu_compiler, "compile_program", compile_and_keep)
    found = estimates.estimate(config, topologies.parse("v5e:2x4"))
    num_tokens = 8 * ROWS * TOKENS
    assert 0 < found.mfu < 1
    assert found.step_s == pytest.approx(
        found.cycles / 1.5e9 + found.all_reduce_s
    )
    assert found.tokens_per_s == pytest.approx(num_tokens / found.step_s)
    assert found.tokens_per_s_chip == pytest.approx(found.tokens_per_s / 8)
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
    shapes = {shape for _, shape in arrays_in_memory(programs[0].hlo)}
    sizes = {math.prod(s) for s in shapes if s[-2:] == (TOKENS, TOKENS)}
    assert ROWS * HEADS * TOKENS**2 in sizes  # the exponentials
    assert ROWS * TOKENS**2 not in sizes


def arrays_in_memory(hlo):
    """Dtypes and shapes of the arrays in HBM or on-chip memory."""
    found, in_fusion = set(), False
    for line in hlo.splitlines():
        if line.endswith("{"):
            # Values inside a fusion are in no memory.
            in_fusion = line.startswith("%fused_computation")
        for dtype, shape in re.findall(r"(\w+)\[([\d,]+)\]", line):
            if not in_fusion:
                found.add((dtype, tuple(map(int, shape.split(",")))))
    return found


@pytest.mark.tpu_compile
def test_score_gradients_stay_in_float32_and_have_a_lower_estimate():
    """One layer of attention, of base with a micro-batch of 4 rows, on v5e."""
    batch, heads, size, length = 4, 12, 64, 512
    operand = tf.TensorSpec([batch, heads, size, length], tf.bfloat16)
    bias = tf.TensorSpec([batch, 1, 1, length], tf.float32)

    def gradients_for(target):
        @tf.function(jit_compile=True)
        def gradients(query, key, value, upstream, bias):
            operands = [query, key, value]
            with tf.GradientTape() as tape:
                tape.watch(operands)
                context = attend(*operands, bias, Masks(), target)
            return tape.gradient(context, operands, upstream)

        return gradients

    found = {}
    for in_float32 in False, True:
        target = ProgramTarget("TPU", float32_score_gradients=in_float32)
        gradients = gradients_for(target)
        program = compile_for("v5e", gradients, *[operand] * 4, bias)
        scores = batch, heads, length, length
        arrays = arrays_in_memory(program.hlo)
        dtypes = {dtype for dtype, shape in arrays if shape == scores}
        found[in_float32] = dtypes, estimates.program_cost(program.hlo).cycles
    assert found[False][0] == {"bf16"}  # exponentials and gradients
    assert found[True][0] == {"bf16", "u32"}
    assert found[True][1] < 0.85 * found[False][1]
