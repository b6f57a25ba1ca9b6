"""Writes a trained run as a SavedModel: load, sign, write."""

import functools
import math
import posixpath
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import (
    ExportConfig,
    FinetuningConfig,
    PretrainingConfig,
)
from albert_tf.config.task import QUESTION_ANSWERING
from albert_tf.errors import UserError
from albert_tf.io.files import (
    PARTIAL_SUFFIX,
    exists,
    load_json_if_any,
    remove_directory,
    write_json,
)
from albert_tf.modeling.models import AlbertForTask
from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    SEP_ID,
    TOKENIZER_FILE,
)
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoints import model_variables
from albert_tf.runs.directory import (
    CONFIG_FILE,
    RECORDS_METADATA_FILE,
    null_threshold,
)
from albert_tf.runs.trained_model import load_run
from albert_tf.serving import predict
from albert_tf.serving.signatures import (
    Signatures,
    make_signatures,
    make_task_signatures,
)
from albert_tf.serving.text_tokenizer import TextTokenizer


def export(config: ExportConfig) -> None:
    """Exports a run; `export_dir` appears only when it is complete.

    Raises:
        UserError: If the run, the checkpoint or its vocabulary does not exist
            or does not fit, if `export_dir` holds something else, if `top_k`
            exceeds the vocabulary, or if text signatures are requested and the
            vocabulary or tensorflow-text is missing.
    """
    config.require("run_dir", "export_dir")
    export_dir = config.export_dir.rstrip("/")
    _check_replaceable(export_dir)
    _check_is_one_run(config.run_dir)
    run, model, step = load_run(config.run_dir, config.checkpoint_step)
    run = run.replace(max_seq_length=_length_of_texts(config, run))
    if config.top_k > run.model.vocab_size:
        raise UserError(
            "top_k must be at most vocab_size",
            received=f"{config.top_k} and {run.model.vocab_size}",
        )
    vocabulary = posixpath.join(config.run_dir, TOKENIZER_FILE)
    records = load_json_if_any(
        posixpath.join(config.run_dir, RECORDS_METADATA_FILE)
    )
    tokenizer = _load_tokenizer(config, vocabulary, records or {}, run)
    serving = {
        "step": step,
        "max_seq_length": run.data.max_seq_length,
        "sentence_objective": run.training.sentence_objective,
        **_describe_vocabulary(tokenizer, records or {}),
        **_describe_answers(config, run),
    }
    text_tokenizer = None
    asks_client = predict.QUESTION_ANSWERING in serving  # for its text
    if tokenizer and config.text_signatures and not asks_client:
        text_tokenizer = TextTokenizer(vocabulary, tokenizer.do_lower_case)
    if isinstance(model, AlbertForTask):
        assert isinstance(run, FinetuningConfig)
        signatures = make_task_signatures(model, run, text_tokenizer)
    else:
        length = run.data.max_seq_length
        signatures = make_signatures(
            model, config.top_k, length, text_tokenizer
        )
    module = tf.Module()
    # Only the variables: a Keras layer would be traced a second time.
    module.model_variables = model_variables(model)
    # Holds the SentencePiece model, a resource of the graph.
    module.text_tokenizer = text_tokenizer

    partial = export_dir + PARTIAL_SUFFIX
    remove_directory(partial)
    tf.saved_model.save(module, partial, signatures=signatures)
    path = functools.partial(posixpath.join, partial, predict.ASSETS_DIR)
    tf.io.gfile.makedirs(path(""))
    write_json(path("albert_config.json"), run.model.to_dict())
    write_json(path(predict.SERVING_FILE), serving)
    if tokenizer:
        tf.io.gfile.copy(vocabulary, path(TOKENIZER_FILE))
    _write_warmup_requests(path("tf_serving_warmup_requests"), signatures)
    remove_directory(export_dir)
    tf.io.gfile.rename(partial, export_dir)
    logging.info("exported step %d to %s", step, export_dir)


def _check_replaceable(export_dir: str) -> None:
    """Refuses a directory that holds anything but an earlier export."""
    note = posixpath.join(export_dir, predict.ASSETS_DIR, predict.SERVING_FILE)
    if not tf.io.gfile.exists(export_dir) or tf.io.gfile.exists(note):
        return
    if not tf.io.gfile.isdir(export_dir) or tf.io.gfile.listdir(export_dir):
        raise UserError(
            "export_dir must be new, empty, or an earlier export",
            received=f"{export_dir}, which holds something else",
            remedy="Choose another --export_dir.",
        )


def _check_is_one_run(run_dir: str) -> None:
    """Refuses the directory of several runs of fine-tuning."""
    first = posixpath.join(run_dir, "run-1")
    if not exists(posixpath.join(run_dir, CONFIG_FILE)) and exists(
        posixpath.join(first, CONFIG_FILE)
    ):
        raise UserError(
            "run_dir must be the directory of one run",
            received=f"{run_dir}, which has several runs (--num_runs): "
            "run-1, run-2 and so on",
            remedy=f"Give one of them, e.g. --run_dir={first}. run_finetuning "
            "prints their scores in this order.",
        )


