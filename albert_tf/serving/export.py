"""Writes a trained run as a SavedModel: load, sign, write."""

import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from albert_tf.config import (
    ExportConfig,
    FinetuningConfig,
    PretrainingConfig,
)
from albert_tf.config.task_head import QUESTION_ANSWERING
from albert_tf.errors import UserError
from albert_tf.io.files import (
    PARTIAL_SUFFIX,
    exists,
    load_json_if_any,
    remove_directory,
    write_json,
)
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.modeling.task_model import AlbertForTask
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoints import model_variables
from albert_tf.runs.directory import (
    CONFIG_FILE,
    RECORDS_METADATA_FILE,
    null_threshold,
)
from albert_tf.runs.trained_model import load_run
from albert_tf.serving.names import (
    ASSETS_DIR,
    MODEL_CONFIG_FILE,
    SERVING_FILE,
    WARMUP_FILE,
)
from albert_tf.serving.signatures import Signatures, make_signatures
from albert_tf.serving.task_signatures import (
    AnswerRules,
    make_task_signatures,
)
from albert_tf.serving.text_tokenizer import TextTokenizer
from albert_tf.serving.warmup_requests import write_warmup_requests


class TrainedRun(NamedTuple):
    """The parts of a run that an export needs.

    Attributes:
        config: Settings of the run.
        pretrainer: The pretrained or fine-tuned model, with the weights of a
            checkpoint.
        step: Step of that checkpoint.
        records: Metadata of the training records; empty if unknown.
        vocabulary: Path of the run's SentencePiece model.
        tokenizer: The vocabulary; None if the run has none.
    """

    config: PretrainingConfig
    pretrainer: AlbertPretrainer | AlbertForTask
    step: int
    records: Mapping[str, Any]
    vocabulary: str
    tokenizer: Tokenizer | None


def export(config: ExportConfig) -> None:
    """Exports a run; `export_dir` appears only when it is complete.

    Raises:
        UserError: If the run or checkpoint does not exist, if `export_dir`
            holds something else, if `top_k` exceeds the vocabulary, or if
            text signatures are requested and the vocabulary or
            tensorflow-text is missing.
    """
    config.require("run_dir", "export_dir")
    export_dir = config.export_dir.rstrip("/")
    check_replaceable(export_dir)
    run = load(config)
    module, signatures = sign(run, config)

    partial = export_dir + PARTIAL_SUFFIX
    remove_directory(partial)
    tf.saved_model.save(module, partial, signatures=signatures)
    write_assets(posixpath.join(partial, ASSETS_DIR), run, signatures)
    remove_directory(export_dir)
    tf.io.gfile.rename(partial, export_dir)
    logging.info("exported step %d to %s", run.step, export_dir)


def check_replaceable(export_dir: str) -> None:
    """Refuses a directory that holds anything but an earlier export.

    Raises:
        UserError: If it holds anything else.
    """
    if not tf.io.gfile.exists(export_dir):
        return
    note = posixpath.join(export_dir, ASSETS_DIR, SERVING_FILE)
    if not tf.io.gfile.exists(note) and (
        not tf.io.gfile.isdir(export_dir) or tf.io.gfile.listdir(export_dir)
    ):
        raise UserError(
            "export_dir must be new, empty, or an earlier export",
            received=f"{export_dir}, which holds something else",
            remedy="Choose another --export_dir.",
        )


# --- load --------------------------------------------------------------------


def load(config: ExportConfig) -> TrainedRun:
    """Loads model and vocabulary of the run that `config` names.

    Raises:
        UserError: If the run, its checkpoint or its vocabulary is missing or
            does not fit.
    """
    _check_is_one_run(config.run_dir)
    run, pretrainer, step = load_run(config.run_dir, config.checkpoint_step)
    _check_null_threshold(config, run)
    if config.max_seq_length > run.model.max_position_embeddings:
        raise UserError(
            "max_seq_length must be at most max_position_embeddings",
            received=f"{config.max_seq_length} and "
            f"{run.model.max_position_embeddings}",
        )
    length = config.max_seq_length or _length_of_texts(run)
    run = run.replace(max_seq_length=length)
    if config.top_k > run.model.vocab_size:
        raise UserError(
            "top_k must be at most vocab_size",
            received=f"{config.top_k} and {run.model.vocab_size}",
        )
    metadata = load_json_if_any(
        posixpath.join(config.run_dir, RECORDS_METADATA_FILE)
    )
    records = metadata or {}
    vocabulary = posixpath.join(config.run_dir, TOKENIZER_FILE)
    tokenizer = None
    if exists(vocabulary):
        tokenizer = load_tokenizer(vocabulary, records, run.model.vocab_size)
    elif config.text_signatures:
        raise UserError(
            f"{vocabulary} must exist for signatures that take text",
            received="no such file",
            remedy="Copy the SentencePiece model of the records there, "
            "or set --notext_signatures.",
        )
    else:
        logging.warning(
            "%s does not exist: the SavedModel has no vocabulary", vocabulary
        )
    return TrainedRun(run, pretrainer, step, records, vocabulary, tokenizer)


def _check_is_one_run(run_dir: str) -> None:
    """Refuses the directory of several runs of fine-tuning."""
    if exists(posixpath.join(run_dir, CONFIG_FILE)):
        return
    first = posixpath.join(run_dir, "run-1")
    if exists(posixpath.join(first, CONFIG_FILE)):
        raise UserError(
            "run_dir must be the directory of one run",
            received=f"{run_dir}, which has several runs (--num_runs): "
            "run-1, run-2 and so on",
            remedy=f"Give one of them, e.g. --run_dir={first}. run_finetuning "
            "prints their scores in this order.",
        )


