import dataclasses
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cluster.devices import TPU_CHIPS
from albert_tf.errors import UserError
from albert_tf.records.features import FEATURES
from albert_tf.training import step_cost, train_step
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from tests.helpers import tiny_run
from tpu import (
    compile_check,
    cycles,
    estimates,
    replica_program,
    sweep,
    topologies,
    tpu_compiler,
)
from tpu.config import (
    CompileCheckConfig,
)

ROOT = pathlib.Path(__file__).parents[2]

# --- slices -----------------------------------------------------------------

# As in Google Cloud's tables of accelerator types: chips, devices.
SLICES = {
    "v2-8": ("v2:2x2", 4, 8),
    "v3-32": ("v3:4x4", 16, 32),
    "v3-2048": ("v3:32x32", 1024, 2048),
    "v4-8": ("v4:2x2x1", 4, 4),
    "v4-4096": ("v4:8x16x16", 2048, 2048),
    "v5litepod-1": ("v5e:1x1", 1, 1),
    "v5litepod-8": ("v5e:2x4", 8, 8),
    "v5litepod-256": ("v5e:16x16", 256, 256),
    "v5e:4x8": ("v5e:4x8", 32, 32),
    "v5p-128": ("v5p:4x4x4", 64, 64),
    "v6e-64": ("v6e:8x8", 64, 64),
    # As they may be spelled, too.
    "V5E:4X8": ("v5e:4x8", 32, 32),
    "v5e-4x8": ("v5e:4x8", 32, 32),
    "v5e-32": ("v5e:4x8", 32, 32),
}


@pytest.mark.parametrize("name", SLICES)
def test_slice_names_give_the_number_of_chips(name):
    text, chips, cores = SLICES[name]
    found = topologies.parse(name)
    assert (str(found), found.num_chips, found.num_cores) == (
        text,
        chips,
        cores,
    )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("v9:2x2", "v5e:16x16"),
        ("v5e", "v5e:16x16"),
        ("v4:4x4", "v4:4x4x8"),
        ("v5e:4xfour", "v5e:4x8"),
        ("v5e:0x4", "v5e:4x8"),
        ("v3-9", "v3-8, v3-32"),
        ("v5litepod-3", "v5litepod-4"),
        ("v5e:64x64", "at most 256 chips.*4096"),
        ("v6e:16x32", "at most 256 chips"),
        ("v3:32x64", "at most 1024 chips"),
        ("v5p:16x16x16", "at most 2048 chips"),
        ("v5litepod-512", "v5litepod-256\\.$"),
        ("v2-1024", "v2-512\\.$"),
    ],
)
def test_invalid_slice_names_are_refused(name, remedy):
    """Pods: 256 chips of v2, v5e and v6e, 1,024 of v3."""
    with pytest.raises(UserError, match=remedy):
        topologies.parse(name)


def test_an_all_reduce_sends_each_byte_almost_twice():
    """256 chips at 200 GB/s: 2 * 255/256 * 0.2 GB / 200 GB/s."""
    seconds = topologies.parse("v5e:16x16").all_reduce_seconds(200_000_000)
    assert seconds == pytest.approx(0.001 * 2 * 255 / 256)
    assert topologies.parse("v5e:1x1").all_reduce_seconds(10**9) == 0


# --- cycles -----------------------------------------------------------------

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
  %r = (u64[2]{0}, u32[4,8]{1,0}) rng-bit-generator(%x), algorithm=rng_default
  %sum = (f32[8]{0:T(256)}, bf16[2,3]{1,0}) all-reduce(%x, %x), to_apply=%inside
  %t.2 = (s32[], f32[8]{0}) tuple(%copied, %x)
  %loop = (s32[], f32[8]) while(%t.2), body=%body, condition=%condition, x={}
  ROOT %out = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_a_loop_body_counts_for_each_iteration():
    """From 1 to below 5: 4 times 1000, and 7 outside; not what is fused."""
    cost = cycles.program_cost(HLO)
    assert cost.cycles == 4 * 1000 + 7
    assert cost.uncounted_loops == 0
    stated = HLO.replace(
        "x={}", 'backend_config={"known_trip_count":{"n":"12"}}'
    )
    assert cycles.program_cost(stated).cycles == 12 * 1000 + 7


