r"""Measure the latency of a served model: a cold start, then batch by batch.

    python -m benchmarks.serve --spm_model_file=30k-clean.model

The model is ALBERT-base with random weights, exported and loaded in a separate
process on this CPU. The texts are longer than 128 tokens and are cut to this
length. Prints two Markdown tables.
"""

import dataclasses
import gzip
import itertools
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from albert_tf.config import (
    Config,
    DataConfig,
    ExportConfig,
    ModelConfig,
    PretrainingConfig,
    flags,
    setting,
)

LENGTH = 128
CORPUS = "data_prep/sample_corpus/wiki-books-demo.txt.gz"


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """The served model and its requests."""

    spm_model_file: str = setting(
        "",
        "SentencePiece model with the vocab_size of the model, e.g. "
        "30k-clean.model.",
    )
    albert_config: str = setting(
        "configs/models/albert_base_v2.json", "Architecture, a JSON file."
    )
    batch_sizes: tuple[str, ...] = setting(
        ("1", "8", "32"), "Batch sizes of the requests, comma-separated."
    )
    requests: int = setting(
        10, "Number of timed requests per signature and batch size.", at_least=1
    )


def main(config: BenchmarkConfig) -> None:
    """Exports a model, measures it in a separate process, and prints."""
    config.require("spm_model_file")
    with tempfile.TemporaryDirectory() as work_dir:
        saved_model_dir = _export_random_model(config, pathlib.Path(work_dir))
        task = {
            "saved_model_dir": saved_model_dir,
            "batch_sizes": [int(size) for size in config.batch_sizes],
            "requests": config.requests,
            "begin": time.time(),
        }
        subprocess.run(
            [sys.executable, "-c", "import benchmarks.serve as s; s.measure()"],
            input=json.dumps(task),
            check=True,
            text=True,
        )


def _export_random_model(
    config: BenchmarkConfig, work_dir: pathlib.Path
) -> str:
    """Exports a run that has not trained; returns the SavedModel's path."""
    from albert_tf.modeling.pretrainer import AlbertPretrainer
    from albert_tf.runs.checkpoints import CheckpointStore, model_variables
    from albert_tf.serving.export import export

    run = PretrainingConfig(
        model=ModelConfig.from_json_file(config.albert_config),
        data=DataConfig(max_seq_length=LENGTH),
    )
    run_dir, export_dir = work_dir / "run", work_dir / "saved_model"
    pretrainer = AlbertPretrainer(run.model)
    pretrainer.build()
    store = CheckpointStore(str(run_dir), model_variables(pretrainer))
    store.save(1, {})
    store.wait()
    (run_dir / "config.json").write_text(json.dumps(run.to_dict()))
    shutil.copy(config.spm_model_file, run_dir / "spiece.model")
    export(ExportConfig(run_dir=str(run_dir), export_dir=str(export_dir)))
    return str(export_dir)


def measure() -> None:
    """Measures the task on standard input, in the process that serves."""
    task = json.load(sys.stdin)
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers its operations

    readings = [(task["begin"], 0.0), _now()]
    signatures = tf.saved_model.load(task["saved_model_dir"]).signatures
    readings.append(_now())
    requests = _make_requests(tf, 1)
    signatures["fill_mask_text"](**requests["fill_mask_text"])
    readings.append(_now())
    print(
        f"| seconds | start of Python, imports | loading | first response, "
        f"{LENGTH} tokens | total |\n|---|---|---|---|---|"
    )
    for name, which in [("wall", 0), ("CPU", 1)]:
        clock = [reading[which] for reading in readings]
        durations = [end - begin for begin, end in itertools.pairwise(clock)]
        columns = [f"{s:.1f}" for s in (*durations, sum(durations))]
        print(f"| {name} | {' | '.join(columns)} |")
    print(
        f"\n| signature, {LENGTH} tokens | batch size | ms, best | ms, median "
        "| examples/s, best | CPU ms per example |\n|---|---|---|---|---|---|"
    )
    for batch_size in task["batch_sizes"]:
        for name, inputs in _make_requests(tf, batch_size).items():
            function, count = signatures[name], task["requests"]
            seconds, cpu_seconds = _time(function, inputs, count)
            best = min(seconds)
            print(
                f"| {name} | {batch_size} | {1e3 * best:.1f} "
                f"| {1e3 * statistics.median(seconds):.1f} "
                f"| {batch_size / best:.1f} "
                f"| {1e3 * min(cpu_seconds) / batch_size:.0f} |",
                flush=True,
            )


def _now() -> tuple[float, float]:
    """Returns seconds of the wall clock, and of this process on all cores."""
    return time.time(), time.process_time()


def _make_requests(tf: Any, batch_size: int) -> dict[str, dict[str, Any]]:
    """Returns the inputs of the timed signatures, by name."""
    with gzip.open(CORPUS, "rt") as file:
        # Long enough for any vocabulary.
        size = 20 * LENGTH
        corpus = file.read(size * batch_size)
    texts = [corpus[i * size :][:size] for i in range(batch_size)]
    ids = tf.random.uniform([batch_size, LENGTH], 5, 1000, tf.int32, seed=1)
    return {
        "encode": {
            "input_ids": ids,
            "input_mask": tf.ones_like(ids),
            "segment_ids": tf.zeros_like(ids),
        },
        "encode_text": {"text": tf.constant(texts)},
        "fill_mask_text": {
            "text": tf.constant([f"[MASK] {text}" for text in texts])
        },
    }


def _time(
    function: Any, inputs: dict[str, Any], requests: int
) -> tuple[list[float], list[float]]:
    """Times requests, without the first two: wall clock and CPU seconds."""
    seconds, cpu_seconds = [], []
    for _ in range(requests + 2):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        for answer in function(**inputs).values():
            answer.numpy()
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
    return seconds[2:], cpu_seconds[2:]


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
