"""Writes a trained run as a SavedModel: load, sign, write.

docs/serving.md describes the signatures. All call one function, so that the
file holds the graph of the model once.
"""

import functools
import math
import posixpath
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from albert_tf.config import (
    ExportConfig,
    FinetuningConfig,
    PretrainingConfig,
)
from albert_tf.errors import UserError
from albert_tf.io.files import (
    exists,
    load_json_if_any,
    new_directory,
    write_json,
)
from albert_tf.modeling.heads import mean_of_tokens
from albert_tf.modeling.models import AlbertForTask, AlbertPretrainer
from albert_tf.records.features import (
    MASK_ID,
    TOKENIZER_FILE,
)
from albert_tf.records.questions import WindowMaker
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoints import model_variables
from albert_tf.runs.directory import (
    RECORDS_METADATA_FILE,
    load_run,
    load_tokenizer,
    null_threshold,
)
from albert_tf.serving import predict
from albert_tf.serving.constant_weights import make_constant
from albert_tf.serving.kinds import (
    KINDS,
    PACKED,
    Outputs,
    Signatures,
    as_signature,
    checked_ids,
    from_texts,
    ids_of,
    serve_task,
    strings,
)
from albert_tf.serving.text_tokenizer import TextTokenizer, pack

# With a "self_contained" vocabulary, SentencePiece alone makes the ids of raw
# text; a "published" one needs `tokenization.Tokenizer`.
_OF_VOCABULARY = ("vocabulary_kind", "do_lower_case", "vocabulary_sha256")


def export(config: ExportConfig) -> None:
    """Exports a run; `export_dir` appears only when it is complete.

    Raises:
        UserError: If the run, the checkpoint or its vocabulary does not exist
            or does not fit, if `export_dir` exists, or if text signatures are
            requested and the vocabulary or tensorflow-text is missing.
    """
    export_dir = config.export_dir.rstrip("/")
    with new_directory(export_dir, "export_dir") as partial:
        step = _export(config, partial)
    logging.info("exported step %d to %s", step, export_dir)


def _export(config: ExportConfig, directory: str) -> int:
    """Writes the SavedModel, and returns the step of its checkpoint."""
    # The weights of the encoder become constants of another precision.
    changes = {"precision": "float32"} if config.precision else {}
    loaded = load(config, **changes)
    model, run, tokenizer = loaded.model, loaded.run, loaded.tokenizer
    text_tokenizer = None
    # For question answering, the client tokenizes.
    asks_client = predict.QUESTION_ANSWERING in loaded.serving
    if tokenizer and config.text_signatures and not asks_client:
        text_tokenizer = TextTokenizer(
            loaded.vocabulary, tokenizer.do_lower_case
        )

    module = tf.Module()
    # Only the variables: a Keras layer would be traced a second time.
    module.model_variables = model_variables(model)
    # Holds the SentencePiece model, a resource of the graph.
    module.text_tokenizer = text_tokenizer
    if config.precision:
        predict.warn_of_slow_products(config.precision)
        module.model_variables = make_constant(model, config.precision)
        loaded.serving["precision"] = config.precision
    if isinstance(model, AlbertForTask):
        assert isinstance(run, FinetuningConfig)
        signatures = serve_task(model, run, text_tokenizer)
    else:
        length = run.data.max_seq_length
        signatures = serve_pretrained(
            model, config.top_k, length, text_tokenizer
        )
    tf.saved_model.save(module, directory, signatures=signatures)
    write_assets(loaded, posixpath.join(directory, predict.ASSETS_DIR))
    return loaded.step


class LoadedRun(NamedTuple):
    """A run to export.

    Attributes:
        run: Its settings; `max_seq_length` is that of the export.
        vocabulary: Path of the SentencePiece model.
        tokenizer: The vocabulary; None if it is missing and not needed.
        serving: The content of serving.json.
    """

    run: PretrainingConfig
    model: AlbertPretrainer | AlbertForTask
    step: int
    vocabulary: str
    tokenizer: Tokenizer | None
    serving: dict[str, Any]


