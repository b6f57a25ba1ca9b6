r"""Watch the resources of a long run of tiny steps.

    python -m benchmarks.long_run --work_dir=build/long_run

Trains a tiny model on `data_prep/sample_corpus`, with an evaluation and a
checkpoint every 500 steps. Prints a Markdown table of the trainer's process:
resident memory, open files, threads, and bytes of its run directory, for
several steps. At the end, prints the seconds between the last line of the log
and the end of the process. Linux only; it reads `/proc`.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

from albert_tf.config import Config, ModelConfig, flags, setting
from albert_tf.errors import UserError
from albert_tf.runs.log import METRICS_FILE, TENSORBOARD_DIR, read_events
from data_prep import build_tfrecords, train_tokenizer
from data_prep.config import RecordsConfig, TokenizerConfig

CORPUS = (
    pathlib.Path(__file__)
    .parents[1]
    .joinpath("data_prep", "sample_corpus", "wiki-books-demo.txt.gz")
)
MODEL = ModelConfig(
    vocab_size=1000,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=32,
)
LENGTHS = {"max_seq_length": 32, "max_predictions_per_seq": 6}


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """Length of the run, rows of the table, and directory."""

    work_dir: str = setting(
        "", "New directory for records and the run, e.g. build/long_run."
    )
    num_steps: int = setting(20_000, "Training steps.", at_least=100)
    rows: int = setting(20, "Rows of the table.", at_least=1)
    run_flags: tuple[str, ...] = setting(
        (),
        "More flags of run_pretraining, comma-separated, e.g. "
        "--eval_every_n_steps=0.",
    )


class Resources(NamedTuple):
    """Memory of a process in bytes, and numbers of open files and threads."""

    memory: int
    files: int
    threads: int


def main(config: BenchmarkConfig) -> None:
    """Builds records, trains, and prints the table."""
    config.require("work_dir")
    work = pathlib.Path(config.work_dir)
    if work.exists():
        raise UserError(
            "work_dir must not exist",
            received=str(work),
            remedy="Choose another directory, or remove this one.",
        )
    _build_records(work)
    (work / "model.json").write_text(json.dumps(MODEL.to_dict()))
    run_dir = work / "run"
    command = [
        sys.executable,
        "-m",
        "albert_tf.run_pretraining",
        f"--albert_config_file={work}/model.json",
        f"--input_file={work}/records/train/*.tfrecord",
        f"--eval_input_file={work}/records/eval/*.tfrecord",
        f"--output_dir={run_dir}",
        f"--num_train_steps={config.num_steps}",
        "--global_batch_size=8",
        "--eval_batch_size=8",
        "--max_eval_steps=3",
        "--strategy=one_device",
        "--fuse_on_cpu=false",  # operations of this size gain nothing
        "--steps_per_loop=50",
        "--eval_every_n_steps=500",
        "--save_checkpoints_steps=500",
        "--keep_checkpoint_max=2",
        "--num_warmup_steps=10",
        *(f"--{name}={value}" for name, value in LENGTHS.items()),
        *config.run_flags,
    ]
    print(
        "| step | resident MB | open files | threads | MB of metrics "
        "| files of TensorBoard | MB of TensorBoard | MB of checkpoints |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with (
        open(work / "log", "w") as log,
        subprocess.Popen(command, stderr=log) as process,
    ):
        _watch(process, run_dir, config)
    if process.returncode:
        raise RuntimeError(f"the run failed; see {work}/log")
    ended = time.time()
    [last] = [e for e in read_events(str(run_dir)) if e["event"] == "finish"]
    print(
        f"\nStep {last['step']:,}: the process ended "
        f"{ended - last['time']:.2f} s after its event `finish`."
    )


def _build_records(work: pathlib.Path) -> None:
    """Builds records in `records/train` and `records/eval`."""
    work.mkdir(parents=True)
    train_tokenizer.main(
        TokenizerConfig(
            input_file=(str(CORPUS),),
            model_prefix=str(work / "spm"),
            vocab_size=MODEL.vocab_size,
        )
    )
    build_tfrecords.main(
        RecordsConfig(
            input_file=(str(CORPUS),),
            output_dir=str(work / "records"),
            spm_model_file=str(work / "spm.model"),
            holdout_fraction=0.05,
            dupe_factor=1,
            num_shards=4,
            num_workers=1,
            max_seq_length=LENGTHS["max_seq_length"],
            max_predictions_per_seq=LENGTHS["max_predictions_per_seq"],
        )
    )


def _watch(
    process: subprocess.Popen[bytes],
    run_dir: pathlib.Path,
    config: BenchmarkConfig,
) -> None:
    """Prints a row each time that `num_steps / rows` more steps are done."""
    every = max(1, config.num_steps // config.rows)
    due = every
    while process.poll() is None:
        step = _last_step(run_dir / METRICS_FILE)
        if step >= due:
            due = (step // every + 1) * every
            found = _resources(process.pid)
            if found is not None:
                print(_row(step, found, run_dir), flush=True)
        time.sleep(0.02)


def _row(step: int, found: Resources, run_dir: pathlib.Path) -> str:
    board = _sizes(run_dir / TENSORBOARD_DIR)
    cells = (
        f"{step:,}",
        f"{found.memory / 1e6:.1f}",
        found.files,
        found.threads,
        f"{os.path.getsize(run_dir / METRICS_FILE) / 1e6:.2f}",
        len(board),
        f"{sum(board) / 1e6:.2f}",
        f"{sum(_sizes(run_dir / 'checkpoints')) / 1e6:.2f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _sizes(directory: pathlib.Path) -> list[int]:
    """Sizes of the files below a directory that a run is changing."""
    sizes = []
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(os.path.getsize(os.path.join(parent, name)))
            except FileNotFoundError:  # the run has just removed it
                continue
    return sizes


def _last_step(path: pathlib.Path) -> int:
    """The step of the last complete line of the log, or 0."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0
    try:
        return json.loads(lines[-1])["step"]
    except (IndexError, ValueError):
        return 0


def _resources(pid: int) -> Resources | None:
    """The resources of a process; None if it has ended."""
    process = pathlib.Path(f"/proc/{pid}")
    try:
        status = dict(
            line.split(":", 1)
            for line in (process / "status").read_text().splitlines()
        )
        files = len(list((process / "fd").iterdir()))
        return Resources(
            memory=int(status["VmRSS"].split()[0]) * 1024,
            files=files,
            threads=int(status["Threads"]),
        )
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return None


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
