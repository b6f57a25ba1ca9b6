r"""Measure speed and memory of `data_prep.build_tfrecords`.

    python -m benchmarks.build_records \
        --input_file='corpus/*.txt' --spm_model_file=build/spm.model \
        --work_dir=build/benchmark

Prints Markdown tables: the speed for several values of `--dupe_factor` and
`--num_workers`; the time of encoding the text and writing the bytes alone,
which no build can undercut; the speed with Dask workers on this machine; the
peak memory for several corpora; and the fraction of the time of each stage. CPU
time is the sum over all processes, from text to finished shards, including
start-up. It is meaningful on a busy machine, too. Of the settings of
build_tfrecords, set only `--input_file`, `--spm_model_file`, `--max_seq_length`
and `--max_predictions_per_seq`; the builds use the defaults of the others.
"""

import collections
import cProfile
import dataclasses
import os
import pathlib
import pstats
import random
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

from albert_tf.config import (
    flags,
    setting,
)
from albert_tf.io.ownership import Owner
from albert_tf.io.tfrecord import TFRecordWriter, read_records
from albert_tf.records.features import read_metadata
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder import local_runner
from data_prep.builder.examples import TRAIN, normalize_document
from data_prep.config import RecordsConfig
from data_prep.text import corpus

# Functions of each stage, as MODULE.NAME. They do not call each other.
_STAGES = {
    "loading the vocabulary": ("tokenization.__init__",),
    "reading text": ("lines.read_lines",),
    "normalising text": ("examples.normalize_document",),
    "encoding by SentencePiece": ("tokenization.encode_normalized",),
    "pairing segments": ("examples._make_examples_of_document",),
    "spilling and sorting examples": (
        "shuffle.write_spill",
        "shuffle.read_shard",
    ),
    "laying out examples": ("records._lay_out",),
    "masking": ("masking.mask_batch",),
    "serialising": ("serialization.serialize_examples",),
    "checksums and writing": ("tfrecord.write", "tfrecord.flush"),
}


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(RecordsConfig):
    """Settings of the records, and a working directory."""

    work_dir: str = setting(
        "",
        "New directory for corpora and records, removed at the end, e.g. "
        "build/benchmark.",
    )
    copies: int = setting(
        10,
        "Number of repetitions of the text in the largest corpus.",
        at_least=2,
    )


class Measured(NamedTuple):
    """The measurements of a build.

    Attributes:
        examples: Number of examples in train/.
        wall_s: Wall time.
        cpu_s: CPU time, summed over all processes.
        peak_bytes: Largest resident memory of a worker process.
        main_peak_bytes: Largest resident memory of the main process, which
            reads the text.
    """

    examples: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    main_peak_bytes: int


class Floor(NamedTuple):
    """The work that every build must do.

    Attributes:
        encoding_s: CPU time of normalising and encoding the text, in seconds.
        writing_s: CPU time of writing the bytes of the shards, in seconds.
        examples: Number of records.
    """

    encoding_s: float
    writing_s: float
    examples: int