def test_loops_of_unknown_length_are_reported():
    """The counter starts at what nobody knows."""
    unknown = HLO.replace("tuple(%copied, %x)", "tuple(%x, %x)")
    cost = cycles.program_cost(unknown)
    assert (cost.cycles, cost.uncounted_loops) == (1000 + 7, 1)


def test_bytes_of_operations_without_estimate_are_added_up():
    cost = cycles.program_cost(HLO)
    assert cost.num_collectives == 1
    assert cost.collective_bytes == 8 * 4 + 2 * 3 * 2
    assert cost.random_bytes == 2 * 8 + 4 * 8 * 4


def test_a_program_of_another_compiler_is_refused():
    with pytest.raises(ValueError, match="TPU compiler"):
        cycles.program_cost(HLO.replace("estimated_cycles", "cycles"))


# --- the program ------------------------------------------------------------


def tiny_config(**changes):
    """No files: what reads them is not compiled."""
    return tiny_run.make_config(
        pathlib.Path("records"),
        pathlib.Path("run"),
        **{"dropout_schedule": "0:0.0", **changes},
    )


def make_batch(arguments, vocab_size):
    """Random values of the shapes and kinds that a program wants."""
    random = np.random.default_rng(0)
    return [
        tf.constant(random.integers(0, 2, spec.shape), spec.dtype)
        if number != 0
        else tf.constant(random.integers(5, vocab_size, spec.shape), spec.dtype)
        for number, spec in enumerate(arguments)
    ]


@pytest.mark.slow
def test_the_program_computes_the_trainers_step():
    """On one core: figures and all variables as after the trainer's step."""
    config = tiny_config(num_warmup_steps=0, gradient_accumulation_steps=2)
    state = train_step.make_state(config, Pretraining(config))
    program, (stop, replica_id, *features) = replica_program.make_program(
        state, config, 1
    )
    values = make_batch(features, config.model.vocab_size)
    before = {n: v.numpy() for n, v in state.variables().items()}
    figures = program(
        tf.ones(stop.shape), tf.zeros(replica_id.shape, tf.int32), *values
    )

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        trained = train_step.make_state(config, Pretraining(config))
    replica_step = train_step.make_replica_step(trained, config)
    names = [f.name for f in FEATURES if f.name != "token_boundary"]
    settings = train_step.StepSettings(DropoutRates(0.0, 0.0))
    expected = tf.function(strategy.run)(
        lambda *v: replica_step(
            dict(zip(names, v, strict=True)),
            tf.constant(1.0),
            settings=settings,
        ),
        values,
    )

    assert set(figures) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            figures[name], value, rtol=1e-4, err_msg=name
        )
    for name, variable in trained.variables().items():
        after = state.variables()[name].numpy()
        np.testing.assert_allclose(
            after, variable.numpy(), atol=1e-5, err_msg=name
        )
    assert any(
        np.abs(before[n] - v).max() > 1e-4 for n, v in state.variables().items()
    )


def test_each_core_sums_over_the_complete_slice():
    """The text of the program has a group of all 8 cores."""
    config = tiny_config()
    program, arguments = replica_program.make_program(
        train_step.make_state(config, Pretraining(config)), config, 8
    )
    hlo = program.experimental_get_compiler_ir(*arguments)(
        stage="hlo", platform_name="CPU"
    )
    sums = [line for line in hlo.splitlines() if " all-reduce(" in line]
    # The weight of the batch, each gradient, and the figures.
    assert (
        len(sums)
        == 2
        + len(
            train_step.make_state(config, Pretraining(config)).optimizer.slots
        )
        // 2
    )
    assert all("replica_groups={{0,1,2,3,4,5,6,7}}" in line for line in sums)


def test_an_indivisible_batch_is_refused():
    config = tiny_config(global_batch_size=20)
    with pytest.raises(UserError, match="Nearest: 16, 24") as error:
        estimates.estimate(config, topologies.parse("v5e:2x4"))
    assert "num_replicas" in str(error.value)


# --- the command ------------------------------------------------------------

INSTALLED = all(map(importlib.util.find_spec, tpu_compiler.PACKAGES))


def check_config(**changes):
    config = tiny_config(precision="mixed_bfloat16", global_batch_size=64)
    return CompileCheckConfig(run=config, topology="v5e:2x4", **changes)


