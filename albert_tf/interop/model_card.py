"""Writes the model card of an exported model, README.md in a Hub folder.

The card lists architecture, data, settings and metrics from the run directory.
"""

import math
import posixpath
from collections.abc import Iterable, Iterator
from typing import Any

from albert_tf.config import FinetuningConfig
from albert_tf.interop.hugging_face_config import (
    KEY,
    NULL_THRESHOLD,
    TASKS,
    class_name,
)
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.io.files import exists, load_json_if_any
from albert_tf.runs.directory import (
    CONFIG_FILE,
    RECORDS_METADATA_FILE,
    load_config,
)
from albert_tf.runs.log import DURATIONS, read_metrics

_TRAINING = (
    "optimizer.optimizer",
    "optimizer.learning_rate",
    "optimizer.num_warmup_steps",
    "optimizer.weight_decay_rate",
    "data.global_batch_size",
    "training.num_train_steps",
    "training.seed",
    "distribution.precision",
)
_PRETRAINING = (
    "training.sentence_objective",
    "data.max_seq_length",
    "training.dropout_schedule",
)
_FINETUNING = ("task.task", "training.dropout", "training.classifier_dropout")


def make_model_card(weights: ModelWeights, licence: str = "") -> str:
    """Returns the card: the Hub's metadata fields, then Markdown.

    Args:
        weights: The model that is written.
        licence: Licence of the weights, an identifier from the Hub's list; ""
            if unknown.
    """
    head, step, run_dir = weights.head, weights.step, weights.run_dir
    model = class_name(weights).replace("Albert", "AutoModel")
    how, pipeline = "pretrained", "fill-mask"
    about = {
        "sop": "The classes of `sop_logits` are segments in order (0) and "
        "swapped (1).",
        "nsp": "The classes of `sop_logits` are the next sentence (0) and a "
        "random one (1).",
        "none": "It has no sentence head.",
    }[weights.sentence_objective]
    if head:
        how, pipeline = "fine-tuned", TASKS[head.kind].pipeline
        about = f"It was fine-tuned for {head.kind.replace('_', ' ')}."
    settings = dict(weights.settings)
    if settings.get(NULL_THRESHOLD) == math.inf:
        settings[NULL_THRESHOLD] = "none: every question has an answer"
    if settings:
        about += (
            f"\n\n## Text and answers\n\n{_table(settings.items())}\n"
            "transformers does not read these settings. They are in "
            f"`config.json`, as `{KEY}`."
        )
    if NULL_THRESHOLD in settings:
        about += (
            " A question has no answer if the score of no answer exceeds that "
            f"of the best answer by more than {NULL_THRESHOLD}."
        )
    records = run_dir and load_json_if_any(
        posixpath.join(run_dir, RECORDS_METADATA_FILE)
    )
    data = {
        name: value
        for name, value in (records or {}).items()
        if not isinstance(value, (dict, list))
    }
    return f"""---
license: {licence or "unknown"}
library_name: transformers
pipeline_tag: {pipeline}
tags:
- albert
- albert_tf
---

# ALBERT

An [ALBERT](https://arxiv.org/abs/1909.11942) with {weights.num_parameters:,}
parameters, heads included, {how} with albert_tf and TensorFlow for
{f"{step:,}" if step else "an unknown number of"} steps.

    from transformers import AutoTokenizer, {model}

    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = {model}.from_pretrained(FOLDER)

{about}

## Architecture

{_table(weights.config.to_dict().items())}
The activation gelu is the tanh approximation, `gelu_new` in `config.json`.

## Data

{_table(data.items())}
## Training

{_table(_describe_training(run_dir))}
## Evaluation

On the held-out set; losses are in nats.

{_table(_describe_evaluation(run_dir, step).items())}
## Licence

Weights: {licence or "not stated at export"}. The training text and the
vocabulary have separate licences.
"""


def _describe_training(run_dir: str) -> Iterator[tuple[str, Any]]:
    if not run_dir or not exists(posixpath.join(run_dir, CONFIG_FILE)):
        return
    run, of_kind = load_config(run_dir), _PRETRAINING
    if isinstance(run, FinetuningConfig):
        if not run.task.task:  # converted, so the other settings are unknown
            return
        of_kind = _FINETUNING
    for name in (*of_kind, *_TRAINING):
        group, _, setting = name.partition(".")
        yield setting, getattr(getattr(run, group), setting)


def _describe_evaluation(run_dir: str, step: int) -> dict[str, Any]:
    """Metrics of the last evaluation at or before the step."""
    lines = [
        line
        for line in (read_metrics(run_dir) if run_dir else ())
        if line.get("split") == "eval" and line["step"] <= step
    ]
    return {
        name: f"{value:.4f}" if isinstance(value, float) else value
        for name, value in (lines[-1] if lines else {}).items()
        if name not in (*DURATIONS, "split")
    }


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    lines = ["| | |", "|---|---|"]
    for name, value in rows:
        if value is not None:
            # A bar or a new line would end the cell.
            text = str(value).replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {name} | {text} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else "Unknown.\n"
