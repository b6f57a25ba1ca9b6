"""What compiled steps need: from made-up programs, and by the compilers."""

import collections
import dataclasses
import importlib.metadata
import json
import math

import pytest
from google.protobuf import text_format
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from albert_tf.errors import UserError
from albert_tf.interop.weight_names import list_weights
from tests.helpers.compiled_runs import small_config, tiny_config
from tpu import compile_check, compiler, topologies
from tpu.compile_check import CompileCheckConfig, Estimate

# --- without a compiler -------------------------------------------------------

# A loop whose body multiplies (3, 2, 4) and (3, 4, 5) in a fusion; a product
# of a library; a sum over devices, after it an asynchronous one.
PROGRAM = """
entry_computation_id: 4
computations { id: 1
  instructions { id: 10 opcode: "parameter"
    shape { element_type: BF16 dimensions: [3, 2, 4] } }
  instructions { id: 11 opcode: "parameter"
    shape { element_type: BF16 dimensions: [3, 4, 5] } }
  instructions { id: 12 opcode: "dot" operand_ids: [10, 11]
    dot_dimension_numbers { lhs_batch_dimensions: 0 rhs_batch_dimensions: 0 }
    shape { element_type: F32 dimensions: [3, 2, 5] } }
}
computations { id: 2
  instructions { id: 20 opcode: "fusion" called_computation_ids: 1
    operand_ids: [21] shape { element_type: F32 dimensions: [3, 2, 5] } }
  instructions { id: 21 opcode: "get-tuple-element"
    shape { element_type: BF16 dimensions: [3, 2, 4] } }
}
computations { id: 3 }
computations { id: 4
  instructions { id: 40 opcode: "parameter"
    shape { element_type: F32 dimensions: [6, 2] } }
  instructions { id: 41 opcode: "parameter"
    shape { element_type: F32 dimensions: [2, 7] } }
  instructions { id: 42 opcode: "custom-call" operand_ids: [40, 41]
    custom_call_target: "__cublas$lt$matmul"
    shape { element_type: TUPLE
      tuple_shapes { element_type: F32 dimensions: [6, 7] }
      tuple_shapes { element_type: S8 dimensions: 64 layout {
        memory_space: 1 } } } }
  instructions { id: 43 opcode: "all-reduce-start" operand_ids: 40
    shape { element_type: F32 dimensions: [6, 2] } }
  instructions { id: 44 opcode: "all-reduce-done" operand_ids: 43
    shape { element_type: F32 dimensions: [6, 2] } }
  instructions { id: 45 opcode: "while" called_computation_ids: [2, 3]
    backend_config: '{}' }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "trips"),
    [("{}", '{"known_trip_count":{"n":"12"}}', 12), ("", "", 9)],
)
def test_products_and_bytes_count_as_often_as_they_run(old, new, trips):
    """A loop of unknown length is that over nine micro-batches."""
    text = PROGRAM.replace("'{}'", f"'{new}'") if old else PROGRAM
    module = text_format.Parse(text, hlo_pb2.HloModuleProto())
    found = list(compiler.operations(module, 9))
    assert compiler.count_flops(found) == {
        "bfloat16": trips * 2 * 3 * 2 * 4 * 5,
        "float32": 2 * 6 * 2 * 7,
    }
    # The fusion, the product of the library, the end of the sum. What is on
    # the chip counts nothing.
    in_loop = 4 * 3 * 2 * 5 + 2 * 3 * 2 * 4
    outside = 4 * (6 * 7 + 6 * 2 + 2 * 7) + 2 * 4 * 6 * 2
    assert compiler.count_bytes(found) == trips * in_loop + outside
    assert compiler.all_reduces(found) == [4 * 6 * 2]


def test_a_product_as_a_convolution_has_the_same_operations():
    """As compilers for TPUs write it: the 3 products are a spatial axis."""
    text = PROGRAM.replace('"dot"', '"convolution"').replace(
        "dot_dimension_numbers { lhs_batch_dimensions: 0 "
        "rhs_batch_dimensions: 0 }",
        "convolution_dimension_numbers { input_spatial_dimensions: 0 "
        "kernel_spatial_dimensions: 0 output_spatial_dimensions: 0 }",
    )
    module = text_format.Parse(text, hlo_pb2.HloModuleProto())
    found = list(compiler.operations(module))
    assert compiler.count_flops(found)["bfloat16"] == 2 * 3 * 2 * 4 * 5


@pytest.fixture
def packages(monkeypatch):
    """The versions of installed packages, which a test may change."""
    found = collections.defaultdict(lambda: "0.10.2")

    def version(name):
        if found[name] == "none":
            raise importlib.metadata.PackageNotFoundError
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(compiler.jax_private, "check_installed", lambda: None)
    return found


@pytest.mark.parametrize(
    ("platform", "changes", "said"),
    [
        ("tpu", {"libtpu": "none"}, r"libtpu none.*tpu-compile"),
        ("cuda", {"jax-cuda13-pjrt": "none"}, r"pjrt none.*gpu-compile"),
        ("cuda", {"jax-cuda13-plugin": "0.11.0"}, r"plugin 0.11.0.*gpu-compi"),
        ("cuda", {"nvidia-cuda-nvcc": "none"}, r"nvcc none.*gpu-compile"),
    ],
)
def test_a_missing_or_another_compiler_is_refused(
    packages, platform, changes, said
):
    packages.update(changes)
    with pytest.raises(UserError, match=said):
        compiler.check_installed(platform)


def test_the_batch_must_fit_the_slice():
    config = CompileCheckConfig(
        run=tiny_config(global_batch_size=20), accelerator_type="v5litepod-8"
    )
    with pytest.raises(UserError, match=r"replicas \(8\).*Nearest: 16 and 24"):
        compile_check.main(config)


def test_a_card_without_bfloat16_is_refused():
    config = CompileCheckConfig(
        run=tiny_config(precision="mixed_bfloat16"), accelerator_type="t4"
    )
    with pytest.raises(UserError, match=r"1xt4 has no .*--precision=float32"):
        compile_check.main(config)


# 100 bytes for a row and 300 for weights, whose gradients are in addition.
PLANNED = Estimate(
    devices="8xh100",
    num_devices=8,
    num_chips=8,
    memory_bytes=3500,
    batch_size=16,
    gradient_accumulation_steps=4,
    precision="mixed_bfloat16",
    packing="none",
    num_train_steps=36_000,
    model_flops=10**15,
    peak_flops=1e15,
    versions={},
    peak_bytes=300 + 100 + 100 * 16,
    argument_bytes=300,
    flops={"bfloat16": 99 * 10**13, "float32": 10**13},
    bytes_moved=3 * 10**12,
    products_s=1.02,
    memory_s=0.9,
)


def test_a_bound_is_no_faster_than_products_and_memory():
    """Ten hours of 1.02 s a step, and 2.5 s at 40 % of the peak."""
    said = compile_check.describe(PLANNED, price_per_device_hour=2.5)
    for line in (
        "fits",
        "rows per device   4 x 16",
        "990,000 in bfloat16, 10,000 in float32",
        "bytes moved, GB   3,000.0",
        "not faster than 1,020.0, by its products; that is 98% of the peak",
        "hours    not less than 10.2; 25.0 at 40% of the peak",
        "dollars  not less than 204.0; 500.0 at 40% of the peak",
    ):
        assert line in said
    slow = dataclasses.replace(PLANNED, memory_s=3.0)
    said = compile_check.describe(slow)
    assert "by its memory; that is 33% of the peak" in said
    assert "not less than 30.0; 40% of the peak cannot be reached" in said


def test_a_step_that_does_not_fit_names_numbers_that_should():
    """31 rows have 3,500 bytes; a batch of 64 can be divided into 4 x 16."""
    large = dataclasses.replace(
        PLANNED, batch_size=64, gradient_accumulation_steps=1, peak_bytes=6800
    )
    said = compile_check.describe(large)
    assert "DOES NOT FIT. About 31 rows" in said
    assert "--gradient_accumulation_steps=4, or --fit" in said
    assert "--remat" in said
    # A fifth of the products is computed twice to save memory.
    again = dataclasses.replace(large, flops={"bfloat16": 12 * 10**14})
    assert "About 25 rows" in compile_check.describe(again)
    small = dataclasses.replace(large, memory_bytes=450)
    assert (
        "Not even one row should fit: use --remat, a dev"
        in compile_check.describe(small)
    )


@pytest.mark.parametrize(
    ("memory", "rows", "error", "largest", "tried"),
    [
        # 5 rows need more than the estimate says, so that 32 do not fit.
        (3500, 1, "", 16, [1, 16, 32]),
        (3500, 64, "", 16, [64, 16, 32]),
        (3500, 64, "too large", 16, [64, 8, 16, 32]),
        (10**6, 8, "", 64, [8, 64]),
        (450, 64, "", 1, [64, 1]),
    ],
)
def test_the_largest_micro_batch_that_fits_is_found(
    memory, rows, error, largest, tried, monkeypatch
):
    """By few compilations. If none fits, it says so for the smallest one."""
    asked = []

    def estimate(config, where, quick):
        number = 64 // config.data.gradient_accumulation_steps
        asked.append(number)
        found = dataclasses.replace(
            PLANNED,
            memory_bytes=memory,
            batch_size=number,
            peak_bytes=300 + 100 + 100 * number,
        )
        return found if found.fits else dataclasses.replace(found, error=error)

    monkeypatch.setattr(compile_check, "estimate", estimate)
    config = tiny_config(
        global_batch_size=64, gradient_accumulation_steps=64 // rows
    )
    found = compile_check.fit(config, topologies.parse("h100"))
    assert asked == tried
    assert len(tried) <= compile_check.MOST_COMPILATIONS
    assert found.batch_size == largest
    assert found.fits == (memory != 450)


# --- by the compiler ----------------------------------------------------------


def compiled(capsys, run, **settings):
    """The estimate that the command prints as JSON."""
    config = CompileCheckConfig(run=run, json=True, **settings)
    compile_check.main(config)
    return Estimate(**json.loads(capsys.readouterr().out))


def bytes_of_weights(config):
    listed = list_weights(config.model, "sop")
    return 4 * sum(math.prod(weight.shape) for weight in listed)


@pytest.mark.tpu_compile
def test_the_compilers_error_is_printed(capsys):
    run = tiny_config(global_batch_size=2**22)
    config = CompileCheckConfig(
        run=run, accelerator_type="v5litepod-1", quick=True
    )
    assert compile_check.main(config) == compile_check.EXIT_DOES_NOT_FIT
    said = capsys.readouterr().out
    assert "DOES NOT COMPILE" in said
    assert "RESOURCE_EXHAUSTED" in said
    assert "15.75G" in said


@pytest.mark.tpu_compile
@pytest.mark.long
def test_the_step_compiles_for_a_slice_and_keeps_recomputation(capsys):
    """Otherwise, the compiler would merge the two computations of --remat.

    The slice has two cores per chip.
    """
    config = small_config(
        global_batch_size=32 * 4 * 8, gradient_accumulation_steps=4, remat=True
    )
    found = compiled(capsys, config, accelerator_type="v3-8", quick=True)
    assert found.num_devices == 8 and "libtpu" in found.versions
    assert found.fits
    weights = bytes_of_weights(config)
    # Weights and two moments, padded to whole tiles; float32 gradients.
    assert 1 <= found.argument_bytes / (3 * weights) < 1.3
    assert 1 <= found.all_reduce_bytes / weights < 1.001
    assert found.argument_bytes < found.peak_bytes
    # The second computation of the blocks. Without --remat, the compiled
    # products are those of the formula, and the peak is 55 MB.
    assert 1.25 < sum(found.flops.values()) / found.model_flops < 1.4
    assert found.peak_bytes < 45e6


# Rows per core, heads, and tokens of a row, of the step below.
ROWS, HEADS, TOKENS = 256, 2, 256


@pytest.mark.tpu_compile
@pytest.mark.by_hand
def test_a_full_compile_is_as_good_as_before():
    """A step on packed rows with dropout. No number may change by more than
    3 %, unless the change is an improvement, or worth its cost.
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
    found = compile_check.estimate(config, topologies.parse("v5litepod-8"))
    numbers = {
        "all_reduce_bytes": 1266792,
        "bytes_moved": 4794878678,
        "num_all_reduces": 2,
        "peak_bytes": 372153344,
    }
    got = {name: getattr(found, name) for name in numbers}
    assert got == pytest.approx(numbers, rel=0.03)
    assert sum(found.flops.values()) == pytest.approx(
        found.model_flops, rel=0.03
    )