def main(config: BenchmarkConfig) -> None:
    """Measures, and prints the tables."""
    config.require("input_file", "spm_model_file", "work_dir")
    work = pathlib.Path(config.work_dir)
    work.mkdir(parents=True)
    cores = os.cpu_count() or 1
    texts = [s.name for s in corpus.find_inputs(config)]
    megabytes = sum(map(os.path.getsize, texts)) / 1e6

    print(
        f"{megabytes:.0f} MB of text, L={config.max_seq_length}, "
        f"P={config.max_predictions_per_seq}, {cores} cores\n"
    )
    print(
        "| dupe_factor | processes | examples | wall s | CPU s "
        "| examples/s per core | speed-up | MB per worker |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for dupe_factor in (1, 10):
        alone = None
        for num_workers in dict.fromkeys((1, cores)):
            made = _build(
                config,
                texts,
                work,
                dupe_factor,
                f"--num_workers={num_workers}",
            )
            alone = alone or made
            print(
                f"| {dupe_factor} | {num_workers} | {made.examples:,} "
                f"| {made.wall_s:.1f} | {made.cpu_s:.1f} "
                f"| {made.examples / made.cpu_s:,.0f} "
                f"| {alone.wall_s / made.wall_s:.2f} "
                f"| {made.peak_bytes / 1e6:.0f} |",
                flush=True,
            )
            if (dupe_factor, num_workers) == (1, 1):
                floor = _measure_floor(config, work)
    print(
        f"\nNo build at dupe_factor 1 can exceed "
        f"{floor.examples / (floor.encoding_s + floor.writing_s):,.0f} "
        f"examples/s per core: encoding takes {floor.encoding_s:.1f} s and "
        f"writing {floor.writing_s:.1f} s\n"
    )

    _print_dask_builds(config, texts, work)
    print(
        "| text | MB | dupe_factor | examples | MB per worker "
        "| MB of the reader |"
    )
    print("|---|---|---|---|---|---|")
    for name, paths, dupe_factor in (
        ("once", texts, 1),
        ("once", texts, 40),
        (
            f"{config.copies} times, documents in other orders",
            _repeat(texts, work, config.copies),
            1,
        ),
        ("one line", _join_to_a_line(texts, work), 1),
    ):
        made = _build(
            config, paths, work, dupe_factor, f"--num_workers={cores}"
        )
        size = sum(map(os.path.getsize, paths)) / 1e6
        print(
            f"| {name} | {size:.1f} | {dupe_factor} | {made.examples:,} "
            f"| {made.peak_bytes / 1e6:.0f} "
            f"| {made.main_peak_bytes / 1e6:.0f} |",
            flush=True,
        )
    print("\n| stage | dupe_factor 1 | dupe_factor 10 |")
    print("|---|---|---|")
    profiles = [_profile(config, work, dupe) for dupe in (1, 10)]
    for what in profiles[0]:
        fractions = " | ".join(f"{100 * p[what]:.0f} %" for p in profiles)
        print(f"| {what} | {fractions} |")
    shutil.rmtree(work)


def _build(
    config: BenchmarkConfig,
    texts: list[str],
    work: pathlib.Path,
    dupe_factor: int,
    *more_flags: str,
) -> Measured:
    """Runs `build_tfrecords` and measures its processes.

    With Dask, CPU time and memory do not include the workers.
    """
    output_dir = work / "records"
    shutil.rmtree(output_dir, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "data_prep.build_tfrecords",
        f"--input_file={','.join(texts)}",
        f"--output_dir={output_dir}",
        f"--spm_model_file={config.spm_model_file}",
        f"--max_seq_length={config.max_seq_length}",
        f"--max_predictions_per_seq={config.max_predictions_per_seq}",
        f"--dupe_factor={dupe_factor}",
        *more_flags,
    ]
    begin = time.monotonic()
    before = os.times()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        peaks: dict[int, int] = collections.defaultdict(int)
        while process.poll() is None:
            for pid in (process.pid, *_children(process.pid)):
                peaks[pid] = max(peaks[pid], _peak_memory(pid))
            time.sleep(0.05)
    wall_s = time.monotonic() - begin
    after = os.times()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    main_peak = peaks.pop(process.pid)
    return Measured(
        examples=read_metadata(str(output_dir / TRAIN)).num_examples,
        wall_s=wall_s,
        cpu_s=(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        ),
        peak_bytes=max(peaks.values(), default=main_peak),
        main_peak_bytes=main_peak,
    )


def _print_dask_builds(
    config: BenchmarkConfig, texts: list[str], work: pathlib.Path
) -> None:
    """Builds with one Dask worker, and with one for each core."""
    try:
        import distributed
    except ImportError:
        print("No builds with Dask: pip install -e '.[dask]'.\n")
        return
    print("| dupe_factor | Dask workers | examples | wall s | speed-up |")
    print("|---|---|---|---|---|")
    # The workers import the packages of this checkout.
    os.environ["PYTHONPATH"] = str(pathlib.Path(__file__).parents[1])
    # Dask's workers return freed memory at once, which costs time.
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 30))
    for dupe_factor in (1, 10):
        alone = None
        for num_workers in dict.fromkeys((1, os.cpu_count() or 1)):
            with distributed.LocalCluster(
                n_workers=num_workers,
                threads_per_worker=1,
                dashboard_address=None,
            ) as cluster:
                made = _build(
                    config,
                    texts,
                    work,
                    dupe_factor,
                    "--runner=dask",
                    f"--dask_scheduler={cluster.scheduler_address}",
                )
            alone = alone or made
            print(
                f"| {dupe_factor} | {num_workers} | {made.examples:,} "
                f"| {made.wall_s:.1f} | {alone.wall_s / made.wall_s:.2f} |",
                flush=True,
            )
    print()


