r"""Make a first model from a folder of text, within a given time.

    python -m albert_tf.first_model \
      --input_file='my/*.txt' --output_dir=my_albert --minutes=10

trains a vocabulary; builds records of short and of longer examples, with
held-out documents; trains on the short ones, then on the longer ones, to the
end of the decay of the learning rate; compares the model with the frequency of
the pieces and with 5-grams; exports a SavedModel; and fills masks in held-out
sentences. OUTPUT_DIR/index.html shows the verdict, the results, and every
command, to repeat and change it. summary.json has the figures.

More minutes give a better model. On a machine with a GPU or a TPU, the same
command trains a larger one; `--dry_run` prints what it would do. To continue
the training of a model on your text, with its vocabulary:

    python -m albert_tf.first_model \
      --input_file='my/*.txt' --output_dir=my_albert --minutes=10 \
      --init_checkpoint=albert_mini_en

The same command continues after Ctrl-C or a crash, with the rest of the time.

Exit status: 0 when the model is complete; 3 when it is complete, but not better
than the frequency of the pieces; 1 for an error; 130 (Ctrl-C) or 143 (SIGTERM)
when interrupted.
"""

import contextlib
import json
import math
import os
import pathlib
import re
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from albert_tf.config import FirstModelConfig, flags
from albert_tf.errors import UserError, describe_end, name_faults
from albert_tf.first_model.plan import make_plan, measure_text
from albert_tf.first_model.verdict import WORSE, judge, write_page
from albert_tf.io import files, jobs
from albert_tf.io.artifact import differences, lock

EXIT_WORSE = 3  # than the frequency of the pieces

# Shares of the training time: short examples, then longer ones, both at a
# constant learning rate; the decay has the rest.
SHORT_SHARE, LONG_SHARE = 0.4, 0.15
SMALLEST_TRAINING = 30  # seconds
# Time after the decay, as a multiple of the start-up of a training: export,
# masks and curves. A part of the time is never planned.
TAIL, RESERVE = 2.5, 0.03
ENDLESS = 10_000_000  # steps; the time ends such a stage
PROGRESS_SECONDS = 15.0