@pytest.mark.gpu_compile
def test_the_compiler_knows_each_card():
    """By compute capability and number of multiprocessors."""
    cards = {
        "t4": ("7.5", 40),
        "a100-40g": ("8.0", 108),
        "a100-80g": ("8.0", 108),
        "l4": ("8.9", 58),
        "rtx4090": ("8.9", 128),
        "h100": ("9.0", 132),
        "h200": ("9.0", 132),
        "b200": ("10.0", 148),
        "rtx6000pro": ("12.0", 188),
    }
    for name, facts in cards.items():
        devices = compiler.find_devices(topologies.parse(f"8x{name}"))
        assert len(devices) == 8
        card = devices[0]
        assert (card.compute_capability, card.core_count) == facts


@pytest.mark.gpu_compile
def test_memory_of_gpus_grows_with_the_rows_and_the_state_is_donated(capsys):
    """On two cards."""
    weights = bytes_of_weights(small_config())
    for card in ("a100-40g", "rtx4090"):
        small, large = (
            compiled(
                capsys,
                small_config(global_batch_size=rows),
                accelerator_type=card,
            )
            for rows in (32, 128)
        )
        assert small.fits and small.peak_bytes < large.peak_bytes
        growth = (large.peak_bytes - small.peak_bytes) / small.peak_bytes
        assert 1.5 < growth < 3.5
        for found in (small, large):
            # Weights and two moments, and the number of the step.
            assert 1 <= found.alias_bytes / (3 * weights) < 1.01
            assert sum(found.flops.values()) == pytest.approx(
                found.model_flops, rel=0.01
            )


