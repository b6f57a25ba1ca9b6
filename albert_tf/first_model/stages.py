"""The stages of a first model, in one process: from text to its page.

    python -m albert_tf.first_model.stages --output_dir=my_albert

`albert_tf.first_model` starts and watches this module. It reads
first_model.json, and goes on from what an interrupted process has made.
"""

import contextlib
import importlib
import io
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import threading
import time
import typing
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from albert_tf.cluster import devices, versions
from albert_tf.config import FirstModelConfig, flags
from albert_tf.errors import UserError
from albert_tf.first_model.plan import Plan
from albert_tf.first_model.verdict import draw, judge, write_page
from albert_tf.io import files, jobs, shipped
from albert_tf.records.tokenization import Tokenizer

# Shares of the time of training at a constant learning rate, of the longest
# examples and of all shorter ones. The decay of the rate has the rest.
LONGEST_SHARE, SHORTER_SHARE = 0.15, 0.4
# Time of the start of the decay, and of evaluation, export, masks and curves
# after it, as a multiple of the start of the first stage.
END = 3
RESERVE = 0.03  # of all time, never planned
LATE = 1.1  # a decay that takes this multiple of its time is stopped
SMALLEST_TRAINING = 30  # seconds
ENDLESS = 10_000_000  # steps; the time ends such a stage
PRETRAIN = "albert_tf.run_pretraining"


