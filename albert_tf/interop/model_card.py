"""Writes the model card of an exported model, README.md in a Hub folder.

The card lists architecture, data, settings and metrics from the run directory.
"""

import math
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from albert_tf.config import (
    FinetuningConfig,
    PretrainingConfig,
    TaskHeadConfig,
)
from albert_tf.interop.hugging_face_config import (
    CLASSES,
    KEY,
    NULL_THRESHOLD,
    PIPELINES,
)
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.io.files import exists, load_json_if_any
from albert_tf.runs.directory import (
    CONFIG_FILE,
    RECORDS_METADATA_FILE,
    load_config,
)
from albert_tf.runs.log import DURATIONS, read_metrics

_ARCHITECTURE = (
    "num_hidden_layers",
    "num_hidden_groups",
    "inner_group_num",
    "hidden_size",
    "embedding_size",
    "intermediate_size",
    "num_attention_heads",
    "hidden_act",
    "vocab_size",
    "max_position_embeddings",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)
_DATA = {
    "num_documents": "documents",
    "num_examples": "examples",
    "num_pieces": "tokens, special ones included",
    "dupe_factor": "passes over the text, each with different masks",
    "max_seq_length": "maximum tokens per example",
    "masking": "masking",
    "masked_lm_prob": "fraction of tokens masked",
    "ngram": "longest n-gram masked",
    "vocabulary_kind": "kind of vocabulary",
    "do_lower_case": "lower-cased",
    "vocabulary_sha256": "SHA-256 of the vocabulary",
    "unigram_entropy_nats": "unigram entropy of the tokens, nats",
}
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
_PRETRAINING = ("data.max_seq_length", "training.dropout_schedule")
_FINETUNING = ("task.task", "training.dropout", "training.classifier_dropout")
_NO_LICENCE = "unknown"


def make_model_card(
    weights: ModelWeights, run_dir: str = "", licence: str = ""
) -> str:
    """Returns the card: the Hub's metadata fields, then Markdown.

    Args:
        weights: The model that is written.
        run_dir: The run that trained it; "" if unknown.
        licence: Licence of the weights, an identifier from the Hub's list; ""
            if unknown.
    """
    run = None
    if run_dir and exists(posixpath.join(run_dir, CONFIG_FILE)):
        run = load_config(run_dir)
    parts = [
        _front_matter(licence, weights.head),
        "# ALBERT\n",
        "An [ALBERT](https://arxiv.org/abs/1909.11942) with "
        f"{weights.num_parameters:,} parameters, heads included, "
        + ("fine-tuned" if weights.head else "pretrained")
        + " with albert_tf and TensorFlow"
        + (f" for {weights.step:,} steps" if weights.step else "")
        + ".\n",
        _describe_use(weights),
        "## Architecture\n",
        _table((name, getattr(weights.config, name)) for name in _ARCHITECTURE),
        "The activation gelu is the tanh approximation, `gelu_new` in "
        "`config.json`.\n",
        "## Data\n",
        _describe_data(run_dir),
        "## Training\n",
        _describe_training(run, weights),
        *filter(None, [_describe_settings(weights)]),
        "## Evaluation\n",
        _describe_evaluation(run_dir, weights.step),
        "## Licence\n",
        f"Weights: {licence or 'not stated at export'}. The training text and "
        "the vocabulary have separate licences.\n",
    ]
    return "\n".join(parts)


def _front_matter(licence: str, head: TaskHeadConfig | None) -> str:
    pipeline = PIPELINES[head.kind] if head else "fill-mask"
    return (
        "---\n"
        f"license: {licence or _NO_LICENCE}\n"
        "library_name: transformers\n"
        f"pipeline_tag: {pipeline}\n"
        "tags:\n- albert\n- albert_tf\n"
        "---\n"
    )


def _describe_use(weights: ModelWeights) -> str:
    model = "AutoModelForPreTraining"
    about = (
        "The classes of `sop_logits` are segments in order (0) and swapped "
        "(1).\n"
        if weights.sentence_objective == "sop"
        else "The classes of `sop_logits` are the next sentence (0) and a "
        "random one (1).\n"
    )
    if weights.head:
        model = CLASSES[weights.head.kind].replace("Albert", "AutoModel")
        about = f"It was fine-tuned for {weights.head.kind.replace('_', ' ')}"
        if weights.head.labels:
            about += f" into {len(weights.head.labels)} classes"
        about += ".\n"
    elif weights.sentence_objective == "none":
        model = "AutoModelForMaskedLM"
        about = "The folder has no sentence head.\n"
    return (
        "    from transformers import AutoTokenizer, "
        f"{model}\n\n"
        "    tokenizer = AutoTokenizer.from_pretrained(FOLDER)\n"
        f"    model = {model}.from_pretrained(FOLDER)\n\n{about}"
    )


def _describe_data(run_dir: str) -> str:
    records = run_dir and load_json_if_any(
        posixpath.join(run_dir, RECORDS_METADATA_FILE)
    )
    if not records:
        return "Unknown.\n"
    return _table(
        (label, records[name])
        for name, label in _DATA.items()
        if name in records
    )


def _describe_training(
    run: PretrainingConfig | None, weights: ModelWeights
) -> str:
    objective = weights.sentence_objective
    if objective == "none":  # perhaps because the head was left out
        objective = run.training.sentence_objective if run else "unknown"
    rows: list[tuple[str, Any]] = []
    if weights.head is None:
        rows.append(("sentence_objective", objective))
    of_kind: tuple[str, ...] = _PRETRAINING
    if isinstance(run, FinetuningConfig):
        of_kind = _FINETUNING
        if not run.task.task:  # converted, so the other settings are unknown
            run = None
    if run is not None:
        for name in (*of_kind, *_TRAINING):
            group, _, setting = name.partition(".")
            rows.append((setting, getattr(getattr(run, group), setting)))
    return _table(rows) if rows else "Unknown.\n"


def _describe_settings(weights: ModelWeights) -> str:
    """How text is read and answered; "" for a pretrained model."""
    settings = dict(weights.settings)
    if not settings:
        return ""
    notes = ""
    if NULL_THRESHOLD in settings:
        notes = (
            "\nThe null odds of a question are the score of no answer minus "
            "the score of the best answer. If they exceed null_threshold, the "
            "question has no answer.\n"
        )
        if settings[NULL_THRESHOLD] == math.inf:
            settings[NULL_THRESHOLD] = "none: every question has an answer"
    return (
        "## Text and answers\n\n"
        f"{_table(settings.items())}{notes}\n"
        "transformers does not read these settings. They are in `config.json`, "
        f"as `{KEY}`.\n"
    )


def _describe_evaluation(run_dir: str, step: int) -> str:
    """Metrics of the last evaluation at or before the step."""
    metrics: Mapping[str, Any] = {}
    for line in read_metrics(run_dir) if run_dir else ():
        if line.get("split") == "eval" and line["step"] <= step:
            metrics = line
    if not metrics:
        return "Unknown.\n"
    return (
        f"On the held-out set, after {metrics['step']:,} steps; losses are "
        "in nats.\n\n"
        + _table(
            (name, f"{value:.4f}")
            for name, value in metrics.items()
            if isinstance(value, float) and name not in DURATIONS
        )
    )


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    lines = ["| | |", "|---|---|"]
    for name, value in rows:
        # A bar or a new line would end the cell.
        text = str(value).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines) + "\n"