def load(config: ExportConfig, **changes: Any) -> LoadedRun:
    """Loads and checks the run that `config` names; see `export`.

    Args:
        changes: Settings that differ from those of training.
    """
    run, model, step = load_run(
        config.run_dir, config.checkpoint_step, **changes
    )
    length = run.data.max_seq_length
    if isinstance(run, FinetuningConfig):
        length = run.data.text_length
    run = run.replace(max_seq_length=config.max_seq_length or length)
    vocabulary = posixpath.join(config.run_dir, TOKENIZER_FILE)
    tokenizer = None
    if exists(vocabulary):
        tokenizer = load_tokenizer(config.run_dir, run.model.vocab_size)
    elif config.text_signatures:
        raise UserError(
            f"{vocabulary} must exist for signatures that take text",
            received="no such file",
            remedy="Copy the SentencePiece model of the records there, or set "
            "--notext_signatures.",
        )
    else:
        logging.warning(
            "%s does not exist: the SavedModel has no vocabulary", vocabulary
        )
    metadata = posixpath.join(config.run_dir, RECORDS_METADATA_FILE)
    described = load_json_if_any(metadata) or {}
    if tokenizer:
        described = tokenizer.describe()
    serving = {
        "step": step,
        "max_seq_length": run.data.max_seq_length,
        "sentence_objective": run.training.sentence_objective,
        **{name: described.get(name) for name in _OF_VOCABULARY},
    }
    if tokenizer and tokenizer.keep_accents:
        serving["keep_accents"] = True
    if isinstance(run, FinetuningConfig) and KINDS[run.head.kind].asks_client:
        serving[predict.QUESTION_ANSWERING] = _describe_answers(config, run)
        if tokenizer:  # refuses a length that leaves no room for a document
            WindowMaker(tokenizer, run.task, run.data.max_seq_length)
    return LoadedRun(run, model, step, vocabulary, tokenizer, serving)


def write_assets(loaded: LoadedRun, directory: str) -> None:
    """Writes what a client needs: architecture, description, vocabulary."""
    path = functools.partial(posixpath.join, directory)
    tf.io.gfile.makedirs(path(""))
    write_json(path("albert_config.json"), loaded.run.model.to_dict())
    write_json(path(predict.SERVING_FILE), loaded.serving)
    if loaded.tokenizer:
        tf.io.gfile.copy(loaded.vocabulary, path(TOKENIZER_FILE))


def _describe_answers(
    config: ExportConfig, run: FinetuningConfig
) -> dict[str, Any]:
    """What a client needs to find answers in scores."""
    threshold = float(
        config.null_threshold or null_threshold(config.run_dir, run)
    )
    task = run.task
    return {
        "squad_head": run.head.squad_head,
        # JSON has no infinity, the threshold of SQuAD 1.1.
        "null_threshold": None if math.isinf(threshold) else threshold,
        "doc_stride": task.doc_stride,
        "max_query_length": task.max_query_length,
        "max_answer_length": task.max_answer_length,
        "n_best_size": task.n_best_size,
    }


# --- pretrained models -------------------------------------------------------