@pytest.mark.gpu_compile
def test_the_program_of_gpus_has_what_was_asked_for():
    """Eight GPUs, bfloat16, no dropout, two micro-batches."""
    config = small_config(
        global_batch_size=8 * 2 * 16, gradient_accumulation_steps=2
    )
    # No other array ends with two sizes of 96.
    data = dataclasses.replace(config.data, max_seq_length=96)
    config = dataclasses.replace(config, data=data)
    where = topologies.parse("8xh100")
    compiler.check_installed("cuda")
    program = compiler.compile_step(config, compiler.find_devices(where))
    found = list(compiler.operations(program.module, 2))
    # The logits and the sentence head are float32.
    flops = compiler.count_flops(found)
    assert {*flops} == {"bfloat16", "float32"}
    assert flops["bfloat16"] > 10 * flops["float32"]
    # All gradients together, after the micro-batches, and the weights of the
    # losses before them.
    gradients, *others = sorted(compiler.all_reduces(found), reverse=True)
    assert 1 <= gradients / bytes_of_weights(config) < 1.01
    assert sum(others) < 100
    # The step, a scalar, is an int64.
    dtypes = {
        compiler.dtype_of(one.proto)
        for one in found
        if one.proto.shape.dimensions
    }
    assert not dtypes & {"float64", "U64", "S64", "C64"}
    arrays = arrays_in_memory(program.module)
    scores = {dtype for dtype, shape in arrays if shape[-2:] == (96, 96)}
    assert scores == {"BF16"}
    # Random bits would be numbers without a sign.
    assert not any(
        one.proto.shape.dimensions and compiler.dtype_of(one.proto) == "U32"
        for one in found
    )


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