class Stages:
    """Makes what is missing of a first model.

    Args:
        directory: Of the first model.
        state: The content of its first_model.json.
    """

    def __init__(self, directory: str, state: dict[str, Any]) -> None:
        self.dir, self.state = directory, state
        self.plan = Plan(**state["plan"])
        self.suffix = f"_{state['round']}" if state["round"] else ""
        self.commands: list[str] = []  # in order, for the page
        self.seconds = state["settings"]["minutes"] * 60
        self._began = time.monotonic() - state["seconds"]
        self._start_up = 0.0  # of the first training, in seconds
        self._is_over = threading.Event()  # whether a stage has used its time
        signal.signal(signal.SIGTERM, self._terminate)

    def make(self) -> None:
        """Runs the stages, and prints the results."""
        plan, replace = self.plan, f"--overwrite={self.state['overwrite']}"
        # Later, the text may have grown.
        prepare = self._note if has_trained(self.dir) else self._call
        if plan.vocabulary_flags:
            prepare(
                "data_prep.train_tokenizer", *plan.vocabulary_flags, replace
            )
            if self.state["settings"].get("symbols"):
                vocabulary = Tokenizer(f"{self.dir}/vocabulary/spm.model")
                size = f"--model=vocab_size={vocabulary.vocab_size}"
                plan = plan._replace(
                    training_flags=[*plan.training_flags, size]
                )
                self.plan = plan
        for length in plan.lengths:
            prepare(
                "data_prep.build_tfrecords",
                *plan.records_flags,
                *plan.shape_flags(length),
                f"--output_dir={self.dir}/records/{length}",
                replace,
            )
        figures = self._compare_simple_models()
        devices.skip_metadata_query_without_chips()
        versions.import_tensorflow()
        start = self.state["start"]
        before = {}
        if start:
            name = f"before{self.suffix}"
            before = self._once(name, self._evaluate_initial)
        names = self._train_stages(start)
        self._show(names, before, figures)

    def _used(self) -> float:
        """Seconds so far, also of interrupted processes."""
        return time.monotonic() - self._began

    def _left(self) -> float:
        return self.seconds * (1 - RESERVE) - self._used()

    # --- training -------------------------------------------------------------

    def _train_stages(self, start: str) -> list[str]:
        """Trains on examples of each length, then decays; returns the names."""
        # The shares of the stages stay the same after an interruption.
        found = self._once(f"time{self.suffix}", self._time_to_train)
        total = found["seconds"]
        lengths = self.plan.lengths[-1 if self.state["round"] else 0 :]
        names = []
        for length in lengths:
            share = LONGEST_SHARE
            if length != lengths[-1]:
                share = SHORTER_SHARE / (len(lengths) - 1)
            name = f"{length}_tokens{self.suffix}"
            self._train(name, length, start, share * total)
            start = f"{self.dir}/runs/{name}"
            names.append(name)
        rows = self._metrics(names[-1])
        steady = rows[len(rows) // 2 :]
        speed = len(steady) / sum(1 / row["steps_per_second"] for row in steady)
        left = self._left() - END * self._start_up
        num_steps = max(50, int(left * speed))
        name = f"decay{self.suffix}"
        begun = files.load_json_if_any(f"{self.dir}/runs/{name}/config.json")
        if begun:  # by an interrupted process
            num_steps = begun["training"]["num_train_steps"]
        allowed = max(1, LATE * left + self._start_up)
        self._train(name, lengths[-1], start, allowed, num_steps)
        return [*names, name]

    def _time_to_train(self) -> dict[str, float]:
        left = self._left()
        if left < SMALLEST_TRAINING:
            raise UserError(
                "minutes must leave time to train",
                received=f"{self.seconds / 60:g}, with {left:.0f} s left",
                remedy="Give more --minutes.",
            )
        return {"seconds": left}

    def _train(
        self,
        name: str,
        length: int,
        start: str,
        seconds: float,
        num_steps: int = ENDLESS,
    ) -> None:
        """Trains for some time at a constant rate, or for the decay's steps."""
        is_first = start == self.state["settings"]["init_checkpoint"]
        arguments = [
            *self.plan.training_flags,
            *self.plan.shape_flags(length),
            f"--input_file={self.dir}/records/{length}/train/*.tfrecord",
            f"--output_dir={self.dir}/runs/{name}",
            f"--global_batch_size={max(1, self.plan.batch_tokens // length)}",
            f"--dropout_schedule=0:{0.0 if is_first else self.plan.dropout:g}",
            "--save_checkpoints_steps=1000",
            f"--num_warmup_steps={0 if start else 50}",
            # Else, the decay would begin with the examples just read.
            f"--seed={zlib.crc32(name.encode())}",
        ]
        if length < self.plan.lengths[-1]:
            # The next stage repeats these positions, which is a better start
            # for the further ones than random values.
            arguments.append(f"--model=max_position_embeddings={length}")
        if start:
            arguments.append(f"--init_checkpoint={start}")
        if not is_first:
            arguments.append("--init_optimizer_state")
        if num_steps == ENDLESS:
            arguments.append("--poly_power=0")
            # Less the time of an interrupted process.
            seconds -= sum(row["loop_seconds"] for row in self._metrics(name))
        else:
            arguments += self._eval_flags()
        arguments.append(f"--num_train_steps={num_steps}")
        if seconds > 0 or not self._metrics(name):
            with self._limit(name, seconds):
                self._call(PRETRAIN, *arguments)
        else:
            self._note(PRETRAIN, *arguments)
        # The command on the page trains as many steps as the time allowed.
        last = self._metrics(name)[-1]["step"]
        self.commands[-1] = self.commands[-1].replace(
            f"--num_train_steps={num_steps}", f"--num_train_steps={last}"
        )

    @contextlib.contextmanager
    def _limit(self, name: str, seconds: float) -> Iterator[None]:
        """Asks the training in the block to stop when its time is over."""
        began, ended = time.monotonic(), threading.Event()

        def watch() -> None:
            while not ended.wait(0.5):
                passed = time.monotonic() - began
                if not self._metrics(name):
                    continue  # also a slow machine trains some steps
                self._start_up = self._start_up or passed
                if passed > seconds:
                    self._is_over.set()
                    os.kill(os.getpid(), signal.SIGTERM)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            self._is_over.clear()

    def _terminate(self, *_: object) -> None:
        """Handles SIGTERM while no training listens to it."""
        if not self._is_over.is_set():
            sys.exit(128 + signal.SIGTERM)

    def _eval_flags(self) -> list[str]:
        records = f"{self.dir}/records/{self.plan.lengths[-1]}"
        return [
            f"--eval_input_file={records}/eval/*.tfrecord",
            "--eval_batch_size=64",
            "--max_eval_steps=0",
        ]

    def _evaluate(self, run_dir: str) -> dict[str, float]:
        """Metrics of a model on the held-out examples."""
        printed = self._call(
            PRETRAIN,
            *self.plan.training_flags,
            *self.plan.shape_flags(self.plan.lengths[-1]),
            *self._eval_flags(),
            "--mode=eval",
            f"--output_dir={run_dir}",
        )
        return json.loads(printed.splitlines()[-1])

    def _evaluate_initial(self) -> dict[str, float]:
        """Metrics of the model whose training continues."""
        run = shipped.find(self.state["start"], shipped.MODEL)
        if not os.path.exists(f"{run}/checkpoints"):
            source, run = run, f"{self.dir}/runs/start"
            if not os.path.exists(run):
                self._call(
                    "albert_tf.convert_checkpoint",
                    f"--from={source}",
                    f"--to={run}",
                )
        return self._evaluate(run)

    def _metrics(self, name: str, split: str = "train") -> list[dict[str, Any]]:
        """The lines of the log of a training."""
        # Imports TensorFlow.
        from albert_tf.runs.log import read_metrics

        rows = read_metrics(f"{self.dir}/runs/{name}")
        return [row for row in rows if row["split"] == split]

    def _once(
        self, name: str, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """What a function has returned at its first call, also interrupted."""
        path = f"{self.dir}/{name}.json"
        if not os.path.exists(path):
            files.write_json(path, make())
        return files.load_json(path)

    # --- commands -------------------------------------------------------------

    def _note(self, module: str, *arguments: str) -> None:
        """Adds a command to those of the page."""
        words = ["python", "-m", module.removesuffix(".__main__"), *arguments]
        self.commands.append(shlex.join(words))

    def _call(self, module: str, *arguments: str) -> str:
        """Calls a command in this process; returns what it prints."""
        self._note(module, *arguments)
        main = importlib.import_module(module).main
        config_class = typing.get_type_hints(main)["config"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = main(flags.parse_line(config_class, arguments))
        if status and not self._is_over.is_set():
            sys.exit(status)
        return printed.getvalue()

    def _compare_simple_models(self) -> dict[str, Any]:
        """Losses of frequencies and 5-grams, and sentences to fill."""
        records = f"{self.dir}/records/{self.plan.lengths[-1]}"
        command = (
            "data_prep.ngram_baselines",
            f"--input_file={records}/train/*.tfrecord",
            f"--eval_input_file={records}/eval/*.tfrecord",
        )
        self._note(*command)

        def run() -> dict[str, Any]:
            # In a process of its own, since it hides accelerators.
            printed = subprocess.check_output(
                [sys.executable, "-m", *command],
                env=jobs.environment(),
                text=True,
            )
            return json.loads(printed)

        return self._once("baselines", run)

    # --- results --------------------------------------------------------------

    def _show(
        self,
        names: Sequence[str],
        before: dict[str, float],
        figures: dict[str, Any],
    ) -> None:
        """Exports and judges the model; writes and prints the results."""
        run_dir = f"{self.dir}/runs/{names[-1]}"
        saved_model = f"{self.dir}/saved_model{self.suffix}"
        training = [self._metrics(name) for name in names]
        steps = [rows[-1]["step"] for rows in training]
        held_out = (self._metrics(names[-1], "eval") or [{"step": 0}])[-1]
        if held_out["step"] < steps[-1]:  # the decay was stopped
            held_out = self._evaluate(run_dir)
        if not os.path.exists(saved_model):
            self._call(
                "albert_tf.export_saved_model",
                f"--run_dir={run_dir}",
                f"--export_dir={saved_model}",
            )
        sentences, filled = figures.pop("sentences"), ""
        if sentences:
            filled = self._call(
                "albert_tf.predict",
                f"--saved_model_dir={saved_model}",
                *[f"--text={sentence['text']}" for sentence in sentences],
            )
        loss, accuracy = (
            held_out[f"masked_lm_{name}"] for name in ("loss", "accuracy")
        )
        verdict = judge(
            loss,
            figures,
            training,
            self._used() / 60,
            before.get("masked_lm_loss"),
        )
        seconds = sum(row["loop_seconds"] for rows in training for row in rows)
        summary = {
            "verdict": verdict.text,
            "advice": verdict.advice,
            "masked_lm_loss": loss,
            "masked_lm_accuracy": accuracy,
            "before": before,
            **figures,
            "minutes": round(self._used() / 60, 2),
            "training_minutes": round(seconds / 60, 2),
            "examples": self.plan.lengths[-1],
            "steps": dict(zip(names, steps, strict=True)),
            # Of this directory; see io/shipped.
            "model": f"runs/{names[-1]}",
            "saved_model": f"saved_model{self.suffix}",
        }
        words = [sentence["word"] for sentence in sentences]
        stages = dict(zip(names, training, strict=True))
        draw(stages, summary, f"{self.dir}/curves.png")
        write_page(
            self.dir, summary, self.plan.facts, filled, words, self.commands
        )
        was = f" (before: {before['masked_lm_loss']:.3f})" if before else ""
        print(
            f"{filled}\npage: {self.dir}/index.html\nmodel: {run_dir}\n"
            f"SavedModel: {saved_model}\n"
            f"masked-LM loss {loss:.3f}{was}, {accuracy:.1%} right; "
            f"frequency of the pieces: {figures['unigram_loss']:.3f}; "
            f"5-grams: {figures['five_gram_loss']:.3f}\n"
            f"The model is {verdict.text}. {verdict.advice}"
        )
        files.write_json(f"{self.dir}/summary.json", summary)


def has_trained(directory: str) -> bool:
    """Whether a training of the first model in a directory has done a step."""
    return any(pathlib.Path(directory).glob("runs/*/metrics.jsonl"))


def main(config: FirstModelConfig) -> None:
    """Runs the stages in the directory that --output_dir names."""
    config.require("output_dir")
    state = files.load_json(f"{config.output_dir}/first_model.json")
    Stages(config.output_dir, state).make()


if __name__ == "__main__":
    flags.run(main, FirstModelConfig)