class FirstModel:
    """A first model in its directory.

    Attributes:
        state: What is stored in `first_model.json`: `settings`; `num_bytes` of
            the text, which may grow between two starts; `overwrite`, whether
            to replace vocabulary and records; `seconds`, the time
            used so far; and by stage, its `command`, its `output` when it has
            ended, and its `seconds`.
    """

    def __init__(self, config: FirstModelConfig, state: dict[str, Any]) -> None:
        self.config, self.state = config, state
        self.plan = make_plan(config, state["num_bytes"])
        self.dir = config.output_dir
        self._ticked = self._reported = time.monotonic()

    # --- stages ---------------------------------------------------------------

    def make(self) -> int:
        """Makes what is missing, stage by stage; returns the exit status."""
        plan, runs = self.plan, f"{self.dir}/runs"
        if plan.vocabulary_flags:
            self._run(
                "vocabulary",
                "data_prep.train_tokenizer",
                *plan.vocabulary_flags,
                f"--overwrite={self.state['overwrite']}",
            )
        for length in plan.lengths:
            self._records(length)
        records = f"{self.dir}/records/{plan.lengths[-1]}"
        baselines = self._run(
            "baselines",
            "data_prep.ngram_baselines",
            f"--input_file={records}/train/*.tfrecord",
            f"--eval_input_file={records}/eval/*.tfrecord",
        )
        figures = json.loads(baselines)
        names = self._train_stages()
        saved_model = f"{self.dir}/saved_model"
        if not os.path.exists(saved_model):
            self._run(
                "export",
                "albert_tf.export_saved_model",
                f"--run_dir={runs}/decay",
                f"--export_dir={saved_model}",
            )
        texts = [f"--text={s['text']}" for s in figures["sentences"]]
        filled = ""
        if texts:
            filled = self._run(
                "fill_masks",
                "albert_tf.predict",
                f"--saved_model_dir={saved_model}",
                *texts,
            )
        self._run(
            "curves",
            "albert_tf.report",
            f"--run_dirs={','.join(f'{runs}/{name}' for name in names)}",
            f"--output_file={self.dir}/curves.png",
        )
        return self._write_results(figures, filled, names)

    def _train_stages(self) -> list[str]:
        """Trains on examples of each length, then decays; returns the names."""
        # The shares of the stages stay the same after an interruption.
        total = self.config.minutes * 60 * (1 - RESERVE)
        rest = total - self.state["seconds"]
        rest = self.state.setdefault("training_seconds", rest)
        if rest < SMALLEST_TRAINING:
            del self.state["training_seconds"]
            self._save()
            raise UserError(
                "minutes must leave time to train after vocabulary and records",
                received=f"{self.config.minutes:g}, which leaves {rest:.0f} s",
                remedy="Give more --minutes.",
            )
        lengths = self.plan.lengths
        shares = (SHORT_SHARE, LONG_SHARE)[-len(lengths) :]
        start, names = self.config.init_checkpoint, list[str]()
        for length, share in zip(lengths, shares, strict=True):
            name = f"{length}_tokens"
            self._train(name, length, start, seconds=share * rest)
            start = f"{self.dir}/runs/{name}"
            names.append(name)
        start_up, speed = self._pace(names[-1])
        left = total - self.state["seconds"] - (1 + TAIL) * start_up
        num_steps = self._stage("decay").setdefault(
            "num_steps", max(50, int(left * speed))
        )
        self._train("decay", lengths[-1], start, num_steps=num_steps)
        return [*names, "decay"]

    def _records(self, length: int) -> None:
        """Builds records; of few documents, the held-out fraction grows."""
        fraction = self.state.setdefault(
            "holdout_fraction", self.plan.holdout_fraction
        )
        try:
            self._run(
                f"records_{length}",
                "data_prep.build_tfrecords",
                *self.plan.records_flags,
                f"--overwrite={self.state['overwrite']}",
                *_shape(length),
                f"--output_dir={self.dir}/records/{length}",
                f"--holdout_fraction={fraction:.3g}",
            )
        except UserError as error:
            if "holdout_fraction" not in str(error) or fraction > 0.3:
                raise
            self.state["holdout_fraction"] = 2 * fraction
            self._records(length)

    def _train(
        self,
        name: str,
        length: int,
        start: str,
        seconds: float = 0.0,
        num_steps: int = 0,
    ) -> None:
        """Trains for some time at a constant rate, or for the decay's steps."""
        records = f"{self.dir}/records/{length}"
        is_first = start == self.config.init_checkpoint
        dropout = 0.0 if is_first else self.plan.dropout
        flags_ = [
            *self.plan.training_flags,
            f"--input_file={records}/train/*.tfrecord",
            f"--output_dir={self.dir}/runs/{name}",
            *_shape(length),
            f"--global_batch_size={max(1, self.plan.batch_tokens // length)}",
            f"--dropout_schedule=0:{dropout:g}",
            "--save_checkpoints_steps=1000",
            f"--num_warmup_steps={0 if start else 50}",
        ]
        if length < self.plan.lengths[-1]:
            # The next stage repeats these positions, which is a better start
            # for the further ones than random values.
            flags_.append(f"--model=max_position_embeddings={length}")
        if start:
            flags_.append(f"--init_checkpoint={start}")
        if not is_first:
            flags_.append("--init_optimizer_state")
        if num_steps:
            flags_ += [
                f"--eval_input_file={records}/eval/*.tfrecord",
                "--eval_batch_size=64",
                "--max_eval_steps=0",
                f"--eval_every_n_steps={max(1, num_steps // 4)}",
                f"--num_train_steps={num_steps}",
            ]
        else:
            flags_ += ["--poly_power=0", f"--num_train_steps={ENDLESS}"]
        self._run(name, "albert_tf.run_pretraining", *flags_, seconds=seconds)
        # The command on the page trains as many steps as the time allowed.
        stage, last = self._stage(name), self._metrics(name, "train")[-1]
        stage["command"] = stage["command"].replace(
            f"--num_train_steps={ENDLESS}", f"--num_train_steps={last['step']}"
        )

    # --- commands -------------------------------------------------------------

    def _stage(self, name: str) -> dict[str, Any]:
        return self.state["stages"].setdefault(name, {"seconds": 0.0})

    def _run(
        self, name: str, module: str, *arguments: str, seconds: float = 0.0
    ) -> str:
        """Runs a command, unless it has finished; returns what it prints.

        Args:
            seconds: Time for the stage, interruptions included; 0: no limit.
        """
        stage = self._stage(name)
        if "output" in stage:
            return stage["output"]
        command = ["-m", module, *arguments]
        stage["command"] = shlex.join(["python", *command])
        log = f"{self.dir}/logs/{name}.log"
        output = f"{self.dir}/logs/{name}.out"
        try:
            status = jobs.run(
                name,
                [sys.executable, *command],
                log,
                output,
                is_over=lambda: self._is_over(name, seconds),
                has_progress=lambda: not seconds or self._has_trained(name),
            )
        finally:
            self._save()
        lines = pathlib.Path(log).read_text(errors="replace").splitlines()
        lines = [line for line in lines if line.strip()] or ["no message"]
        if status:
            raise UserError(
                f"{name}: the command must succeed",
                received=f"{describe_end(status)}: {lines[-1]}",
                remedy=f"See {log}. The same command goes on from here. Flags "
                "of commands that read the text: --text_flags.",
            )
        for line in lines:
            # Warnings of absl, but for those of our own request to stop.
            if re.match(r"W\d{4} ", line) and "SIGTERM" not in line:
                logging.warning("%s: %s", name, line.partition("] ")[2])
        stage["output"] = pathlib.Path(output).read_text(errors="replace")
        self._save()
        return stage["output"]

    def _save(self) -> None:
        files.write_json(f"{self.dir}/first_model.json", self.state)

    def _has_trained(self, name: str) -> bool:
        return bool(self._metrics(name, "train"))

    def _is_over(self, name: str, seconds: float) -> bool:
        """Counts and reports the time of a stage; whether it is over."""
        stage, now = self._stage(name), time.monotonic()
        passed, self._ticked = now - self._ticked, now
        self.state["seconds"] += passed
        stage["seconds"] += passed
        if now - self._reported > PROGRESS_SECONDS:
            self._reported = now
            self._save()
            self._report(name)
        # Also a slow machine trains some steps.
        return 0 < seconds <= stage["seconds"] and self._has_trained(name)

    def _report(self, name: str) -> None:
        """Logs how far a stage and everything is."""
        used, stage = self.state["seconds"] / 60, self._stage(name)
        parts = [f"{name}: {used:.1f} of {self.config.minutes:g} minutes"]
        for row in self._metrics(name, "train")[-1:]:
            of = f"/{stage['num_steps']:,}" if "num_steps" in stage else ""
            parts.append(f"step {row['step']:,}{of}")
            parts.append(f"loss {row['masked_lm_loss']:.3f}")
            parts.append(f"{row['steps_per_second']:.1f} steps/s")
        logging.info("%s", " | ".join(parts))

    def _metrics(self, name: str, split: str) -> list[dict[str, Any]]:
        """The log of a training, without a line that is not complete."""
        rows = []
        path = pathlib.Path(f"{self.dir}/runs/{name}/metrics.jsonl")
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
        return [row for row in rows if row["split"] == split]

    def _pace(self, name: str) -> tuple[float, float]:
        """Seconds of the start-up of a training, and its steps per second."""
        rows = self._metrics(name, "train")
        trained = sum(row["loop_seconds"] for row in rows)
        steady = rows[len(rows) // 2 :]
        speed = len(steady) / sum(1 / row["steps_per_second"] for row in steady)
        return max(5.0, self._stage(name)["seconds"] - trained), speed

    # --- results --------------------------------------------------------------

    def _write_results(
        self, figures: dict[str, Any], filled: str, names: Sequence[str]
    ) -> int:
        """Judges the model, shows the results; returns the exit status."""
        words = [sentence["word"] for sentence in figures.pop("sentences")]
        held_out = self._metrics("decay", "eval")[-1]
        loss = held_out["masked_lm_loss"]
        accuracy = held_out["masked_lm_accuracy"]
        training = [self._metrics(name, "train") for name in names]
        steps = [rows[-1]["step"] for rows in training]
        verdict = judge(loss, figures, training, self.config.minutes)
        summary = {
            "verdict": verdict.text,
            "advice": verdict.advice,
            "masked_lm_loss": loss,
            "masked_lm_accuracy": accuracy,
            **figures,
            "minutes": round(self.state["seconds"] / 60, 2),
            "examples": self.plan.lengths[-1],
            "steps": dict(zip(names, steps, strict=True)),
        }
        files.write_json(f"{self.dir}/summary.json", summary)
        commands = [s["command"] for s in self.state["stages"].values()]
        write_page(self.dir, summary, self.plan.facts, filled, words, commands)
        print(
            f"{filled}\npage: {self.dir}/index.html\n"
            f"model: {self.dir}/runs/decay\n"
            f"SavedModel: {self.dir}/saved_model\n"
            f"masked-LM loss {loss:.3f} ({accuracy:.1%}); "
            f"frequency of the pieces: {figures['unigram_loss']:.3f}; "
            f"5-grams: {figures['five_gram_loss']:.3f}\n"
            f"The model is {verdict.text}. {verdict.advice}"
        )
        return EXIT_WORSE if verdict.text == WORSE else 0


def _shape(length: int) -> tuple[str, str]:
    """Flags of records of this length, and of the training on them."""
    return (
        f"--max_seq_length={length}",
        f"--max_predictions_per_seq={math.ceil(0.15 * length)}",
    )


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


def _read_state(config: FirstModelConfig) -> dict[str, Any]:
    """What is stored; until the training begins, settings may change."""
    path = f"{config.output_dir}/first_model.json"
    state = files.load_json_if_any(path)
    settings = config.result_settings()
    changes = differences(state["settings"], settings) if state else []
    if state and not changes:
        return state
    if state and "training_seconds" in state:
        raise UserError(
            "output_dir must not hold a first model of other settings",
            received=path,
            remedy=f"{name_faults(changes)}. Choose another --output_dir.",
        )
    return {
        "settings": settings,
        "num_bytes": measure_text(config),
        # Vocabulary and records of a start with other settings.
        "overwrite": state is not None,
        "seconds": 0.0,
        "stages": {},
    }


def main(config: FirstModelConfig) -> int:
    """Makes the model, or what is missing of it; returns the exit status."""
    config.require("input_file", "output_dir")
    _check_places(config)
    state = _read_state(config)
    model = FirstModel(config, state)
    print("\n".join(model.plan.facts))
    if config.dry_run:
        return 0
    os.makedirs(f"{config.output_dir}/logs", exist_ok=True)
    with lock(config.output_dir):
        return model.make()


if __name__ == "__main__":
    flags.run(main, FirstModelConfig)