@pytest.mark.skipif(INSTALLED, reason="what it is about is installed")
def test_without_the_compiler_the_error_says_what_to_install():
    with pytest.raises(UserError, match=r"libtpu.*tpu-compile"):
        compile_check.main(check_config())


def test_another_version_of_jax_is_refused(monkeypatch):
    """With what the extra pins, which is the version that was tried."""
    versions = dict.fromkeys(tpu_compiler.PACKAGES, "0.11.0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", versions.get)
    with pytest.raises(UserError, match=r"0\.11\.0 and 0\.11\.0.*tpu-compile"):
        tpu_compiler.check_installed()
    pinned = f'"jax[tpu]=={tpu_compiler.JAX_VERSION}"'
    assert pinned in (ROOT / "setup.py").read_text()


def test_topology_is_required():
    config = dataclasses.replace(check_config(), topology="")
    with pytest.raises(UserError, match="--topology is required"):
        compile_check.main(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"output_file": "sweep.png"},
        {"output_file": "sweep.pdf", "sweep": True},
        {"sweep_batch_sizes": ("8", "many")},
        {"sweep_batch_sizes": ("0",)},
    ],
)
def test_invalid_sweeps_are_refused(changes):
    with pytest.raises(UserError, match=r"output_file|sweep_batch_sizes"):
        check_config(**changes)


def test_an_unwritable_picture_is_refused_before_compiling(
    tmp_path, monkeypatch
):
    """Not after an hour of compiling."""
    (tmp_path / "file").touch()
    config = check_config(
        sweep=True, output_file=str(tmp_path / "file" / "sweep.png")
    )
    monkeypatch.setattr(compile_check, "estimate_apart", None)
    with pytest.raises(UserError, match="output_file must be writable"):
        compile_check.main(config)


def test_memory_traffic_names_the_micro_batch_it_is_for():
    """The compiler counts the body of the loop over parts once."""
    found = estimates.Estimate(
        topology="v5e:2x4",
        num_chips=8,
        num_cores=8,
        chip_memory_bytes=2**34,
        batch_size=16,
        gradient_accumulation_steps=32,
        max_seq_length=512,
        precision="mixed_bfloat16",
        remat=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        quick=True,
        model_flops=10**12,
        versions={},
        peak_bytes=2**31,
        argument_bytes=2**30,
        temporary_bytes=2**30,
        code_bytes=2**20,
        flops=1.1e12,
        accessed_bytes=50e9,
        random_bytes=0,
        all_reduce_bytes=10**6,
        num_all_reduces=1,
        uncounted_loops=0,
        all_reduce_s=0.001,
        compile_s=1.0,
        compile_cpu_s=1.0,
    )
    said = compile_check.describe(found)
    assert "50 GB, for one of 32 micro-batches and the update" in said
    whole = dataclasses.replace(found, gradient_accumulation_steps=1)
    assert "50 GB\n" in compile_check.describe(whole)


def test_a_sweep_combines_all_settings():
    where = topologies.parse("v5e:2x4")
    config = tiny_config(gradient_accumulation_steps=2)
    found = [
        (
            variant.data.global_batch_size,
            variant.distribution.remat,
            variant.training.dropout_phases(),
        )
        for variant in sweep.variants(config, where, (3, 5))
    ]
    # Examples times 2 parts times 8 cores; 0.1 is the paper's dropout.
    assert set(found) == {
        (batch, remat, ((0, rate),))
        for batch in (48, 80)
        for remat in (False, True)
        for rate in (0.0, 0.1)
    }
    assert len(found) == 8


# --- the compiler -----------------------------------------------------------


