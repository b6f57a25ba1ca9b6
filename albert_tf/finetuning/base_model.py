"""The model that fine-tuning starts from, and its vocabulary."""

import dataclasses
import posixpath
from typing import Any, NamedTuple

from albert_tf.config import FinetuningConfig, ModelConfig, TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.interop import formats
from albert_tf.interop.weight_names import ModelWeights, list_weights
from albert_tf.io.files import load_json_if_any
from albert_tf.records import features
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs import directory as run_directory
from albert_tf.training.warm_start import (
    SAME_SETTINGS,
    WarmStart,
    make_report,
)


class BaseModel(NamedTuple):
    """Architecture, vocabulary and initial weights.

    Attributes:
        config: The architecture, with the dropout rates of the run.
        vocabulary: Path of the SentencePiece model.
        tokenizer: The vocabulary.
        weights: Initial weights; None for random weights, or if all runs
            resume from checkpoints.
        head: What a run of fine-tuning predicts; None for other models.
    """

    config: ModelConfig
    vocabulary: str
    tokenizer: Tokenizer
    weights: ModelWeights | None = None
    head: TaskHeadConfig | None = None

    def describe_vocabulary(self) -> dict[str, Any]:
        """The content of `records_metadata.json` of a run."""
        return {
            "vocabulary_sha256": self.tokenizer.sha256,
            "vocabulary_kind": self.tokenizer.kind,
            "do_lower_case": self.tokenizer.do_lower_case,
            "vocab_size": self.tokenizer.vocab_size,
        }


def find(config: FinetuningConfig, run_dirs: list[str]) -> BaseModel:
    """Finds the model of resumed runs, or the model that new runs start from.

    1. If all runs have checkpoints: their architecture and vocabulary.
    2. With `init_checkpoint`: that model.
    3. With `from_scratch`: `albert_config_file`, with random weights.

    Raises:
        UserError: If none of the three cases applies, if the vocabulary is
            unknown or belongs to another model, or if the architecture
            differs from `albert_config_file`.
    """
    settings = config.initialization
    if all(map(run_directory.has_checkpoints, run_dirs)):
        return of_run(run_dirs[0])
    weights, lower_cases = None, None
    model, vocabulary = config.model, settings.init_vocabulary
    if settings.init_checkpoint:
        weights = formats.read_weights(settings.init_checkpoint)
        if model != ModelConfig():  # given
            features.check_values_match(
                settings.init_checkpoint,
                dataclasses.asdict(weights.config),
                {name: getattr(model, name) for name in SAME_SETTINGS},
                remedy="Omit --albert_config_file.",
            )
        model, vocabulary = weights.config, _vocabulary_of(config, weights)
        lower_cases = weights.do_lower_case
    elif not settings.from_scratch:
        raise UserError(
            "--init_checkpoint is required: without a pretrained model, "
            "fine-tuning starts from random weights",
            remedy="Give a pretrained model, or set --from_scratch.",
        )
    tokenizer = Tokenizer(vocabulary, lower_cases)
    if tokenizer.vocab_size != model.vocab_size:
        raise UserError(
            f"{vocabulary} must be the vocabulary of the model",
            received=f"{tokenizer.vocab_size} pieces, and a model with "
            f"{model.vocab_size}",
            remedy="Choose another --init_vocabulary.",
        )
    rate = config.training.dropout
    model = dataclasses.replace(
        model, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate
    )
    return BaseModel(model, vocabulary, tokenizer, weights)


def of_run(run_dir: str) -> BaseModel:
    """The architecture and the vocabulary of a run of fine-tuning.

    Raises:
        UserError: If the directory holds no such run, or no vocabulary.
    """
    config = run_directory.load_config(run_dir, FinetuningConfig)
    vocabulary = posixpath.join(run_dir, features.TOKENIZER_FILE)
    path = posixpath.join(run_dir, run_directory.RECORDS_METADATA_FILE)
    stored = load_json_if_any(path) or {}
    tokenizer = Tokenizer(vocabulary, stored.get("do_lower_case"))
    features.check_values_match(
        vocabulary,
        {"sha256": tokenizer.sha256},
        {"sha256": stored.get("vocabulary_sha256", tokenizer.sha256)},
        other=path,
        remedy="Restore the vocabulary of the run.",
    )
    assert isinstance(config, FinetuningConfig)
    return BaseModel(config.model, vocabulary, tokenizer, head=config.head)


def _vocabulary_of(config: FinetuningConfig, weights: ModelWeights) -> str:
    given, own = config.initialization.init_vocabulary, weights.vocabulary
    if not (given or own):
        raise UserError(
            f"{weights.source} must contain its vocabulary, "
            f"{features.TOKENIZER_FILE}",
            received="none",
            remedy="Pass the vocabulary of the model as --init_vocabulary.",
        )
    if given and own and Tokenizer(given).sha256 != Tokenizer(own).sha256:
        raise UserError(
            "init_vocabulary must be the vocabulary of init_checkpoint",
            received=f"{given}, and {own}, which differ",
            remedy="Omit --init_vocabulary.",
        )
    return given or own


def plan_start(config: FinetuningConfig, weights: ModelWeights) -> WarmStart:
    """Plans which weights a run takes over.

    The head is taken over only if the model was fine-tuned on a task with the
    same labels.
    """
    head, old = config.head, weights.head
    # The same weights score any number of choices.
    keeps_head = old is not None and head == dataclasses.replace(
        old, num_choices=head.num_choices
    )
    paths = [weight.path for weight in list_weights(config.model, head=head)]
    backbone = {weight.path for weight in list_weights(config.model)}
    sources = {
        path: path
        for path in paths
        if path in weights.values and (keeps_head or path in backbone)
    }
    report = make_report(config, weights, sources, paths)
    new = report["initialized"]
    report["initialized"] = [p for p in new if p not in weights.values]
    report["replaced"] = [p for p in new if p in weights.values]
    report["unused"] = sorted(set(weights.values) - set(paths))
    return WarmStart(weights, sources, None, False, report)
