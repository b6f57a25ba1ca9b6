r"""Make a first model from a folder of text, within a given time.

    python -m albert_tf.first_model \
      --input_file='my/*.txt' --output_dir=my_albert --minutes=10

looks at the text; trains a vocabulary; builds records of short and of longer
examples, with held-out documents; trains on the short ones, then on the longer
ones, to the end of the decay of the learning rate; compares the model with the
frequency of the pieces and with 5-grams; exports a SavedModel; and fills masks
in held-out sentences. OUTPUT_DIR/index.html shows the results, and every
command, to repeat and change it. summary.json has the figures.

More minutes give a better model. On a machine with a GPU or a TPU, the same
command trains a larger one; `--dry_run` prints what it would do. To continue
the training of a model on your text, with its vocabulary:

    python -m albert_tf.first_model \
      --input_file='my/*.txt' --output_dir=my_albert --minutes=10 \
      --init_checkpoint=albert_mini_en

The same command continues after Ctrl-C or a crash, with the rest of the time.

Exit status: 0 when the model is complete; 1 for an error; 130 (Ctrl-C) or 143
(SIGTERM) when interrupted.
"""

import base64
import bz2
import contextlib
import dataclasses
import glob
import gzip
import html
import json
import lzma
import math
import os
import pathlib
import re
import shlex
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import logging

from albert_tf.cluster import devices
from albert_tf.cluster.jobs import Job, Jobs
from albert_tf.config import FirstModelConfig, flags
from albert_tf.config.model import override_types
from albert_tf.errors import UserError, describe_end, name_faults
from albert_tf.io import files, shipped
from albert_tf.io.artifact import differences, lock

STATE_FILE = "first_model.json"

SAMPLE_BYTES = 1 << 20
# Below this size, a vocabulary and a model from random weights learn nothing.
SMALLEST_TEXT, SMALLEST_CONTINUED_TEXT = 200_000, 10_000
# Mean number of characters above which lines are paragraphs, not sentences.
PARAGRAPH = 300
HELD_OUT_BYTES = 500_000

# Shares of the training time: short examples, then longer ones, both at a
# constant learning rate; the decay has the rest.
SHORT_SHARE, LONG_SHARE = 0.4, 0.15
SMALLEST_TRAINING = 30  # seconds
# Time after the decay, as a multiple of the start-up of a training: export,
# masks and curves. A part of the time is never planned.
TAIL, RESERVE = 2.5, 0.03
# Passes over the text from which on a model learns it by heart, unless after
# the first stage it has dropout.
MANY_EPOCHS, DROPOUT = 60, 0.1
ENDLESS = 10_000_000  # steps; the time ends such a stage
SAVING_SECONDS, PROGRESS_SECONDS = 3.0, 15.0


class Recipe(NamedTuple):
    """What is trained on a kind of device."""

    architecture: str  # the name of a file of configs/models
    num_layers: int  # they share their weights
    lengths: tuple[int, ...]  # tokens of the short and the longer examples
    batch_tokens: int  # in a step
    max_vocab_size: int
    flags: tuple[str, ...]  # of the training


# Chosen by the measurements in docs/log.md. Those of GPU and TPU follow the
# paper's architecture, and have not been tried.
_ADAMW = ("--optimizer=adamw", "--beta_2=0.98", "--learning_rate=0.001")
_LARGE = (
    *("--optimizer=muon", "--beta_2=0.98", "--learning_rate=0.0005"),
    "--precision=mixed_bfloat16",
)
RECIPES = {
    "cpu": Recipe("albert_mini", 1, (16, 64), 1024, 4000, _ADAMW),
    "gpu": Recipe("albert_base_v2", 12, (64, 128), 32_768, 30_000, _LARGE),
    "tpu": Recipe("albert_base_v2", 12, (64, 128), 131_072, 30_000, _LARGE),
}
_CONTINUED = ("--optimizer=adamw", "--beta_2=0.98", "--learning_rate=0.0005")