def small_config(**changes):
    """Large enough for the compiler to care: 4 layers of 128."""
    config = tiny_config(precision="mixed_bfloat16", **changes)
    model = dataclasses.replace(
        config.model,
        hidden_size=128,
        num_hidden_layers=4,
        intermediate_size=512,
        embedding_size=128,
        max_position_embeddings=128,
    )
    data = dataclasses.replace(
        config.data, max_seq_length=128, max_predictions_per_seq=20
    )
    return dataclasses.replace(config, model=model, data=data)


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
    ("slice_name", "parts"), [("v3:2x2", 1), ("v4:2x2x1", 4), ("v6e:16x16", 1)]
)
def test_the_step_compiles_for_a_slice(slice_name, parts):
    where = topologies.parse(slice_name)
    config = small_config(
        global_batch_size=2 * parts * where.num_cores,
        gradient_accumulation_steps=parts,
    )
    found = estimates.estimate(config, where, quick=True)
    assert not found.error
    assert found.uncounted_loops == 0
    # What the compiler counts holds what arithmetic counts.
    assert 1 <= found.flops / found.model_flops < 1.6
    weights = 4 * step_cost.num_parameters(config.model, "sop")
    # Weights and two moments, padded to whole tiles; float32 gradients.
    assert 1 <= found.argument_bytes / (3 * weights) < 1.3
    assert 1 <= found.all_reduce_bytes / weights < 1.001
    assert found.argument_bytes < found.peak_bytes < found.chip_memory_bytes
    assert found.step_s is None


@pytest.mark.tpu_compile
def test_a_large_product_runs_at_the_peak():
    """By the compiler's cycles at our clocks: nothing else fills the units."""
    size = 4096

    @tf.function(jit_compile=True)
    def product(a, b):
        return tf.matmul(a, b)

    operands = [tf.TensorSpec([size, size], tf.bfloat16)] * 2
    hlo = product.experimental_get_compiler_ir(*operands)(
        stage="hlo_serialized", platform_name="CPU"
    )
    shares = {}
    for version, chip in TPU_CHIPS.items():
        shape = (2, 2, 1)[: chip.dimensions]
        where = topologies.Slice(version, shape)
        devices = tpu_compiler.slice_devices(
            where.libtpu_name(), where.libtpu_options()
        )
        program = tpu_compiler.compile_program(hlo, devices[:1])
        seconds = cycles.program_cost(program.hlo).cycles / chip.clock_hz
        shares[version] = 2 * size**3 / seconds / chip.peak_flops
    # Clocks are rounded: 0.7 GHz of v2 give 2 % more than its peak.
    assert all(0.75 < share < 1.02 for share in shares.values()), shares


@pytest.mark.tpu_compile
def test_a_full_compile_estimates_times():
    where = topologies.parse("v5e:2x4")
    config = small_config(global_batch_size=64, dropout_schedule="0:0.1")
    found = estimates.estimate(config, where)
    assert found.cycles > 10_000
    assert found.step_s > found.cycles / 1.5e9
    assert 0 < found.mfu < 1
    assert found.tokens_per_s == pytest.approx(64 * 128 / found.step_s)
    assert found.tokens_per_s_chip == pytest.approx(found.tokens_per_s / 8)
    assert found.chip_hours == pytest.approx(found.days * 24 * 8)
    # Of seeds alone, by the chip's own generator: masks are computed.
    assert 0 < found.random_bytes < 1000
    assert "8 chips" in compile_check.describe(found)


@pytest.mark.tpu_compile
def test_the_compiler_keeps_recomputation():
    """The compiler might find the two computations equal, and merge them."""
    where = topologies.parse("v5e:1x1")
    kept, computed_again = (
        estimates.estimate(
            small_config(global_batch_size=32, remat=remat), where, quick=True
        )
        for remat in (False, True)
    )
    assert computed_again.flops > 1.1 * kept.flops
    assert computed_again.peak_bytes < 0.8 * kept.peak_bytes


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
def test_the_command_prints_json(tmp_path):
    flags = tiny_run.as_flags(tiny_config(), tmp_path / "model.json")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tpu.compile_check", *flags),
            *("--topology=v5e:2x4", "--quick", "--json"),
        ],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["topology"], found["num_cores"]) == ("v5e:2x4", 8)
    assert found["peak_bytes"] > 0
    assert "libtpu" in found["versions"]


@pytest.mark.tpu_compile
def test_a_sweep_prints_a_table_and_draws_a_picture(tmp_path, capsys):
    config = dataclasses.replace(
        check_config(quick=True, sweep=True),
        sweep_batch_sizes=("2",),
        output_file=str(tmp_path / "sweep.png"),
    )
    assert compile_check.main(config) == 0
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    table = capsys.readouterr().out.splitlines()
    assert len([line for line in table if line.startswith("      2 ")]) == 4
