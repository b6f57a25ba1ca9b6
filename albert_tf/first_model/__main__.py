r"""Make a first model from a folder of text, within a given time.

    python -m albert_tf.first_model \
      --input_file='my/*.txt' --output_dir=my_albert --minutes=10

chooses a model for the text, the time and this machine; trains a vocabulary;
builds records of short and of longer examples, with held-out documents; trains
on the short ones, then on the longer ones, to the end of the decay of the
learning rate; compares the model with the frequency of the pieces and with
5-grams; exports a SavedModel; and fills masks in held-out sentences.
OUTPUT_DIR/index.html shows the verdict, the results, and every command, to
repeat and change it. summary.json has the figures. `--dry_run` reads the text,
and prints what would be done.

To continue the training of a model on your text, with its vocabulary:

    python -m albert_tf.first_model \
      --input_file='my/*.txt' --output_dir=my_albert --minutes=10 \
      --init_checkpoint=albert_mini_en

The same command continues after Ctrl-C or a crash, with the rest of the time.
When the model is complete, it goes on from the last constant learning rate if
it is given more --minutes.

Exit status: 0 when the model is complete; 3 when it is complete, but not better
than the frequency of the pieces; 1 for an error; 130 (Ctrl-C) or 143 (SIGTERM)
when interrupted.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

from absl import logging

from albert_tf.cluster import devices
from albert_tf.config import FirstModelConfig, flags
from albert_tf.errors import UserError, describe_end, name_faults
from albert_tf.first_model.plan import (
    Device,
    corpus_flags,
    find_device,
    make_plan,
)
from albert_tf.first_model.stages import has_trained
from albert_tf.first_model.verdict import WORSE
from albert_tf.io import files, jobs
from albert_tf.io.artifact import differences, lock

EXIT_WORSE = 3  # than the frequency of the pieces

# Below this number of characters, a vocabulary and a model from random weights
# learn nothing; and there is nothing to hold out.
SMALLEST_TEXT, SMALLEST_CONTINUED = 200_000, 10_000
LATE = 1.1  # without a step in this multiple of the time, it is stopped
PROGRESS_SECONDS = 15.0


class FirstModel:
    """Starts `first_model.stages`, and counts and reports the time.

    Args:
        directory: Of the first model.
        state: What is stored in `first_model.json`: `settings`; `text` and
            `device`, which were found; `plan`; `overwrite`, whether to replace
            vocabulary and records; `seconds` used so far; `round`, how often a
            complete model got more time; `start`, the model to start from; and
            `is_complete`.
    """

    def __init__(self, directory: str, state: dict[str, Any]) -> None:
        self.dir, self.state = directory, state
        self.minutes = state["settings"]["minutes"]
        self._ticked = self._reported = time.monotonic()

    def make(self) -> int:
        """Makes what is missing; prints the results; returns the status."""
        results = pathlib.Path(f"{self.dir}/results.txt")
        if not self.state["is_complete"]:
            self._save()
            self._run_stages(f"{self.dir}/first_model.log", results)
        print(results.read_text())
        summary = files.load_json(f"{self.dir}/summary.json")
        return EXIT_WORSE if summary["verdict"] == WORSE else 0

    def _run_stages(self, log: str, results: pathlib.Path) -> None:
        module = "albert_tf.first_model.stages"
        try:
            status = jobs.run(
                "first model",
                [sys.executable, "-m", module, f"--output_dir={self.dir}"],
                log,
                str(results),
                is_over=self._tick,
                has_progress=self._can_stop,
            )
            has_results = results.stat().st_size > 0
            self.state["is_complete"] = status == 0 and has_results
        finally:
            self._save()
        lines = pathlib.Path(log).read_text(errors="replace").splitlines()
        lines = [line for line in lines if line.strip()] or ["no message"]
        if lines[-1].startswith("error: ") and status == 1:
            raise UserError(lines[-1].removeprefix("error: "))
        if status:
            raise UserError(
                "the first model must be made without an error",
                received=f"{describe_end(status)}: {lines[-1]}",
                remedy=f"See {log}. The same command goes on from here.",
            )
        if not self.state["is_complete"]:
            raise UserError(
                "minutes must be enough for some steps of the training",
                received=f"{self.minutes:g}; {log} has what took the time",
                remedy="Give more --minutes.",
            )
        warnings = [line for line in lines if re.match(r"W\d{4} ", line)]
        for line in dict.fromkeys(w.partition("] ")[2] for w in warnings):
            if "SIGTERM" not in line:  # our own request to stop
                logging.warning("%s", line)

    def _save(self) -> None:
        files.write_json(f"{self.dir}/first_model.json", self.state)

    def _tick(self) -> bool:
        """Counts and reports the time; whether it is over without a step."""
        now = time.monotonic()
        self.state["seconds"] += now - self._ticked
        self._ticked = now
        if now - self._reported > PROGRESS_SECONDS:
            self._reported = now
            self._save()
            used = self.state["seconds"] / 60
            name, row = self._last_row()
            parts = [f"{name}: {used:.1f} of {self.minutes:g} minutes"]
            if row:
                parts.append(f"step {row['step']:,}")
                parts.append(f"loss {row['masked_lm_loss']:.3f}")
            logging.info("%s", " | ".join(parts))
        is_late = self.state["seconds"] > LATE * 60 * self.minutes
        return is_late and not has_trained(self.dir)

    def _can_stop(self) -> bool:
        """Whether SIGTERM ends the stages soon; not in a first step."""
        name, row = self._last_row()
        return name == "text" or bool(row)

    def _last_row(self) -> tuple[str, dict[str, Any]]:
        """The newest training, and the last line of its log."""
        runs = pathlib.Path(f"{self.dir}/runs").glob("*")
        newest = max(runs, key=os.path.getmtime, default=None)
        if newest is None:
            return "text", {}
        path = newest / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        for line in reversed(lines):
            with contextlib.suppress(ValueError):  # an incomplete line
                return newest.name, json.loads(line)
        return newest.name, {}


# --- the start ----------------------------------------------------------------


def _check_places(config: FirstModelConfig) -> None:
    if "://" in config.output_dir:
        raise UserError("output_dir must be local", config.output_dir)
    inside = os.path.realpath(config.output_dir) + os.sep
    for pattern in config.input_file:
        top, found, _ = pattern.partition("**")
        is_deep = found or os.path.isdir(pattern)
        if is_deep and inside.startswith(os.path.realpath(top) + os.sep):
            raise UserError(
                "output_dir must not be in a folder that input_file reads",
                received=f"{config.output_dir} and {pattern}",
                remedy="Choose an --output_dir elsewhere.",
            )


def _inspect_text(config: FirstModelConfig) -> dict[str, Any]:
    """Reads the text as the builder does; see `data_prep.inspect_text`.

    Raises:
        SystemExit: If the text cannot be read: the command has said why.
        UserError: If there is too little text.
    """
    command = ["-m", "data_prep.inspect_text", *corpus_flags(config)]
    done = subprocess.run(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        env=jobs.environment(),
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    text = json.loads(done.stdout)
    smallest, advice = SMALLEST_CONTINUED, ""
    if not config.init_checkpoint:
        smallest, advice = (
            SMALLEST_TEXT,
            (
                f" Or continue a trained model, with {SMALLEST_CONTINUED:,} "
                "characters: --init_checkpoint=albert_mini_en."
            ),
        )
    if text["characters"] < smallest:
        raise UserError(
            f"input_file must hold at least {smallest:,} characters of text",
            received=f"{text['characters']:,} in {text['files']} files",
            remedy=f"Give more text.{advice}",
        )
    return text


def check_accelerator() -> None:
    """Refuses a GPU that TensorFlow cannot use: it would train on the CPU."""
    if not devices.find_gpus() or devices.find_chips():
        return
    code = (
        "import tensorflow as tf; "
        "print(len(tf.config.list_physical_devices('GPU')))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout.strip() in ("", "0"):
        raise UserError(
            "TensorFlow must be able to use the GPU of this machine",
            received=f"{', '.join(devices.find_gpus())}, of which it uses none",
            remedy="docs/gpu.md has the packages. CUDA_VISIBLE_DEVICES= trains "
            "on the CPU.",
        )


def read_state(config: FirstModelConfig) -> dict[str, Any]:
    """What is stored, or a new state.

    Until the training begins, settings may change; then, only more minutes may
    be given.
    """
    path = f"{config.output_dir}/first_model.json"
    state = files.load_json_if_any(path)
    settings = config.result_settings()
    changes = differences(state["settings"], settings) if state else []
    if state and not changes:
        return state
    if state and has_trained(config.output_dir):
        before = state["settings"]
        more = {**before, "minutes": max(before["minutes"], config.minutes)}
        if more == settings:
            return _give_more_time(config, state)
        raise UserError(
            "output_dir must not hold a first model of other settings",
            received=path,
            remedy=f"{name_faults(changes)}. Choose another --output_dir.",
        )
    check_accelerator()
    text, device = _inspect_text(config), find_device()
    return {
        "settings": settings,
        "text": text,
        "device": device,
        "plan": make_plan(config, text, device)._asdict(),
        # Vocabulary and records of a start with other settings.
        "overwrite": state is not None,
        "seconds": 0.0,
        "round": 0,
        "start": config.init_checkpoint,
        "is_complete": False,
    }


def _give_more_time(
    config: FirstModelConfig, state: dict[str, Any]
) -> dict[str, Any]:
    """Lets a complete model go on from its last constant learning rate."""
    state = {**state, "settings": config.result_settings()}
    if not state["is_complete"]:
        return state
    suffix = f"_{state['round']}" if state["round"] else ""
    length = state["plan"]["lengths"][-1]
    planned = make_plan(config, state["text"], Device(*state["device"]))
    return {
        **state,
        "plan": {**state["plan"], "dropout": planned.dropout},
        "round": state["round"] + 1,
        "start": f"{config.output_dir}/runs/{length}_tokens{suffix}",
        "is_complete": False,
    }


def main(config: FirstModelConfig) -> int:
    """Makes the model, or what is missing of it; returns the exit status."""
    config.require("input_file", "output_dir")
    _check_places(config)
    state = read_state(config)
    print("\n".join(state["plan"]["facts"]), flush=True)
    if config.dry_run:
        return 0
    os.makedirs(config.output_dir, exist_ok=True)
    with lock(config.output_dir):
        return FirstModel(config.output_dir, state).make()


if __name__ == "__main__":
    flags.run(main, FirstModelConfig)