def _check_null_threshold(config: ExportConfig, run: PretrainingConfig) -> None:
    kind = run.head.kind if isinstance(run, FinetuningConfig) else "pretraining"
    if config.null_threshold and kind != QUESTION_ANSWERING:
        raise UserError(
            "null_threshold needs a run of question answering",
            received=f"{config.null_threshold} and a run of {kind}",
            remedy="Omit --null_threshold.",
        )


def _length_of_texts(run: PretrainingConfig) -> int:
    """The length of training, but enough for a question and its context.

    A run on short texts stores the length of the longest one.
    """
    length = run.data.max_seq_length
    if not isinstance(run, FinetuningConfig) or run.head.has_pooler:
        return length
    task = run.task
    if length > task.max_query_length + 3:
        return length
    # The context of the longest question has `doc_stride` tokens, and windows
    # of other contexts overlap.
    needed = task.max_query_length + 3 + task.doc_stride
    longer = max(length, min(needed, run.model.max_position_embeddings))
    logging.info(
        "sequences of the run have at most %d tokens, too few for a question "
        "of max_query_length=%d: texts are cut after %d",
        length,
        task.max_query_length,
        longer,
    )
    return longer


def load_tokenizer(
    vocabulary: str, records: Mapping[str, Any], vocab_size: int
) -> Tokenizer:
    """Loads the vocabulary that the run was trained with.

    Args:
        vocabulary: Path of the SentencePiece model.
        records: Metadata of the training records; empty if unknown.
        vocab_size: Number of pieces of the model.

    Raises:
        UserError: If it is not the vocabulary of the run's records.
    """
    tokenizer = Tokenizer(vocabulary, records.get("do_lower_case"))
    if records.get("vocabulary_sha256") not in (None, tokenizer.sha256):
        raise UserError(
            f"{vocabulary} must be the vocabulary of the training records",
            received=f"sha256 {tokenizer.sha256}, not "
            f"{records['vocabulary_sha256']}",
        )
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{vocabulary} must have as many pieces as vocab_size, "
            f"{vocab_size}",
            received=tokenizer.vocab_size,
        )
    return tokenizer


# --- sign --------------------------------------------------------------------


def sign(run: TrainedRun, config: ExportConfig) -> tuple[tf.Module, Signatures]:
    """Traces the signatures.

    Returns:
        The module that holds the variables, and its signatures by name.

    Raises:
        UserError: If text signatures are requested and tensorflow-text is
            missing.
    """
    text_tokenizer = None
    if run.tokenizer and config.text_signatures:
        text_tokenizer = TextTokenizer(
            run.vocabulary, run.tokenizer.do_lower_case
        )
    module = tf.Module()
    # Only the variables: a Keras layer would be traced a second time.
    module.model_variables = model_variables(run.pretrainer)
    # Holds the SentencePiece model, a resource of the graph.
    module.text_tokenizer = text_tokenizer
    if isinstance(run.pretrainer, AlbertForTask):
        assert isinstance(run.config, FinetuningConfig)
        threshold = null_threshold(config.run_dir, run.config)
        if config.null_threshold:
            threshold = float(config.null_threshold)
        rules = AnswerRules(
            run.config.data.max_seq_length, run.config.task, threshold
        )
        return module, make_task_signatures(
            run.pretrainer, rules, text_tokenizer
        )
    signatures = make_signatures(
        run.pretrainer,
        config.top_k,
        run.config.data.max_seq_length,
        text_tokenizer,
    )
    return module, signatures


# --- write -------------------------------------------------------------------


def write_assets(
    directory: str, run: TrainedRun, signatures: Signatures
) -> None:
    """Writes architecture, `serving.json`, vocabulary and warm-up requests."""
    tf.io.gfile.makedirs(directory)
    documents = {
        MODEL_CONFIG_FILE: run.config.model.to_dict(),
        SERVING_FILE: describe_serving(run),
    }
    for name, values in documents.items():
        write_json(posixpath.join(directory, name), values)
    if run.tokenizer:
        tf.io.gfile.copy(
            run.vocabulary, posixpath.join(directory, TOKENIZER_FILE)
        )
    write_warmup_requests(
        posixpath.join(directory, WARMUP_FILE),
        {
            name: function.input_signature
            for name, function in signatures.items()
        },
    )


def describe_serving(run: TrainedRun) -> dict[str, Any]:
    """The content of `serving.json`.

    Returns:
        A dictionary with these keys: `step` of the checkpoint;
        `max_seq_length` and `sentence_objective` of the run; and
        `vocabulary_kind`, `do_lower_case` and `vocabulary_sha256`, from the
        vocabulary, or without it from the metadata of the records, or None.
        With a "self_contained" vocabulary, SentencePiece alone makes the ids
        of raw text; a "published" one needs `tokenization.Tokenizer`.
    """
    records = run.records
    if run.tokenizer:
        records = {
            "vocabulary_kind": run.tokenizer.kind,
            "do_lower_case": run.tokenizer.do_lower_case,
            "vocabulary_sha256": run.tokenizer.sha256,
        }
    return {
        "step": run.step,
        "max_seq_length": run.config.data.max_seq_length,
        "sentence_objective": run.config.training.sentence_objective,
        "vocabulary_kind": records.get("vocabulary_kind"),
        "do_lower_case": records.get("do_lower_case"),
        "vocabulary_sha256": records.get("vocabulary_sha256"),
    }
