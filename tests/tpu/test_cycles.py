"""Cycles and bytes from the text of a compiled program."""

import pytest

from tpu import (
    cycles,
)

HLO = """\
HloModule jit_step, is_scheduled=true

%inside (p.1: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  ROOT %a.1 = f32[8]{0} add(%p.1, %p.1), backend_config={"estimated_cycles":"9"}
}

%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {
  %b = (s32[], f32[8]{0}) parameter(0)
  %f.1 = f32[8] fusion(%b), calls=%inside, x={"estimated_cycles":"1000"}
  %c.1 = (f32[8]{0:S(1)}, f32[8]{0}, u32[]{:S(2)}) copy-start(%f.1)
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
  %r = (u64[2]{0}, u32[4,8]{1,0}) rng-bit-generator(%x), algorithm=rng_default
  %sum = (f32[8]{0:T(256)}, bf16[2,3]{1,0}) all-reduce(%x, %x), to_apply=%inside
  %s = ((bf16[4,8]{1,0}), bf16[2,8]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%r)
  %h = (f32[9]{0}, f32[9]{0}, u32[]{:S(2)}) copy-start(%x)
  %t.2 = (s32[], f32[8]{0}) tuple(%copied, %x)
  %loop = (s32[], f32[8]) while(%t.2), body=%body, condition=%condition, x={}
  ROOT %out = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_a_loop_body_counts_for_each_iteration():
    """The counter is 1 to 4: 4 times 1000, and 7 outside the loop.

    The fusion has the cycles, not the operations inside it.
    """
    cost = cycles.program_cost(HLO)
    assert cost.cycles == 4 * 1000 + 7
    assert cost.uncounted_loops == 0
    stated = HLO.replace(
        "x={}", 'backend_config={"known_trip_count":{"n":"12"}}'
    )
    assert cycles.program_cost(stated).cycles == 12 * 1000 + 7


def test_loops_of_unknown_length_are_reported():
    """The first value of the counter is not a constant."""
    unknown = HLO.replace("tuple(%copied, %x)", "tuple(%x, %x)")
    cost = cycles.program_cost(unknown)
    assert (cost.cycles, cost.uncounted_loops) == (1000 + 7, 1)


def test_bytes_of_operations_without_estimate_are_added_up():
    cost = cycles.program_cost(HLO)
    assert cost.num_collectives == 1
    assert cost.collective_bytes == 8 * 4 + 2 * 3 * 2
    assert cost.random_bytes == 2 * 8 + 4 * 8 * 4
    # Four times in the loop, and half of an array outside. The third copy is
    # not to or from on-chip memory.
    assert cost.copied_bytes == 4 * 8 * 4 + 2 * 8 * 2


def test_bytes_that_operations_read_and_write_in_hbm_are_added_up():
    """Neither arrays in on-chip memory nor operations without an estimate."""
    text = HLO.replace("x={}", "").replace(
        "%f.1 = f32[8] fusion(%b)",
        "%w = bf16[2,3]{1,0:T(8,128)} get-tuple-element(%b), index=1\n"
        "  %v = f32[5]{0:T(256)S(1)} copy(%b)\n"
        "  %f.1 = (f32[8]{0}, f32[9]{0:S(1)}) fusion(%w, %v, %w)",
    )
    read, written = 2 * 3 * 2, 8 * 4
    # The scalar outside the loop is copied from HBM to HBM.
    outside = 4 + 4
    cost = cycles.program_cost(text)
    assert cost.direct_bytes == 4 * (2 * read + written) + outside


def test_a_program_of_another_compiler_is_refused():
    with pytest.raises(ValueError, match="TPU compiler"):
        cycles.program_cost(HLO.replace("estimated_cycles", "cycles"))
