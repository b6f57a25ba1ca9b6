"""README.md of an exported model: the card that Hugging Face's Hub shows.

What the run's directory tells of it: architecture, data, settings, figures.
"""

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from albert_tf.config import PretrainingConfig
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.io.files import exists, load_json_if_any
from albert_tf.runs import directory as run_directory
from albert_tf.runs.log import read_metrics

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
    "num_pieces": "pieces, special ones included",
    "dupe_factor": "passes over the text, each masked otherwise",
    "max_seq_length": "pieces of an example, at most",
    "masking": "masking",
    "masked_lm_prob": "share of pieces masked",
    "ngram": "longest n-gram masked",
    "vocabulary_kind": "kind of vocabulary",
    "do_lower_case": "lower-cased",
    "vocabulary_sha256": "SHA-256 of the vocabulary",
    "unigram_entropy_nats": "entropy of the pieces, nats",
}
_TRAINING = (
    "optimizer.optimizer",
    "optimizer.learning_rate",
    "optimizer.num_warmup_steps",
    "optimizer.weight_decay_rate",
    "data.global_batch_size",
    "data.max_seq_length",
    "training.num_train_steps",
    "training.dropout_schedule",
    "training.seed",
    "distribution.precision",
)
_NO_LICENCE = "unknown"


def make_model_card(
    weights: ModelWeights, run_dir: str = "", licence: str = ""
) -> str:
    """The card's text: Markdown with the Hub's fields before it.

    Args:
        weights: The model, as it is written.
        run_dir: The run that trained it; "" if unknown.
        licence: Of the weights, an identifier of the Hub's list; "" if
            unknown.
    """
    run = None
    if run_dir and exists(posixpath.join(run_dir, run_directory.CONFIG_FILE)):
        run = run_directory.load_config(run_dir)
    parts = [
        _front_matter(licence),
        "# ALBERT\n",
        "An [ALBERT](https://arxiv.org/abs/1909.11942) of "
        f"{weights.num_parameters:,} parameters, pretraining heads included, "
        "pretrained with albert_tf and TensorFlow"
        + (f", {weights.step:,} updates" if weights.step else "")
        + ".\n",
        _describe_use(weights),
        "## Architecture\n",
        _table((name, getattr(weights.config, name)) for name in _ARCHITECTURE),
        "Of activations, gelu is the tanh approximation, `gelu_new` in "
        "`config.json`.\n",
        "## Data\n",
        _describe_data(run_dir),
        "## Training\n",
        _describe_training(run, weights),
        "## Evaluation\n",
        _describe_evaluation(run_dir, weights.step),
        "## Licence\n",
        f"Weights: {licence or 'not stated by who exported them'}. The text "
        "they were trained on, and the vocabulary, have licences of their "
        "own.\n",
    ]
    return "\n".join(parts)


def _front_matter(licence: str) -> str:
    return (
        "---\n"
        f"license: {licence or _NO_LICENCE}\n"
        "library_name: transformers\n"
        "pipeline_tag: fill-mask\n"
        "tags:\n- albert\n- albert_tf\n"
        "---\n"
    )


def _describe_use(weights: ModelWeights) -> str:
    model = "AutoModelForPreTraining"
    about = (
        "`sop_logits` are of segments in order (0) or swapped (1).\n"
        if weights.sentence_objective == "sop"
        else "`sop_logits` are of a next sentence (0) or a random one (1).\n"
    )
    if weights.sentence_objective == "none":
        model = "AutoModelForMaskedLM"
        about = "It was trained without sentence objective.\n"
    return (
        "    from transformers import AutoTokenizer, "
        f"{model}\n\n"
        "    tokenizer = AutoTokenizer.from_pretrained(FOLDER)\n"
        f"    model = {model}.from_pretrained(FOLDER)\n\n{about}"
    )


def _describe_data(run_dir: str) -> str:
    records = run_dir and load_json_if_any(
        posixpath.join(run_dir, run_directory.RECORDS_METADATA_FILE)
    )
    if not records:
        return "Not known.\n"
    return _table(
        (label, records[name])
        for name, label in _DATA.items()
        if name in records
    )


def _describe_training(
    run: PretrainingConfig | None, weights: ModelWeights
) -> str:
    rows: list[tuple[str, Any]] = [
        ("sentence_objective", weights.sentence_objective)
    ]
    if run is not None:
        for name in _TRAINING:
            group, _, setting = name.partition(".")
            rows.append((setting, getattr(getattr(run, group), setting)))
    return _table(rows)


def _describe_evaluation(run_dir: str, step: int) -> str:
    """Figures of the last evaluation not after the step."""
    figures: Mapping[str, Any] = {}
    for line in read_metrics(run_dir) if run_dir else ():
        if line.get("split") == "eval" and line["step"] <= step:
            figures = line
    if not figures:
        return "None is known.\n"
    return (
        f"On held-out documents, after {figures['step']:,} updates; losses "
        "are in nats.\n\n"
        + _table(
            (name, f"{value:.4f}")
            for name, value in figures.items()
            if isinstance(value, float)
        )
    )


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    lines = ["| | |", "|---|---|"]
    for name, value in rows:
        # A cell must be one: no bar, no new line.
        text = str(value).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines) + "\n"
