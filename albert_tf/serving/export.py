"""Writes a trained run as a SavedModel: load, sign, write."""

import functools
import math
import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.modeling.task_model import AlbertForTask
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
from albert_tf.serving import names
from albert_tf.serving.signatures import (
    Signatures,
    make_signatures,
    make_task_signatures,
)
from albert_tf.serving.text_tokenizer import TextTokenizer


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
        question_answering: What a client needs to find answers in the scores
            of the model; None for other models.
    """

    config: PretrainingConfig
    pretrainer: AlbertPretrainer | AlbertForTask
    step: int
    records: Mapping[str, Any]
    vocabulary: str
    tokenizer: Tokenizer | None
    question_answering: Mapping[str, Any] | None


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
    _check_replaceable(export_dir)
    run = load(config)
    module, signatures = sign(run, config)

    partial = export_dir + PARTIAL_SUFFIX
    remove_directory(partial)
    tf.saved_model.save(module, partial, signatures=signatures)
    _write_assets(posixpath.join(partial, names.ASSETS_DIR), run, signatures)
    remove_directory(export_dir)
    tf.io.gfile.rename(partial, export_dir)
    logging.info("exported step %d to %s", run.step, export_dir)


def _check_replaceable(export_dir: str) -> None:
    """Refuses a directory that holds anything but an earlier export."""
    if not tf.io.gfile.exists(export_dir):
        return
    note = posixpath.join(export_dir, names.ASSETS_DIR, names.SERVING_FILE)
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
        tokenizer = _load_tokenizer(vocabulary, records, run.model.vocab_size)
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
    return TrainedRun(
        run,
        pretrainer,
        step,
        records,
        vocabulary,
        tokenizer,
        _question_answering(config, run),
    )


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


def _question_answering(
    config: ExportConfig, run: PretrainingConfig
) -> dict[str, Any] | None:
    kind = run.head.kind if isinstance(run, FinetuningConfig) else "pretraining"
    if kind != QUESTION_ANSWERING:
        if config.null_threshold:
            raise UserError(
                "null_threshold needs a run of question answering",
                received=f"{config.null_threshold} and a run of {kind}",
                remedy="Omit --null_threshold.",
            )
        return None
    assert isinstance(run, FinetuningConfig)
    task, max_seq_length = run.task, run.data.max_seq_length
    if config.text_signatures and task.max_query_length + 3 >= max_seq_length:
        raise UserError(
            "max_seq_length must be above max_query_length + 3, so that a "
            "question leaves room for its context",
            received=f"{max_seq_length} and {task.max_query_length}",
            remedy="Export with a larger --max_seq_length.",
        )
    threshold = float(
        config.null_threshold or null_threshold(config.run_dir, run)
    )
    return {
        "squad_head": run.head.squad_head,
        # JSON has no infinity, the threshold of SQuAD 1.1.
        "null_threshold": None if math.isinf(threshold) else threshold,
        "doc_stride": task.doc_stride,
        "max_query_length": task.max_query_length,
        "max_answer_length": task.max_answer_length,
        "n_best_size": task.n_best_size,
    }


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


def _load_tokenizer(
    vocabulary: str, records: Mapping[str, Any], vocab_size: int
) -> Tokenizer:
    """Loads the vocabulary, and checks that the run was trained with it."""
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
    """Traces the signatures; returns them with the module of their variables.

    Raises:
        UserError: If text signatures are requested and tensorflow-text is
            missing.
    """
    text_tokenizer = None
    takes_text = config.text_signatures and run.question_answering is None
    if run.tokenizer and takes_text:
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
        return module, make_task_signatures(
            run.pretrainer, run.config, text_tokenizer
        )
    signatures = make_signatures(
        run.pretrainer,
        config.top_k,
        run.config.data.max_seq_length,
        text_tokenizer,
    )
    return module, signatures


# --- write -------------------------------------------------------------------


def _write_assets(
    directory: str, run: TrainedRun, signatures: Signatures
) -> None:
    """Writes architecture, `serving.json`, vocabulary and warm-up requests."""
    tf.io.gfile.makedirs(directory)
    path = functools.partial(posixpath.join, directory)
    write_json(path("albert_config.json"), run.config.model.to_dict())
    write_json(path(names.SERVING_FILE), describe_serving(run))
    if run.tokenizer:
        tf.io.gfile.copy(run.vocabulary, path(TOKENIZER_FILE))
    _write_warmup_requests(path("tf_serving_warmup_requests"), signatures)


def describe_serving(run: TrainedRun) -> dict[str, Any]:
    """The content of `serving.json`.

    Returns:
        A dictionary with these keys: `step` of the checkpoint;
        `max_seq_length` and `sentence_objective` of the run; and
        `vocabulary_kind`, `do_lower_case` and `vocabulary_sha256`, from the
        vocabulary, or without it from the metadata of the records, or None.
        With a "self_contained" vocabulary, SentencePiece alone makes the ids
        of raw text; a "published" one needs `tokenization.Tokenizer`. A model
        for question answering has the settings of `TrainedRun`, too.
    """
    records = run.records
    if run.tokenizer:
        records = {
            "vocabulary_kind": run.tokenizer.kind,
            "do_lower_case": run.tokenizer.do_lower_case,
            "vocabulary_sha256": run.tokenizer.sha256,
        }
    described = {
        "step": run.step,
        "max_seq_length": run.config.data.max_seq_length,
        "sentence_objective": run.config.training.sentence_objective,
        "vocabulary_kind": records.get("vocabulary_kind"),
        "do_lower_case": records.get("do_lower_case"),
        "vocabulary_sha256": records.get("vocabulary_sha256"),
    }
    if run.question_answering is not None:
        described[names.QUESTION_ANSWERING] = run.question_answering
    return described


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

# Message -> its fields: name, number and type. A repeated message with key and
# value has the encoding of a map, and bytes have that of an embedded message.
_FIELDS: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "PredictionLog": (("predict_log", 6, "PredictLog"),),
    "PredictLog": (("request", 1, "PredictRequest"),),
    "PredictRequest": (
        ("model_spec", 1, "ModelSpec"),
        ("inputs", 2, "repeated Input"),
    ),
    "ModelSpec": (("signature_name", 3, "string"),),
    "Input": (("key", 1, "string"), ("value", 2, "bytes")),
}


def _write_warmup_requests(path: str, signatures: Signatures) -> None:
    """Writes the requests with which TensorFlow Serving warms up a model.

    The server reads TFRecords of the protocol buffer `PredictionLog`. The few
    fields in use are declared here, so that an export does not need the package
    that defines the message, tensorflow-serving-api.

    Reference:
        [SavedModel warmup](
        https://www.tensorflow.org/tfx/serving/saved_model_warmup).
    """
    with tf.io.TFRecordWriter(path) as writer:
        for name, function in signatures.items():
            log = _prediction_log_class()()
            request = log.predict_log.request
            request.model_spec.signature_name = name
            for spec in function.input_signature:
                tensor = tf.make_tensor_proto(_example(spec), spec.dtype)
                request.inputs.add(
                    key=spec.name, value=tensor.SerializeToString()
                )
            writer.write(log.SerializeToString())


def _example(spec: tf.TensorSpec) -> np.ndarray:
    """A value for an input: a batch of one."""
    value = np.array(_EXAMPLES[spec.name])
    shape = [size or 1 for size in spec.shape]
    shape[len(shape) - value.ndim :] = value.shape
    return np.broadcast_to(value, shape)


@functools.cache
def _prediction_log_class() -> Any:
    """The message class of `PredictionLog`, with the fields above."""
    package = "albert_tf.serving"
    field_proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="warmup_requests.proto", package=package
    )
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, number, type_name in fields:
            field = message.field.add(name=name, number=number)
            field.label = field_proto.LABEL_OPTIONAL
            if type_name.startswith("repeated "):
                type_name = type_name.removeprefix("repeated ")
                field.label = field_proto.LABEL_REPEATED
            if type_name in _FIELDS:
                field.type_name = f".{package}.{type_name}"
                field.type = field_proto.TYPE_MESSAGE
            else:
                field.type = field_proto.Type.Value(f"TYPE_{type_name.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{package}.PredictionLog")
    )
