r"""Train ALBERT on a machine with JAX and without TensorFlow, e.g. a lent GPU.

    python -m benchmarks.lowered_steps lower DIRECTORY   # here, with TensorFlow
    python -m benchmarks.lowered_steps run DIRECTORY     # there, with JAX only

`lower` writes the steps of --runtime=pjrt, and the weights, the batch and the
results of three steps of small models by TensorFlow. `run` compares these
first. Then it prints the speed of each step on the first device, its share of
the peak, the ten most expensive operations of the last one and, where PyTorch
and transformers are installed, the speed of AlbertForPreTraining with
torch.compile. A dry run on a CPU:

    python -m benchmarks.lowered_steps lower /tmp/steps --device_type=CPU \
        --cases small "small, packed"
    python -m benchmarks.lowered_steps run /tmp/steps --peak_tflops=0.1
"""

import argparse
import collections
import dataclasses
import json
import lzma
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from albert_tf.cluster import jax_private

SMALL = "small"
TOLERANCE = 1e-4
NUM_STEPS = 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A step of ALBERT-base, or of a small model."""

    name: str
    rows: int
    length: int
    precision: str = "mixed_bfloat16"
    dropout: float = 0.0
    packing: str = "none"
    micro_batches: int = 1
    optimizer: str = "lamb"
    remat: bool = False

    @property
    def is_small(self) -> bool:
        """Whether it is of a small model, with results of TensorFlow."""
        return self.name.startswith(SMALL)

    @property
    def num_predictions(self) -> int:
        """Masked positions of a row."""
        return round(0.15 * self.length + 0.5)


CASES = (
    Case(SMALL, 8, 32, "float32", 0.1),
    Case("small, packed", 8, 32, "float32", 0.1, "best_fit"),
    Case(
        "small, AdamW, remat", 8, 32, "float32", 0.1, "none", 2, "adamw", True
    ),
    Case("128 tokens", 256, 128),
    Case("128 tokens, dropout", 256, 128, dropout=0.1),
    Case("512 tokens", 64, 512),
    Case("512 tokens, 128 rows", 128, 512),
    Case("512 tokens, dropout", 64, 512, dropout=0.1),
    Case("512 tokens, packed", 64, 512, packing="best_fit"),
    Case("512 tokens, float32", 32, 512, "float32"),
)


def lower(case: Case, directory: pathlib.Path, device_type: str) -> None:
    """Writes the step of a case, and what `run` needs of it."""
    import tensorflow as tf

    from albert_tf import config as settings
    from albert_tf.cluster import pjrt
    from albert_tf.input.batch_stream import BatchStream
    from albert_tf.training import pjrt_steps, schedules, train_step
    from albert_tf.training.pretraining import Pretraining

    model = settings.ModelConfig()
    if case.is_small:
        model = settings.ModelConfig(
            hidden_size=32,
            num_attention_heads=2,
            vocab_size=400,
            intermediate_size=64,
            num_hidden_layers=2,
        )
    config = settings.PretrainingConfig(
        model=model,
        data=settings.DataConfig(
            synthetic_input=True,
            global_batch_size=case.rows,
            max_seq_length=case.length,
            max_predictions_per_seq=case.num_predictions,
            gradient_accumulation_steps=case.micro_batches,
            packing=case.packing,
        ),
        distribution=settings.DistributionConfig(
            precision=case.precision, remat=case.remat
        ),
        optimizer=settings.OptimizerConfig(
            optimizer=case.optimizer, num_warmup_steps=0
        ),
        training=settings.TrainingConfig(num_train_steps=1000),
    )
    objective = Pretraining(config)
    state = train_step.make_state(config, objective)
    step = tf.Variable(0, dtype=tf.int32, trainable=False)
    state = dataclasses.replace(state, step=step)
    rates = schedules.DropoutRates(case.dropout, case.dropout)
    stream = BatchStream(
        objective.find_training_data(),
        config.data,
        seed=0,
        format_of=objective.record_format,
    )
    dataset = stream.open(0)(tf.distribute.InputContext())
    batch = next(dataset.as_numpy_iterator())
    traced = pjrt.trace(
        pjrt_steps.make_function(state, config, rates, device_type),
        {n: tf.TensorSpec(v.shape, v.dtype) for n, v in batch.items()},
    )
    parts = {
        "batch": batch.values(),
        "updated": [v.numpy() for v in traced.updated],
        "read": [v.numpy() for v in traced.read],
    }
    lowered = dataclasses.asdict(traced.lowered)
    hlo = lowered.pop("hlo")
    facts: dict[str, Any] = {
        "case": dataclasses.asdict(case),
        "lowered": lowered,
        "names": train_step.metric_names(config, objective),
        "flops": objective.flops_per_step(),
        "results": [],
    }
    if case.is_small:
        step_in_tensorflow = traced.function
        for _ in range(3):
            values, _ = step_in_tensorflow(tf.constant(0), *batch.values())
            facts["results"].append(values["all"].numpy().tolist())
    path = directory / re.sub(r"\W+", "_", case.name)
    path.with_suffix(".json").write_text(json.dumps(facts))
    path.with_suffix(".hlo.xz").write_bytes(lzma.compress(hlo, preset=1))
    arrays: dict[str, Any] = {
        f"{name}{number}": value
        if case.is_small or name == "batch" or value.ndim < 1
        # Weights of base need not be transferred: see `_values`.
        else np.array(value.shape)
        for name, values in parts.items()
        for number, value in enumerate(values)
    }
    np.savez_compressed(path.with_suffix(".npz"), **arrays)


def run(directory: pathlib.Path, peak_tflops: float) -> bool:
    """Runs all cases of a directory; returns whether results are equal."""
    paths = sorted(
        directory.glob("*.json"), key=lambda p: not p.stem.startswith(SMALL)
    )
    cases = [Case(**json.loads(p.read_text())["case"]) for p in paths]
    # Before JAX takes the memory of the device.
    others = {case: _time_pytorch(case) for case in cases if not case.is_small}
    import jax

    device = jax.devices()[0]
    print(f"jax {jax.__version__}, {device.device_kind}")
    equal = True
    print(
        "| case | rows | difference | compile s | ms a step | tokens/s | MFU "
        f"| GB | loss | PyTorch tokens/s |\n{'|---' * 10}|"
    )
    operations: list[str] = []
    for path, case in zip(paths, cases, strict=True):
        try:
            is_equal, row, operations = _run(path, device, peak_tflops)
            equal &= is_equal
            print(f"{row} | {others.get(case, '')} |", flush=True)
        except jax.errors.JaxRuntimeError as error:
            print(f"| {case.name} | {str(error).splitlines()[0][:200]} |")
            equal = False
    print("\n".join(operations))
    return equal


def _time_pytorch(case: Case) -> str:
    """Tokens per second of Hugging Face's model; "" if it cannot run."""
    if case.packing != "none":
        return ""
    work = {
        "batch": case.rows,
        "length": case.length,
        "predictions": case.num_predictions,
        "bfloat16": case.precision != "float32",
        "dropout": case.dropout,
        "threads": 1,
    }
    script = pathlib.Path(__file__).with_name("train_step_contenders.py")
    done = subprocess.run(
        [sys.executable, script, "hugging_face_compiled", json.dumps(work)],
        input="\n" * NUM_STEPS,
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    seconds = [json.loads(line)["s"] for line in done.stdout.splitlines()[1:]]
    if not seconds:
        return ""
    return f"{case.rows * case.length / statistics.median(seconds):,.0f}"


def _run(
    path: pathlib.Path, device: Any, peak_tflops: float
) -> tuple[bool, str, list[str]]:
    """Whether results are equal, a row of the table, and operations."""
    import jax

    facts = json.loads(path.read_text())
    case, results = Case(**facts["case"]), facts["results"]
    updates, shapes, hardware = (
        facts["lowered"][name]
        for name in ("updates", "results", "hardware_bits")
    )
    lowered = jax_private.Lowered(
        lzma.decompress(path.with_suffix(".hlo.xz").read_bytes()),
        tuple(updates),
        tuple((tuple(shape), dtype) for shape, dtype in shapes),
        hardware,
    )
    stored = np.load(path.with_suffix(".npz"))
    batch, updated, read = (
        [jax.device_put(value, device) for value in _values(stored, name)]
        for name in ("batch", "updated", "read")
    )

    def step(updated: Any, read: Any, batch: Any) -> Any:
        number = jax.numpy.int32(0)
        changed, (vector,) = jax_private.bind(
            lowered, [number, *batch], updated, read
        )
        return changed, vector

    program = jax.jit(step, donate_argnums=0)
    began = time.monotonic()
    compiled = program.lower(updated, read, batch).compile()
    compile_s = time.monotonic() - began
    worst = 0.0
    for wanted in results:
        updated, vector = compiled(updated, read, batch)
        found, expected = np.asarray(vector), np.array(wanted)
        differences = np.abs(found - expected) / (np.abs(expected) + 1e-3)
        worst = max(worst, float(differences.max()))
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        for _ in range(NUM_STEPS):
            updated, vector = compiled(updated, read, batch)
        vector.block_until_ready()
        seconds.append((time.monotonic() - began) / NUM_STEPS)
    step_s = statistics.median(seconds)
    memory: Any = compiled.memory_analysis()
    size = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    tokens = case.rows * case.length
    difference = f"{worst:.1e}" if results else ""
    row = (
        f"| {case.name} | {case.rows} | {difference} | {compile_s:.0f} "
        f"| {step_s * 1e3:.2f} | {tokens / step_s:,.0f} "
        f"| {facts['flops'] / step_s / peak_tflops / 1e12:.1%} "
        f"| {size / 1e9:.2f} | {float(vector[0]):.4f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            compiled(updated, read, batch)[1].block_until_ready()
        (profile,) = pathlib.Path(folder).rglob("*.xplane.pb")
        operations = _most_expensive(profile)
    return worst < TOLERANCE, row, operations


def _most_expensive(profile: pathlib.Path) -> list[str]:
    """The ten operations that took most of a step, with milliseconds."""
    import jax

    total: collections.Counter[str] = collections.Counter()
    for plane in jax.profiler.ProfileData.from_file(str(profile)).planes:
        on_device = plane.name.startswith("/device:")
        for line in plane.lines:
            if "XLA" not in line.name and not on_device:
                continue
            for event in line.events:
                total[event.name[:100]] += event.duration_ns
    return [f"{ns / 1e6:8.3f} ms  {name}" for name, ns in total.most_common(10)]


def _values(stored: Any, name: str) -> list[np.ndarray]:
    """The stored arrays; where only shapes are stored, small weights."""
    names = [n for n in stored.files if re.fullmatch(rf"{name}\d+", n)]
    values = [stored[n] for n in sorted(names, key=lambda n: (len(n), n))]
    random = np.random.default_rng(1)
    return [
        random.normal(0.02, 0.002, value).astype(np.float32)
        if value.dtype == np.int64
        else value
        for value in values
    ]


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(
        "benchmarks.lowered_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("lower", "run"))
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--device_type", default="GPU", help="of lower")
    parser.add_argument(
        "--cases",
        nargs="*",
        metavar="CASE",
        default=[],
        help=f"of lower, default all: {'; '.join(c.name for c in CASES)}",
    )
    parser.add_argument(
        "--peak_tflops", type=float, default=989, help="default: H100, bfloat16"
    )
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    if given.command == "run":
        return 0 if run(given.directory, given.peak_tflops) else 1
    for case in CASES:
        if not given.cases or case.name in given.cases:
            lower(case, given.directory, given.device_type)
            print(f"lowered {case.name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