class Text(NamedTuple):
    """What was found in the text."""

    num_files: int
    num_bytes: int  # compressed files count threefold
    line_length: float  # mean number of characters of a line that is not blank
    many_characters: bool  # whether the script has thousands of characters


def look(config: FirstModelConfig) -> Text:
    """Reads the beginnings of the files.

    Raises:
        UserError: If there is no text, or too little.
    """
    patterns = _patterns(config)
    paths = files.find_all(
        "input_file",
        patterns,
        "*",
        "Example: --input_file='my/*.txt', or 'my/**' to read the folders in "
        "it, too.",
    )
    found = {p for q in patterns if "**" not in q for p in glob.glob(q)}
    if folders := sorted(filter(os.path.isdir, found)):
        logging.warning(
            "not reading the folders %s: --input_file='%s/**' reads them, too",
            name_faults(folders),
            os.path.dirname(folders[0]) or ".",
        )
    sizes = [
        os.path.getsize(p) * (3 if p.endswith((".zst", *_OPENERS)) else 1)
        for p in paths
    ]
    needed, remedy = SMALLEST_CONTINUED_TEXT, "Give more text."
    if not config.init_checkpoint:
        needed = SMALLEST_TEXT
        remedy = (
            "Give more text, or continue a trained model: "
            "--init_checkpoint=models/albert_mini_en."
        )
    if sum(sizes) < needed:
        raise UserError(
            f"input_file must hold at least {needed:,} bytes of text",
            received=f"{sum(sizes):,} bytes in {len(paths)} files",
            remedy=remedy,
        )
    samples = [_beginning(path) for path in paths[:: len(paths) // 8 or 1]]
    lines = _strip("\n".join(samples))
    if any(samples) and not lines:
        raise UserError("input_file must hold text", received="blank lines")
    texts = [_read_text(line, config.text_field) for line in lines]
    lines = _strip("\n".join(texts))
    letters = [c for line in lines for c in line[:100] if c.isalpha()]
    return Text(
        len(paths),
        sum(sizes),
        sum(map(len, lines)) / max(1, len(lines)),
        sum(0x2E80 <= ord(c) < 0xAC00 for c in letters) > len(letters) / 3,
    )


def _patterns(config: FirstModelConfig) -> list[str]:
    """The patterns of the text; a directory stands for its files."""
    return [
        os.path.join(glob.escape(p), "*") if os.path.isdir(p) else p
        for p in config.input_file
    ]


_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def _beginning(path: str) -> str:
    """The first lines; none of a damaged file, which a command names."""
    opened: Any = _OPENERS.get(os.path.splitext(path)[1], open)
    damage = (OSError, EOFError, lzma.LZMAError, zlib.error)
    with contextlib.suppress(*damage), opened(path, "rb") as file:
        content = file.read(SAMPLE_BYTES // 8)
        if not path.endswith(".zst"):
            content = content.rpartition(b"\n")[0] or content
            return content.decode("utf-8-sig", errors="replace")
    return ""


def _strip(text: str) -> list[str]:
    """The lines that are not blank."""
    return [line for line in map(str.strip, text.splitlines()) if line]


def _read_text(line: str, field: str) -> str:
    """The text of a line, which may be a JSON object."""
    if not line.startswith("{"):
        return line
    with contextlib.suppress(ValueError):
        text = json.loads(line).get(field)
        return text if isinstance(text, str) else ""
    return ""


def find_accelerator(config: FirstModelConfig) -> str:
    """The kind of device that the training will use, "cpu", "gpu" or "tpu"."""
    if config.accelerator != "auto":
        return config.accelerator
    if devices.find_chips():
        return "tpu"
    return "gpu" if any(pathlib.Path("/dev").glob("nvidia[0-9]*")) else "cpu"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first command.

    Attributes:
        facts: What was found and decided, one line for each fact.
        vocabulary: The model file of the vocabulary.
        vocabulary_flags: To train it; none if it is that of a model.
        holdout_fraction: Of the documents.
        lengths: Tokens of the examples of each stage.
        corpus_flags: Flags of the commands that read the text.
        training_flags: Flags of all stages of the training.
    """

    facts: Sequence[str]
    vocabulary: str
    vocabulary_flags: Sequence[str]
    holdout_fraction: float
    objective: str
    lengths: Sequence[int]
    batch_tokens: int
    corpus_flags: Sequence[str]
    training_flags: Sequence[str]


def make_plan(config: FirstModelConfig) -> Plan:
    """Chooses vocabulary, records, architecture and optimizer.

    Raises:
        UserError: For text or an initial model that cannot be used.
    """
    text = look(config)
    accelerator = find_accelerator(config)
    recipe = RECIPES[accelerator]
    corpus = [
        # Patterns, since names may hold commas, and thousands are too long.
        f"--input_file={','.join(_patterns(config))}",
        f"--language={config.language}",
        f"--text_field={config.text_field}",
    ]
    reading = "each is read as a sentence"
    if text.line_length > PARAGRAPH:
        reading = "they are read as paragraphs, and split into sentences"
        corpus.append("--sentence_breaker=sentencex")
    corpus += shlex.split(config.text_flags)
    architecture, optimizer = recipe.architecture, recipe.flags
    lengths, vocabulary_flags = recipe.lengths, list[str]()
    if config.init_checkpoint:
        initial = shipped.find(config.init_checkpoint, shipped.MODEL)
        model, objective, lower_case = _read_initial(initial)
        architecture, optimizer = "albert_mini", _CONTINUED
        lengths = lengths[1:]
        vocabulary = about_vocabulary = f"{initial}/spiece.model"
    else:
        # From 3 to 300 MB, ten times as many pieces.
        suited = 4000 * math.sqrt(text.num_bytes / 3e6)
        size = int(min(recipe.max_vocab_size, max(1000, suited // 500 * 500)))
        if text.many_characters:
            size = max(size, 8000)
            vocabulary_flags = [
                "--character_coverage=0.9995",
                "--byte_fallback",
            ]
        vocabulary_flags.append(f"--vocab_size={size}")
        model = {"num_hidden_layers": recipe.num_layers, "vocab_size": size}
        objective, lower_case = "none", config.do_lower_case
        vocabulary = f"{config.output_dir}/vocabulary/spm.model"
        about_vocabulary = f"{size:,} pieces, trained on it"
    training = [
        f"--albert_config_file={architecture}",
        f"--model={','.join(f'{n}={v}' for n, v in model.items())}",
        *optimizer,
        *(f"--seed={config.seed}", "--ngram=1", "--steps_per_loop=20"),
    ]
    facts = [
        f"{text.num_files} files, {text.num_bytes:,} bytes",
        f"lines have {text.line_length:.0f} characters: {reading}",
        f"vocabulary: {about_vocabulary}",
        f"examples of {', then '.join(map(str, lengths))} tokens; "
        f"{recipe.batch_tokens:,} tokens a step; sentence objective "
        f"{objective}",
        f"device: {accelerator}",
        f"training: {' '.join(training)}",
    ]
    if lower_case:
        facts.insert(3, "case: capitals are read as small letters")
    return Plan(
        facts,
        vocabulary,
        vocabulary_flags,
        min(0.05, HELD_OUT_BYTES / text.num_bytes),
        objective,
        lengths,
        recipe.batch_tokens,
        [*corpus, f"--do_lower_case={lower_case}"],
        training,
    )


def _read_initial(path: str) -> tuple[dict[str, Any], str, bool]:
    """Architecture, sentence objective and case of a model."""
    settings = files.load_json_if_any(os.path.join(path, "config.json"))
    if not settings or not os.path.exists(os.path.join(path, "spiece.model")):
        raise UserError(
            "init_checkpoint must be a run directory or a Hugging Face folder, "
            "with config.json and spiece.model",
            received=path,
            remedy="python -m albert_tf.convert_checkpoint makes a run of "
            "other formats.",
        )
    model = settings.get("model", settings)
    names = override_types()
    model = {n: v for n, v in model.items() if n in names}
    if model.get("hidden_act") == "gelu_new":  # Hugging Face's name
        model["hidden_act"] = "gelu"
    training = settings.get("training", settings)
    lower_case = True
    for name in ("tokenizer_config.json", "records_metadata.json"):
        found = files.load_json_if_any(os.path.join(path, name)) or {}
        lower_case = found.get("do_lower_case", lower_case)
    return model, training.get("sentence_objective", "sop"), lower_case


def choose_dropout(epochs: float, share: float) -> float:
    """The dropout of all stages after the first.

    Args:
        epochs: How often the first stage has read the text.
        share: The share of the time that it has.
    """
    passes = epochs / share
    rate = DROPOUT if passes > MANY_EPOCHS else 0.0
    logging.info(
        "about %.0f passes over the text: dropout %g from now on", passes, rate
    )
    return rate


class FirstModel:
    """A first model in its directory.

    Attributes:
        state: What is stored in `first_model.json`: `settings`; `plan`, since
            the text may grow between two starts; `seconds`, the time used so
            far; and by stage, its `command`, its `output` when it has ended,
            and its `seconds`.
    """

    def __init__(self, config: FirstModelConfig, plan: Plan) -> None:
        self.config, self.plan = config, plan
        self.dir = config.output_dir
        self._path = f"{self.dir}/{STATE_FILE}"
        self.state = files.load_json_if_any(self._path) or {
            "settings": config.to_dict(),
            "plan": dataclasses.asdict(plan),
            "seconds": 0.0,
            "stages": {},
        }
        self._saved = self._ticked = self._reported = time.monotonic()

    # --- stages ---------------------------------------------------------------

    def make(self) -> None:
        """Makes what is missing, stage by stage."""
        plan, runs = self.plan, f"{self.dir}/runs"
        if plan.vocabulary_flags:
            self._run(
                "vocabulary",
                "data_prep.train_tokenizer",
                *plan.corpus_flags,
                *plan.vocabulary_flags,
                f"--model_prefix={plan.vocabulary.removesuffix('.model')}",
            )
        for length in plan.lengths:
            self._records(length)
        records = f"{self.dir}/records/{plan.lengths[-1]}"
        figures = json.loads(
            self._run(
                "baselines",
                "data_prep.ngram_baselines",
                f"--input_file={records}/train/*.tfrecord",
                f"--eval_input_file={records}/eval/*.tfrecord",
                "--num_sentences=8",
            )
        )
        # The shares of the stages stay the same after an interruption.
        total = self.config.minutes * 60 * (1 - RESERVE)
        rest = total - self.state["seconds"]
        rest = self.state.setdefault("training_seconds", rest)
        if rest < SMALLEST_TRAINING:
            raise UserError(
                "minutes must leave time to train after vocabulary and records",
                received=f"{self.config.minutes:g}, which leaves {rest:.0f} s",
                remedy="Give more --minutes and another --output_dir.",
            )
        start, names = self.config.init_checkpoint, list[str]()
        shares = (SHORT_SHARE, LONG_SHARE)[-len(plan.lengths) :]
        for length, share in zip(plan.lengths, shares, strict=True):
            name = f"{length}_tokens"
            self._train(name, length, start, seconds=share * rest)
            start, names = f"{runs}/{name}", [*names, name]
            if "dropout" not in self.state:
                epochs = self._epochs(name, length)
                self.state["dropout"] = choose_dropout(epochs, share)
        start_up, speed = self._pace(names[-1])
        left = total - self.state["seconds"] - (1 + TAIL) * start_up
        num_steps = self._stage("decay").setdefault(
            "num_steps", max(50, int(left * speed))
        )
        self._train("decay", plan.lengths[-1], start, num_steps=num_steps)
        names.append("decay")
        saved_model = f"{self.dir}/saved_model"
        self._run(
            "export",
            "albert_tf.export_saved_model",
            f"--run_dir={runs}/decay",
            f"--export_dir={saved_model}",
            product=saved_model,
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
        self._write_page(figures, filled, names)

    def _records(self, length: int) -> None:
        """Builds records. A hash chooses the held-out documents.

        Of few documents, a small fraction may be none; then it grows.
        """
        fraction = self.state.get(
            "holdout_fraction", self.plan.holdout_fraction
        )
        while True:
            try:
                self._run(
                    f"records_{length}",
                    "data_prep.build_tfrecords",
                    *self.plan.corpus_flags,
                    f"--spm_model_file={self.plan.vocabulary}",
                    f"--output_dir={self.dir}/records/{length}",
                    *self._shape(length),
                    f"--sentence_objective={self.plan.objective}",
                    *("--ngram=1", "--short_seq_prob=0"),
                    *("--masking=dynamic", "--dupe_factor=1", "--num_shards=4"),
                    f"--holdout_fraction={fraction:.3g}",
                )
                return
            except UserError as error:
                if "holdout_fraction" not in str(error):
                    raise
                if fraction > 0.3:
                    raise UserError(
                        "input_file must hold documents to train and to hold "
                        "out, separated by blank lines",
                        received="too few",
                        remedy="Put blank lines between documents, and choose "
                        "another --output_dir.",
                    ) from None
            fraction = self.state["holdout_fraction"] = 2 * fraction

    def _shape(self, length: int) -> tuple[str, str]:
        predictions = math.ceil(0.15 * length)
        return (
            f"--max_seq_length={length}",
            f"--max_predictions_per_seq={predictions}",
        )

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
        rows = max(1, self.plan.batch_tokens // length)
        is_new = not start
        flags_ = [
            *self.plan.training_flags,
            f"--input_file={records}/train/*.tfrecord",
            f"--output_dir={self.dir}/runs/{name}",
            *self._shape(length),
            f"--sentence_objective={self.plan.objective}",
            f"--global_batch_size={rows}",
            f"--dropout_schedule=0:{self.state.get('dropout', 0.0):g}",
            "--save_checkpoints_steps=1000",
            f"--num_warmup_steps={50 if is_new else 0}",
        ]
        if length < self.plan.lengths[-1]:
            # The next stage repeats these positions, which is a better start
            # for the further ones than random values.
            flags_.append(f"--model=max_position_embeddings={length}")
        if start:
            flags_.append(f"--init_checkpoint={start}")
        if start and start != self.config.init_checkpoint:
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

    # --- commands -------------------------------------------------------------

    def _stage(self, name: str) -> dict[str, Any]:
        return self.state["stages"].setdefault(name, {})

    def _run(
        self,
        name: str,
        module: str,
        *arguments: str,
        product: str = "",
        seconds: float = 0.0,
    ) -> str:
        """Runs a command, unless it has finished; returns what it prints.

        Args:
            product: A directory that the command only writes if it is missing.
            seconds: Time for the stage, interruptions included; 0: no limit.
        """
        stage = self._stage(name)
        if "output" in stage:
            return stage["output"]
        command = ["-m", module, *arguments]
        stage["command"] = shlex.join(["python", *command])
        if product and os.path.exists(product):
            files.remove_directory(product)  # of an interrupted start
        log, output = (
            f"{self.dir}/logs/{name}.{end}" for end in ("log", "out")
        )
        job = Job(
            name,
            [sys.executable, *command],
            log,
            output,
            is_over=lambda: self._is_over(name, seconds),
        )
        jobs = Jobs(ends_with_parent=True)
        jobs.run([job])
        self._save()
        if jobs.interrupted:
            raise SystemExit(128 + jobs.interrupted)
        with open(log, errors="replace") as file:
            lines = file.read().strip().splitlines() or ["no message"]
        if job.status:
            raise UserError(
                f"{name}: the command must succeed",
                received=f"{describe_end(job.status)}: {lines[-1]}",
                remedy=f"See {log}. The same command goes on from here. Flags "
                "of commands that read the text: --text_flags, with another "
                "--output_dir.",
            )
        for line in lines:
            # Warnings of absl, but for those of our own request to stop.
            if re.match(r"W\d{4} ", line) and "SIGTERM" not in line:
                logging.warning("%s: %s", name, line.partition("] ")[2])
        if seconds:
            checkpoints = pathlib.Path(f"{self.dir}/runs/{name}/checkpoints")
            last = max(p.name for p in checkpoints.glob("step-*"))
            steps = int(last.removeprefix("step-"))
            stage["command"] = stage["command"].replace(
                f"--num_train_steps={ENDLESS}", f"--num_train_steps={steps}"
            )
        stage["output"] = pathlib.Path(output).read_text(errors="replace")
        self._save()
        return stage["output"]

    def _is_over(self, name: str, seconds: float) -> bool:
        """Counts and reports the time of a stage; whether it is over.

        Also a slow machine trains some steps.
        """
        stage, now = self._stage(name), time.monotonic()
        passed, self._ticked = now - self._ticked, now
        self.state["seconds"] += passed
        stage["seconds"] = stage.get("seconds", 0.0) + passed
        if now - self._saved > SAVING_SECONDS:
            self._save()
        if now - self._reported > PROGRESS_SECONDS:
            self._report(name, seconds)
            self._reported = now
        is_over = 0 < seconds <= stage["seconds"]
        return is_over and bool(self._metrics(name, "train"))

    def _save(self) -> None:
        files.write_json(self._path, self.state)
        self._saved = time.monotonic()

    def _report(self, name: str, seconds: float) -> None:
        """Logs how far a stage and everything is."""
        used = self.state["seconds"] / 60
        parts = [f"{name}: {used:.1f} of {self.config.minutes:g} minutes"]
        rows = self._metrics(name, "train")
        stage = self._stage(name)
        if rows:
            row = rows[-1]
            of = f"/{stage['num_steps']:,}" if "num_steps" in stage else ""
            parts.append(f"step {row['step']:,}{of}")
            parts.append(f"loss {row['masked_lm_loss']:.3f}")
            parts.append(f"{row['steps_per_second']:.1f} steps/s")
        if seconds:
            parts.append(f"{max(0, seconds - stage['seconds']):.0f} s left")
        logging.info("%s", " | ".join(parts))

    def _metrics(self, name: str, split: str) -> list[dict[str, Any]]:
        """The log of a training, without a line that is not complete."""
        rows = []
        path = pathlib.Path(f"{self.dir}/runs/{name}/metrics.jsonl")
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
        return [row for row in rows if row["split"] == split]

    def _epochs(self, name: str, length: int) -> float:
        """How often a training that has ended has read the text."""
        records = files.load_json(
            f"{self.dir}/records/{length}/train/metadata.json"
        )
        steps = self._metrics(name, "train")[-1]["step"]
        return steps * self.plan.batch_tokens / records["num_pieces"]

    def _pace(self, name: str) -> tuple[float, float]:
        """Seconds of the start-up of a training, and its steps per second."""
        rows = self._metrics(name, "train")
        trained = sum(row["loop_seconds"] for row in rows)
        steady = rows[len(rows) // 2 :]
        speed = len(steady) / sum(1 / row["steps_per_second"] for row in steady)
        used = self._stage(name)["seconds"]
        return max(5.0, used - trained), speed

    # --- results --------------------------------------------------------------

    def _write_page(
        self, figures: dict[str, Any], filled: str, names: Sequence[str]
    ) -> None:
        """Writes the figures, and a page that needs no network."""
        last = self._metrics("decay", "eval")[-1]
        minutes = round(self.state["seconds"] / 60, 2)
        summary = {
            name: last[name]
            for name in ("masked_lm_loss", "masked_lm_accuracy")
        } | {
            name: value
            for name, value in figures.items()
            if name.startswith(("unigram", "five_gram"))
        }
        summary |= {
            "minutes": minutes,
            "examples": self.plan.lengths[-1],
            "steps": {
                name: self._metrics(name, "train")[-1]["step"] for name in names
            },
        }
        files.write_json(f"{self.dir}/summary.json", summary)
        curve = self._metrics(names[-2], "train")
        third = curve[-max(1, len(curve) // 3) :]
        curves = pathlib.Path(f"{self.dir}/curves.png").read_bytes()
        commands = [s["command"] for s in self.state["stages"].values()]
        words = [s["word"] for s in figures["sentences"]]
        template = pathlib.Path(__file__).with_suffix(".html").read_text()
        page = template.format(
            **summary,
            facts="".join(
                f"<li>{html.escape(f)}</li>" for f in self.plan.facts
            ),
            filled=html.escape(filled),
            words=html.escape("\n".join(words)),
            curves=base64.b64encode(curves).decode(),
            constant=sum(row["loop_seconds"] for row in third) / 60,
            fall=third[0]["masked_lm_loss"] - third[-1]["masked_lm_loss"],
            longer=4 * self.config.minutes,
            commands=html.escape("\n\n".join(commands)),
        )
        files.write_text(f"{self.dir}/index.html", page)
        gain = summary["unigram_entropy"] - summary["masked_lm_loss"]
        print(
            f"masked-LM loss {summary['masked_lm_loss']:.3f} "
            f"({summary['masked_lm_accuracy']:.1%}), {gain:.2f} nats below the "
            f"unigram entropy; 5-grams: {summary['five_gram_loss']:.3f}; "
            f"{minutes:.1f} minutes\n{filled}\n"
            f"page: {self.dir}/index.html\nmodel: {self.dir}/runs/decay\n"
            f"SavedModel: {self.dir}/saved_model"
        )


def main(config: FirstModelConfig) -> None:
    """Makes the model, or what is missing of it."""
    config.require("input_file", "output_dir")
    if remote := [
        p for p in (*config.input_file, config.output_dir) if "://" in p
    ]:
        raise UserError(
            "input_file and output_dir must be local",
            received=", ".join(remote),
            remedy="The commands on the page of results also read gs://.",
        )
    inside = os.path.realpath(config.output_dir)
    for pattern in config.input_file:
        top, found, _ = pattern.partition("**")
        if found and inside.startswith(os.path.realpath(top) + os.sep):
            raise UserError(
                "output_dir must not be in a folder that input_file reads",
                received=f"{config.output_dir} and {pattern}",
                remedy="Choose an --output_dir elsewhere.",
            )
    path = f"{config.output_dir}/{STATE_FILE}"
    stored = files.load_json_if_any(path) or {}
    settings = config.to_dict()
    for name in ("output_dir", "dry_run"):
        del settings[name]
    if changes := differences(stored.get("settings", {}), settings):
        raise UserError(
            "output_dir must not hold a first model of other settings",
            received=path,
            remedy=f"{name_faults(changes)}. Choose another --output_dir.",
        )
    if stored and stored["plan"].keys() != Plan.__dataclass_fields__.keys():
        raise UserError(
            "output_dir must not hold a first model of another version",
            received=path,
            remedy="Choose another --output_dir.",
        )
    plan = Plan(**stored["plan"]) if stored else make_plan(config)
    print("\n".join(plan.facts))
    if config.dry_run:
        return
    os.makedirs(f"{config.output_dir}/logs", exist_ok=True)
    with lock(config.output_dir):
        FirstModel(config, plan).make()


if __name__ == "__main__":
    flags.run(main, FirstModelConfig)