def _measure_floor(config: BenchmarkConfig, work: pathlib.Path) -> Floor:
    """Encodes the text, and copies the records of the last build."""
    tokenizer = Tokenizer(config.spm_model_file, config.do_lower_case)
    begin = time.process_time()
    for document in corpus.read_documents(
        corpus.find_inputs(config),
        config,
        lambda _num_bytes: None,
        collections.Counter(),
    ):
        tokenizer.encode_normalized(
            normalize_document(document, tokenizer, config)
        )
    encoding_s = time.process_time() - begin

    paths = sorted((work / "records" / TRAIN).glob("*.tfrecord"))
    records = []
    for path in paths:
        with open(path, "rb") as file:
            records += [stored.content for stored in read_records(file)]
    copy = work / "copy.tfrecord"
    begin = time.process_time()
    with open(copy, "wb") as copied, TFRecordWriter(copied) as writer:
        for record in records:
            writer.write(record)
    writing_s = time.process_time() - begin
    copy.unlink()
    return Floor(encoding_s, writing_s, len(records))


def _profile(
    config: BenchmarkConfig, work: pathlib.Path, dupe_factor: int
) -> dict[str, float]:
    """Fractions of the time of one process, by stage.

    The profiler slows Python code, so stages with much Python code appear
    slightly larger than they are.
    """
    for name in ("profiled", "profile_scratch"):
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).mkdir()
    own = RecordsConfig(
        **{
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(RecordsConfig)
        }
        | {
            "output_dir": str(work / "profiled"),
            "dupe_factor": dupe_factor,
            "num_workers": 1,
        }
    )
    profile = cProfile.Profile()
    profile.enable()
    local_runner.build(
        own,
        corpus.find_inputs(own),
        own.spm_model_file,
        str(work / "profile_scratch"),
        {},
        Owner(),
    )
    profile.disable()
    stats = pstats.Stats(profile)
    cumulative: dict[str, float] = collections.defaultdict(float)
    for (path, _line, name), entry in stats.stats.items():  # type: ignore[attr-defined]
        cumulative[f"{pathlib.Path(path).stem}.{name}"] += entry[3]
    total = stats.total_tt  # type: ignore[attr-defined]
    fractions = {
        what: sum(cumulative[function] for function in functions) / total
        for what, functions in _STAGES.items()
    }
    return fractions | {"other": 1 - sum(fractions.values())}


def _repeat(texts: list[str], work: pathlib.Path, copies: int) -> list[str]:
    """Writes copies of the corpus, each with another order of documents."""
    paths = []
    for copy in range(copies):
        paths.append(str(work / f"copy-{copy:02d}.txt"))
        rng = random.Random(copy)
        with open(paths[-1], "w", encoding="utf-8") as file:
            for text in rng.sample(texts, len(texts)):
                content = pathlib.Path(text).read_text(encoding="utf-8")
                documents = content.strip().split("\n\n")
                rng.shuffle(documents)
                file.write("\n\n".join(documents) + "\n\n")
    return paths


def _join_to_a_line(texts: list[str], work: pathlib.Path) -> list[str]:
    """Writes the first text on one line."""
    path = work / "line.txt"
    content = pathlib.Path(texts[0]).read_text(encoding="utf-8")
    path.write_text(" ".join(content.split()), encoding="utf-8")
    return [str(path)]


def _children(pid: int) -> list[int]:
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:  # the process has just ended
        return []
    return [int(child) for child in text.split()]


def _peak_memory(pid: int) -> int:
    """Largest resident memory of a process so far, in bytes."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