def _length_of_texts(config: ExportConfig, run: PretrainingConfig) -> int:
    """The length of training, but enough for a question and its context.

    A run on short texts stores the length of the longest one.
    """
    positions = run.model.max_position_embeddings
    if config.max_seq_length > positions:
        raise UserError(
            "max_seq_length must be at most max_position_embeddings",
            received=f"{config.max_seq_length} and {positions}",
        )
    length = config.max_seq_length or run.data.max_seq_length
    if not isinstance(run, FinetuningConfig) or run.head.has_pooler:
        return length
    needed = run.task.max_query_length + 3
    if length <= needed and not config.max_seq_length:
        # The context of the longest question has `doc_stride` tokens, and
        # windows of other contexts overlap.
        length = max(length, min(needed + run.task.doc_stride, positions))
        logging.info(
            "sequences of the run have at most %d tokens, too few for a "
            "question of max_query_length=%d: texts are cut after %d",
            run.data.max_seq_length,
            run.task.max_query_length,
            length,
        )
    if config.text_signatures and length <= needed:
        raise UserError(
            "max_seq_length must be above max_query_length + 3, so that a "
            "question leaves room for its context",
            received=f"{length} and {run.task.max_query_length}",
            remedy="Export with a larger --max_seq_length.",
        )
    return length


def _load_tokenizer(
    config: ExportConfig,
    vocabulary: str,
    records: Mapping[str, Any],
    run: PretrainingConfig,
) -> Tokenizer | None:
    """Loads the vocabulary, and checks that the run was trained with it."""
    if not exists(vocabulary):
        if config.text_signatures:
            raise UserError(
                f"{vocabulary} must exist for signatures that take text",
                received="no such file",
                remedy="Copy the SentencePiece model of the records there, "
                "or set --notext_signatures.",
            )
        logging.warning(
            "%s does not exist: the SavedModel has no vocabulary", vocabulary
        )
        return None
    tokenizer = Tokenizer(vocabulary, records.get("do_lower_case"))
    if records.get("vocabulary_sha256") not in (None, tokenizer.sha256):
        raise UserError(
            f"{vocabulary} must be the vocabulary of the training records",
            received=f"sha256 {tokenizer.sha256}, not "
            f"{records['vocabulary_sha256']}",
        )
    if tokenizer.vocab_size != run.model.vocab_size:
        raise UserError(
            f"{vocabulary} must have as many pieces as vocab_size, "
            f"{run.model.vocab_size}",
            received=tokenizer.vocab_size,
        )
    return tokenizer


def _describe_vocabulary(
    tokenizer: Tokenizer | None, records: Mapping[str, Any]
) -> dict[str, Any]:
    """Of the vocabulary, or without it of the records; None if unknown.

    With a "self_contained" vocabulary, SentencePiece alone makes the ids of raw
    text; a "published" one needs `tokenization.Tokenizer`.
    """
    names = ("vocabulary_kind", "do_lower_case", "vocabulary_sha256")
    values: tuple[Any, ...] = tuple(map(records.get, names))
    if tokenizer:
        values = tokenizer.kind, tokenizer.do_lower_case, tokenizer.sha256
    return dict(zip(names, values, strict=True))


def _describe_answers(
    config: ExportConfig, run: PretrainingConfig
) -> dict[str, Any]:
    """What a client needs to find answers in scores; {} of other models."""
    kind = run.head.kind if isinstance(run, FinetuningConfig) else "pretraining"
    if kind != QUESTION_ANSWERING:
        if config.null_threshold:
            raise UserError(
                "null_threshold needs a run of question answering",
                received=f"{config.null_threshold} and a run of {kind}",
                remedy="Omit --null_threshold.",
            )
        return {}
    assert isinstance(run, FinetuningConfig)
    threshold = float(
        config.null_threshold or null_threshold(config.run_dir, run)
    )
    settings = ("doc_stride", "max_query_length", "max_answer_length")
    return {
        predict.QUESTION_ANSWERING: {
            "squad_head": run.head.squad_head,
            # JSON has no infinity, the threshold of SQuAD 1.1.
            "null_threshold": None if math.isinf(threshold) else threshold,
            **{name: getattr(run.task, name) for name in settings},
            "n_best_size": run.task.n_best_size,
        }
    }


# --- warm-up requests -------------------------------------------------------

# Values of the last dimension of each input of any signature. Other dimensions
# are 1 if they are free.
_EXAMPLES: Mapping[str, Any] = {
    "text": "The city is the [MASK] of the country.",
    "text_pair": "It lies on a river.",
    "question": "Where does it lie?",
    "context": "The city lies on a river.",
    "choices": "On a river.",
    "input_ids": [CLS_ID, MASK_ID, SEP_ID],
    "input_mask": [1, 1, 1],
    "segment_ids": [0, 0, 0],
    "p_mask": [0, 1, 1],
    "masked_lm_positions": [1],
}


def _write_warmup_requests(path: str, signatures: Signatures) -> None:
    """Writes the requests with which TensorFlow Serving warms up a model.

    The server reads TFRecords of the protocol buffer `PredictionLog`. Its few
    fields in use are encoded here, so that an export does not need the package
    that defines the message, tensorflow-serving-api.

    Reference:
        [SavedModel warmup](
        https://www.tensorflow.org/tfx/serving/saved_model_warmup).
    """
    with tf.io.TFRecordWriter(path) as writer:
        for name, function in signatures.items():
            # PredictRequest: model_spec.signature_name, and the map of inputs.
            request = _field(1, _field(3, name.encode()))
            for spec in function.input_signature:
                value = np.array(_EXAMPLES[spec.name])
                shape = [size or 1 for size in spec.shape]
                shape[len(shape) - value.ndim :] = value.shape
                tensor = tf.make_tensor_proto(
                    np.broadcast_to(value, shape), spec.dtype
                ).SerializeToString()
                entry = _field(1, spec.name.encode()) + _field(2, tensor)
                request += _field(2, entry)
            # PredictionLog.predict_log.request
            writer.write(_field(6, _field(1, request)))


def _field(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer that holds bytes, text or a message."""
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content
