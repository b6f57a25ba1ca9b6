"""`--dry_run`: everything that a run needs, checked before it costs anything.

The checks stand in the order of the table that is printed. One that fails does
not keep the others from being made, unless they need what it found; they say
so. The last one makes real updates with the real program. What is written is
removed again.
"""

import dataclasses
import importlib.metadata
import math
import os
import posixpath
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf import (
    checkpoints,
    distribution,
    files,
    input_pipeline,
    run_directory,
    schedules,
    step_cost,
    training_records,
)
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.train_step import (
    StepSettings,
    figure_names,
    make_state,
    make_train_steps,
)

OK, WARN, FAIL, SKIP = "ok", "warn", "FAIL", "skip"

TIMED_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        check: What was looked at.
        verdict: OK, WARN, FAIL, or SKIP for what could not be looked at.
        found: What was found.
        remedy: What to do; "" where nothing is to be done.
    """

    check: str
    verdict: str
    found: str
    remedy: str = ""


def run(config: PretrainingConfig) -> int:
    """Makes all checks and prints the table.

    Returns:
        The exit status: 1 if a check failed.
    """
    rows: list[Row] = []

    def check(name: str, function: Callable[..., Any], *needed: Any) -> Any:
        """Adds the rows of a check; gives what later checks need of it."""
        if any(value is None for value in needed):
            rows.append(Row(name, SKIP, "needs what failed above"))
            return None
        found = None
        try:
            for row in function(config, *needed):
                if isinstance(row, Row):
                    rows.append(row)
                else:
                    found = row
        except (UserError, OSError, tf.errors.OpError) as error:
            text = str(error).strip().splitlines()[0]
            rows.append(Row(name, FAIL, text))
            return None
        return found

    check("versions", _versions)
    check("output", _output)
    data = check("records", _records)
    check("held-out records", _held_out, data)
    check("run", _run_directory, data)
    check("learning rate", _learning_rate)
    strategy = check("devices", _devices)
    check("memory", _memory, strategy)
    check("updates", _updates, data, strategy)
    print(format_rows(rows))
    return int(any(row.verdict == FAIL for row in rows))


def format_rows(rows: list[Row]) -> str:
    """The table, and below it how many checks failed."""
    width = max(len(row.check) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{row.verdict:4}  {row.check:{width}}  {row.found}")
        if row.remedy:
            lines.append(f"{'':4}  {'':{width}}  -> {row.remedy}")
    failed = sum(row.verdict == FAIL for row in rows)
    lines.append(f"{failed} of {len(rows)} checks failed")
    return "\n".join(lines)


def _versions(config: PretrainingConfig) -> Iterator[Row]:
    del config
    python = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Row(
        "Python",
        OK if fits else WARN,
        python,
        "" if fits else "Tested with 3.11 to 3.13.",
    )
    minor = _minor(tf.__version__)
    fits = minor in ("2.20", "2.21")
    yield Row(
        "TensorFlow",
        OK if fits else WARN,
        tf.__version__,
        "" if fits else "Tested with 2.20 and 2.21.",
    )
    text = _version("tensorflow-text")
    if text:
        fits = _minor(text) == minor
        yield Row(
            "tensorflow-text",
            OK if fits else FAIL,
            text,
            "" if fits else f"pip install 'tensorflow-text=={minor}.*'",
        )
    libtpu = _version("libtpu")
    if _version("tensorflow-tpu"):
        release = tuple(map(int, (libtpu or "0.0.0").split(".")[:3]))
        fits = (0, 0, 20) < release <= (0, 0, 30)
        yield Row(
            "libtpu",
            OK if fits else FAIL,
            libtpu or "not installed",
            ""
            if fits
            else "pip install libtpu==0.0.30; a newer one ends "
            "tensorflow-tpu 2.20 at its import.",
        )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _output(config: PretrainingConfig) -> Iterator[Row]:
    """Writes, reads and removes a file where the run is to be."""
    run_dir = config.training.output_dir
    made: list[str] = []
    probe = posixpath.join(run_dir, f"preflight_{os.getpid()}")
    content = b"preflight" * 1000
    try:
        made = [d for d in _parents(run_dir) if not tf.io.gfile.exists(d)]
        tf.io.gfile.makedirs(run_dir)
        files.write_bytes(probe, content)
        with files.open_existing(probe, "rb") as file:
            read = file.read()
        tf.io.gfile.remove(probe)
    except (OSError, tf.errors.OpError) as error:
        remedy = "Choose another --output_dir, or mend its permissions."
        if "scheme" in str(error):
            remedy = "pip install 'tensorflow[gcs-filesystem]' for gs://."
        text = str(error).strip().splitlines()[0]
        yield Row("output", FAIL, f"{run_dir}: {text}", remedy)
        return
    finally:
        for directory in made:
            if tf.io.gfile.exists(directory) and not tf.io.gfile.listdir(
                directory
            ):
                tf.io.gfile.rmtree(directory)
    if read != content:
        yield Row("output", FAIL, f"{probe} was not read as it was written")
        return
    yield Row("output", OK, f"{run_dir} can be written")
    if not files.is_remote(run_dir):
        yield _free_space(config, made)


def _parents(path: str) -> Iterator[str]:
    """The directory and those above it, the innermost first."""
    while path and path != posixpath.dirname(path):
        yield path
        path = posixpath.dirname(path)


def _free_space(config: PretrainingConfig, made: list[str]) -> Row:
    """Room for the checkpoints that are there at the same time."""
    training = config.training
    one = (
        3
        * 4
        * step_cost.num_parameters(config.model, training.sentence_objective)
    )
    count = training.keep_checkpoint_max + 2  # the best, the one written
    if training.keep_every_n_steps:
        count += training.num_train_steps // training.keep_every_n_steps
    above = posixpath.dirname(made[-1]) if made else training.output_dir
    free = shutil.disk_usage(above or ".").free
    fits = free > count * one
    return Row(
        "room",
        OK if fits else FAIL,
        f"{free / 1e9:.1f} GB free; {count} checkpoints of "
        f"{one / 1e9:.2f} GB need {count * one / 1e9:.1f} GB",
        ""
        if fits
        else "Make room, or lower --keep_checkpoint_max, or raise "
        "--keep_every_n_steps.",
    )


def _records(config: PretrainingConfig) -> Iterator[Any]:
    data = training_records.find_training_data(config)
    yield data
    training = config.training
    ends = [phase.first_step for phase in data.phases[1:]]
    for phase, end in zip(
        data.phases, [*ends, training.num_train_steps], strict=True
    ):
        records = phase.records
        steps = records.num_examples / config.data.global_batch_size
        epochs = (end - phase.first_step) / steps
        name = f"records {phase.name}".strip()
        enough = steps >= 1
        yield Row(
            name,
            OK if enough else WARN,
            f"{records.num_examples:,} in {len(records.files)} files, "
            f"{records.masking} masking; {steps:,.1f} steps an epoch, "
            f"{epochs:,.1f} epochs",
            "" if enough else "A batch holds records more than once.",
        )


def _held_out(
    config: PretrainingConfig, data: training_records.TrainingData
) -> Iterator[Row]:
    if not config.data.eval_input_file:
        yield Row(
            "held-out records",
            WARN,
            "none",
            "Build with --holdout_fraction, and give --eval_input_file.",
        )
        return
    held_out = training_records.find_held_out(config)
    for phase in data.phases:
        training_records.check_held_out(phase.records, held_out)
    yield Row("held-out records", OK, f"{held_out.num_examples:,}")


def _run_directory(
    config: PretrainingConfig, data: training_records.TrainingData
) -> Iterator[Row]:
    run_directory.check(config, data.phases[0].records)
    found = checkpoints.list_checkpoints(
        posixpath.join(config.training.output_dir, checkpoints.CHECKPOINTS_DIR)
    )
    yield Row(
        "run",
        OK,
        f"goes on from step {found[-1].step}" if found else "new",
    )


def _learning_rate(config: PretrainingConfig) -> Iterator[Row]:
    line, warning = schedules.describe_learning_rate(config)
    yield Row("learning rate", WARN if warning else OK, line, warning)


def _devices(config: PretrainingConfig) -> Iterator[Any]:
    strategy = distribution.make_strategy(config.distribution)
    replicas = strategy.num_replicas_in_sync
    share = distribution.per_replica_batch_size(
        "global_batch_size",
        config.data.global_batch_size,
        replicas,
        config.data.gradient_accumulation_steps,
    )
    if config.data.eval_input_file:
        distribution.per_replica_batch_size(
            "eval_batch_size", config.data.eval_batch_size, replicas
        )
    yield strategy
    yield Row(
        "devices",
        OK,
        f"{replicas} replicas of {type(strategy).__name__}, {share} examples "
        f"each, in {config.data.gradient_accumulation_steps} parts",
    )


def _memory(
    config: PretrainingConfig, strategy: tf.distribute.Strategy
) -> Iterator[Row]:
    parts = step_cost.estimate_memory(config, strategy.num_replicas_in_sync)
    total = sum(parts.values())
    room = step_cost.device_memory_bytes(strategy)
    found = f"about {total / 1e9:.1f} GB a replica (" + ", ".join(
        f"{name} {size / 1e9:.2f}" for name, size in parts.items()
    )
    if room is None:
        yield Row("memory", OK, f"{found}); the device's is not known")
        return
    fits = total < room
    yield Row(
        "memory",
        OK if fits else WARN,
        f"{found}) of {room / 1e9:.1f} GB",
        ""
        if fits
        else "An estimate: see below whether an update can be made. If not: "
        "--gradient_accumulation_steps, --remat, "
        "--precision=mixed_bfloat16, or a smaller batch.",
    )


def _updates(
    config: PretrainingConfig,
    data: training_records.TrainingData,
    strategy: tf.distribute.Strategy,
) -> Iterator[Row]:
    """Makes real updates, of new weights."""
    with strategy.scope():
        state = make_state(config)
        train_steps = make_train_steps(strategy, state, config)
    batches = iter(
        strategy.distribute_datasets_from_function(
            input_pipeline.training_dataset(
                data, config.data, config.training.seed, 0
            )
        )
    )
    settings = StepSettings(schedules.dropout_rates(0, config))
    totals = {name: tf.constant(0.0) for name in figure_names(config)}
    logging.info("compiling the step, and timing %d updates", TIMED_STEPS)

    def timed(num_steps: int) -> tuple[dict[str, float], float]:
        started = time.monotonic()
        steps = train_steps(batches, totals, tf.constant(num_steps), settings)
        means = {
            name: float(total) / num_steps
            for name, total in steps.totals.items()
        }
        return means, (time.monotonic() - started) / num_steps

    try:
        first, compile_seconds = timed(1)
        _, step_seconds = timed(TIMED_STEPS)
    except tf.errors.ResourceExhaustedError as error:
        yield Row(
            "updates",
            FAIL,
            f"out of memory: {str(error).splitlines()[0][:200]}",
            "--gradient_accumulation_steps, --remat, "
            "--precision=mixed_bfloat16, or a smaller batch.",
        )
        return
    # New weights guess: each piece, and each order, is as likely.
    guess = math.log(config.model.vocab_size)
    if config.training.sentence_objective != "none":
        guess += math.log(2)
    near = abs(first["loss"] - guess) < 0.1 * guess
    yield Row(
        "loss",
        OK if near else FAIL,
        f"{first['loss']:.3f} of new weights; guessing gives {guess:.3f}",
        "" if near else "Are these the records of this vocabulary?",
    )
    flops = step_cost.flops_per_step(
        config.model, config.data, config.training.sentence_objective
    )
    tokens = config.data.global_batch_size * config.data.max_seq_length
    speed = (
        f"{step_seconds:.3g} s a step, {tokens / step_seconds:,.0f} tokens/s, "
        f"{flops / step_seconds / 1e12:.3g} TFLOP/s"
    )
    peak = step_cost.peak_flops(strategy, config.distribution)
    if peak:
        speed += f", MFU {100 * flops / step_seconds / peak:.1f} %"
    yield Row("updates", OK, f"{speed}; compiled in {compile_seconds:.0f} s")
    hours = step_seconds * config.training.num_train_steps / 3600
    yield Row(
        "the whole run",
        OK,
        f"{config.training.num_train_steps:,} steps of {flops / 1e12:.3g} "
        f"TFLOP: about {hours:,.1f} hours ({hours / 24:,.1f} days)",
    )
    yield Row(
        "memory in use",
        OK,
        f"{step_cost.peak_memory_bytes() / 1e9:.1f} GB at its peak",
    )
