r"""Compare speed and memory of a training step with other implementations.

    python -m benchmarks.train_step \
        --python_keras_hub=venv-keras-hub/bin/python

All contenders train ALBERT-base with both losses and LAMB on the same batch, on
this CPU. Each contender runs in its own process, see `train_step_contenders`.
They take turns, one step per round, so that other load affects all of them
equally. Contenders with missing packages are left out with a message. Prints a
Markdown table.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from albert_tf.config import Config, flags, setting
from benchmarks.train_step_contenders import CONTENDERS, Work


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """The Python interpreters of the contenders, rounds and batches."""

    python_hugging_face: str = setting(
        sys.executable,
        "Python interpreter with torch and transformers; empty leaves these "
        "contenders out.",
    )
    python_keras_hub: str = setting(
        "",
        "Python interpreter with tensorflow and keras-hub, e.g. "
        "venv-keras-hub/bin/python; empty leaves this contender out.",
    )
    rounds: int = setting(
        3, "Number of timed steps of each contender.", at_least=1
    )
    lengths: tuple[str, ...] = setting(
        ("128x8", "512x2"),
        "Sequence length and batch size of the batches, as LENGTHxEXAMPLES, "
        "comma-separated.",
    )
    precisions: tuple[str, ...] = setting(
        ("float32", "bfloat16"),
        "Number formats of the matrix products, comma-separated.",
    )
    dropout: tuple[str, ...] = setting(
        ("0.1", "0"), "Dropout rates, comma-separated."
    )
    contenders: tuple[str, ...] = setting(
        tuple(CONTENDERS), "Contenders to measure, comma-separated."
    )


def main(config: BenchmarkConfig) -> None:
    """Measures and prints."""
    print(
        "| L x B | precision | dropout | contender | tokens/s, best "
        "| tokens/s, median | relative speed | CPU s per step | peak MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for size, precision, rate in itertools.product(
        config.lengths, config.precisions, config.dropout
    ):
        length, batch = map(int, size.split("x"))
        work = Work(
            batch=batch,
            length=length,
            # 15 %, as the records of that length have them.
            predictions=round(0.15 * length + 0.5),
            bfloat16=precision == "bfloat16",
            dropout=float(rate),
            threads=os.cpu_count() or 1,
        )
        steps = measure(config, work)
        medians = {
            name: statistics.median(step["s"] for step in made)
            for name, made in steps.items()
        }
        others = [m for n, m in medians.items() if "albert_tf" not in n]
        for name, made in steps.items():
            ratio = f"{min(others) / medians[name]:.2f}" if others else ""
            print(
                f"| {length} x {batch} | {precision} | {rate} | {name} "
                f"| {batch * length / min(step['s'] for step in made):,.0f} "
                f"| {batch * length / medians[name]:,.0f} | {ratio} "
                f"| {min(step['cpu_s'] for step in made):.2f} "
                f"| {made[-1]['peak_bytes'] / 1e6:,.0f} |",
                flush=True,
            )


def measure(
    config: BenchmarkConfig, work: Work
) -> dict[str, list[dict[str, float]]]:
    """What each contender prints for each step; they take turns."""
    processes = {}
    script = str(pathlib.Path(__file__).with_name("train_step_contenders.py"))
    for name in config.contenders:
        name_of_python = f"python_{name.removesuffix('_compiled')}"
        python = getattr(config, name_of_python, sys.executable)
        if not python:
            print(f"{name}: left out, no interpreter given", file=sys.stderr)
            continue
        arguments = name, json.dumps(dataclasses.asdict(work))
        process = start(name, [python, script, *arguments])
        if process is not None:
            processes[name] = process
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in processes}
    for _ in range(config.rounds):
        for name, process in processes.items():
            assert process.stdin and process.stdout
            process.stdin.write("\n")
            process.stdin.flush()
            steps[name].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.communicate()
    return steps


def start(name: str, command: list[str]) -> subprocess.Popen | None:
    """Starts a contender and waits until it is ready; None if it cannot run."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Waiting threads must not spin while another contender runs.
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        )
        assert process.stdout
        if process.stdout.readline():
            return process
        process.wait()
        log.seek(0)
        why = log.read().strip().splitlines()[-1:]
    print(f"{name}: left out: {' '.join(why)}", file=sys.stderr)
    return None


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