def serve_pretrained(
    pretrainer: AlbertPretrainer,
    top_k: int,
    max_seq_length: int,
    tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """The serving functions of a pretrained model, by name of the signature.

    Args:
        pretrainer: The model, built and restored.
        top_k: Number of pieces returned for each mask.
        max_seq_length: Number of tokens after which text is cut off.
        tokenizer: The vocabulary; None omits the signatures that take text.
    """
    max_length = pretrainer.config.max_position_embeddings

    @tf.function(input_signature=PACKED)
    def forward(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Outputs:
        outputs = pretrainer.encode(
            {
                "input_ids": checked_ids(input_ids, max_length),
                "input_mask": input_mask,
                "segment_ids": segment_ids,
            }
        )
        return {k: tf.cast(v, tf.float32) for k, v in outputs.items()}

    def encode(*packed: tf.Tensor) -> Outputs:
        outputs = dict(forward(*packed))
        outputs.pop("sentence_logits", None)
        return outputs

    def encode_text(*packed: tf.Tensor) -> Outputs:
        ids = dict(zip(("input_ids", "input_mask"), packed, strict=False))
        return encode(*packed) | ids

    def top(positions: tf.Tensor, *packed: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Log probabilities and ids, each `(batch, predictions, top_k)`."""
        hidden = forward(*packed)["sequence_output"]
        hidden = tf.gather(hidden, positions, batch_dims=1)
        logits = pretrainer.mlm_logits(hidden)
        return tf.math.top_k(tf.nn.log_softmax(logits), top_k)

    def fill(*inputs: tf.Tensor) -> Outputs:
        *packed, positions = inputs
        log_probabilities, top_ids = top(positions, *packed)
        return {"top_ids": top_ids, "top_log_probabilities": log_probabilities}

    def fill_text(text: tf.Tensor) -> Outputs:
        assert tokenizer is not None
        ids = tokenizer.encode_with_masks(text)
        packed = pack(max_seq_length, ids)
        positions, is_kept = _find_masks(ids, packed.input_ids)
        log_probabilities, top_ids = top(positions, *packed)
        is_kept = is_kept[:, :, tf.newaxis]
        return {
            "top_pieces": tf.where(is_kept, tokenizer.spell(top_ids), ""),
            "top_probabilities": tf.where(
                is_kept, tf.exp(log_probabilities), 0.0
            ),
        }

    def embed(*packed: tf.Tensor) -> Outputs:
        _, input_mask, _ = packed
        hidden = forward(*packed)["sequence_output"]
        embedding = mean_of_tokens(hidden, input_mask)
        return {
            "embedding": embedding,
            "normalized_embedding": tf.math.l2_normalize(embedding, axis=-1),
        }

    def classify(*packed: tf.Tensor) -> Outputs:
        logits = forward(*packed)["sentence_logits"]
        return sentence_probabilities(pretrainer, logits)

    with_masks = PACKED + ids_of("masked_lm_positions")
    encode_ids = as_signature(encode, PACKED)
    signatures = {
        "serving_default": encode_ids,
        "encode": encode_ids,
        "fill_mask": as_signature(fill, with_masks),
        "embed": as_signature(embed, PACKED),
    }
    sentence = predict.SENTENCE_ANSWERS.get(pretrainer.sentence_objective)
    if sentence:
        signatures[sentence.name] = as_signature(classify, PACKED)
    if tokenizer:
        texts = tokenizer, max_seq_length, "text"
        pairs = *texts, "text_pair"
        signatures["embed_text"] = from_texts(embed, *texts)
        signatures["encode_text"] = from_texts(encode_text, *texts)
        signatures["encode_text_pair"] = from_texts(encode_text, *pairs)
        signatures["fill_mask_text"] = as_signature(fill_text, strings("text"))
        if sentence:
            name = f"{sentence.name}_text_pair"
            signatures[name] = from_texts(classify, *pairs)
    return signatures


def sentence_probabilities(
    pretrainer: AlbertPretrainer, logits: tf.Tensor
) -> Outputs:
    """The probability of each class of pairs, float32, `(batch,)`, by name."""
    names = predict.SENTENCE_ANSWERS[pretrainer.sentence_objective].outputs
    columns = tf.unstack(tf.nn.softmax(logits), axis=-1)
    return dict(zip(names, columns, strict=True))


def _find_masks(
    ids: tf.RaggedTensor, input_ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the masks of texts, `ids`, in `input_ids`, packed and cut.

    Returns:
        Positions, int32, and whether they are masks, bool, `(batch, masks)`:
        False for a mask that was cut off, and where a text has fewer masks.
    """
    masks = tf.reduce_sum(tf.cast(ids == MASK_ID, tf.int32), axis=1)
    positions = tf.ragged.boolean_mask(
        tf.zeros_like(input_ids) + tf.range(tf.shape(input_ids)[1]),
        input_ids == MASK_ID,
    )
    shape = [-1, tf.maximum(tf.reduce_max(masks), 0)]  # there may be no texts
    padded = positions.to_tensor(0, shape=shape)
    is_kept = tf.ones_like(positions).to_tensor(0, shape=shape)
    return padded, is_kept > 0
