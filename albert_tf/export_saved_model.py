r"""Exports a pretrained run as a SavedModel with serving signatures.

    python -m albert_tf.export_saved_model \
      --run_dir=build/demo/run --export_dir=build/demo/saved_model

Signatures, on ids, with any batch size and any length up to
`max_position_embeddings` (int32 in; float32 out, but for the ids):

    encode          input_ids, input_mask, segment_ids: (batch, length)
                    -> sequence_output: (batch, length, H)
                       pooled_output: (batch, H)
    serving_default the same
    fill_mask       the same, and masked_lm_positions: (batch, predictions)
                    -> top_ids: int32, (batch, predictions, top_k)
                       top_log_probabilities: (batch, predictions, top_k)
    sentence_order  input_ids, input_mask, segment_ids: (batch, length)
                    -> in_order, swapped: (batch,), probabilities

A run of `--sentence_objective=nsp` has `next_sentence` (next, random)
instead of `sentence_order`; one of `none` has neither, and no pooled_output.

Beside the model, in `assets.extra/`, lie the vocabulary (`spiece.model`), the
architecture (`albert_config.json`) and what a caller must know to make ids of
text (`serving.json`).
"""

import json
import posixpath
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf import flags
from albert_tf.checkpoints import load_run, model_variables
from albert_tf.config import ExportConfig
from albert_tf.errors import UserError
from albert_tf.features import TOKENIZER_FILE
from albert_tf.files import load_json_if_any, write_text
from albert_tf.fill_mask import ASSETS_DIR, SERVING_FILE
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.run_directory import CONFIG_FILE, RECORDS_METADATA_FILE
from albert_tf.tokenization import PUBLISHED

MODEL_CONFIG_FILE = "albert_config.json"

# By objective, the signature and its two answers, in the order of labels.
SENTENCE_SIGNATURES = {
    "sop": ("sentence_order", ("in_order", "swapped")),
    "nsp": ("next_sentence", ("next", "random")),
}


def make_signatures(
    pretrainer: AlbertPretrainer, top_k: int
) -> dict[str, tf.types.experimental.PolymorphicFunction]:
    """The serving functions by name, as the module's docstring has them.

    Args:
        pretrainer: The model, built and restored.
        top_k: Pieces answered for each masked position.
    """
    max_length = pretrainer.config.max_position_embeddings

    def forward(**batch: tf.Tensor) -> dict[str, tf.Tensor]:
        tf.debugging.assert_less_equal(
            tf.shape(batch["input_ids"])[1],
            max_length,
            f"input_ids must be at most {max_length} pieces long",
        )
        return {
            name: tf.cast(value, tf.float32)
            for name, value in pretrainer(batch).items()
        }

    def ids(name: str) -> tf.TensorSpec:
        return tf.TensorSpec([None, None], tf.int32, name=name)

    pieces = [ids("input_ids"), ids("input_mask"), ids("segment_ids")]

    @tf.function(input_signature=pieces)
    def encode(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        outputs = forward(
            input_ids=input_ids, input_mask=input_mask, segment_ids=segment_ids
        )
        outputs.pop("sentence_logits", None)
        return outputs

    @tf.function(input_signature=[*pieces, ids("masked_lm_positions")])
    def fill_mask(
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        masked_lm_positions: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        outputs = forward(
            input_ids=input_ids,
            input_mask=input_mask,
            segment_ids=segment_ids,
            masked_lm_positions=masked_lm_positions,
        )
        log_probabilities = tf.nn.log_softmax(outputs["mlm_logits"])
        top = tf.math.top_k(log_probabilities, top_k)
        return {
            "top_ids": top.indices,
            "top_log_probabilities": top.values,
        }

    @tf.function(input_signature=pieces)
    def classify_sentences(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        outputs = forward(
            input_ids=input_ids, input_mask=input_mask, segment_ids=segment_ids
        )
        probabilities = tf.nn.softmax(outputs["sentence_logits"])
        return dict(
            zip(answers, tf.unstack(probabilities, axis=-1), strict=True)
        )

    signatures = {
        "serving_default": encode,
        "encode": encode,
        "fill_mask": fill_mask,
    }
    if pretrainer.sentence_objective in SENTENCE_SIGNATURES:
        name, answers = SENTENCE_SIGNATURES[pretrainer.sentence_objective]
        signatures[name] = classify_sentences
    return signatures


def describe_serving(
    run_dir: str, max_seq_length: int, sentence_objective: str, step: int
) -> dict[str, Any]:
    """What `serving.json` holds.

    Returns:
        `step` of the checkpoint; `max_seq_length` and `sentence_objective`
        of the run; of its records, `vocabulary_kind`, `do_lower_case` and
        `vocabulary_sha256`. Where those came without metadata, "published",
        with its true `do_lower_case`, and None. Of a "self_contained"
        vocabulary, any SentencePiece runtime makes the ids of raw text; a
        "published" one needs `tokenization.Tokenizer` around it.
    """
    path = posixpath.join(run_dir, RECORDS_METADATA_FILE)
    records = load_json_if_any(path) or {
        "vocabulary_kind": PUBLISHED,
        "do_lower_case": True,
        "vocabulary_sha256": None,
    }
    return {
        "step": step,
        "max_seq_length": max_seq_length,
        "sentence_objective": sentence_objective,
        "vocabulary_kind": records["vocabulary_kind"],
        "do_lower_case": records["do_lower_case"],
        "vocabulary_sha256": records["vocabulary_sha256"],
    }


def export(config: ExportConfig) -> None:
    """Writes the SavedModel, whole or not at all.

    Raises:
        UserError: If there is no such run or checkpoint, if `export_dir`
            holds something else, or if `top_k` exceeds the vocabulary.
    """
    config.require("run_dir", "export_dir")
    export_dir = config.export_dir.rstrip("/")
    check_replaceable(export_dir)
    if not tf.io.gfile.exists(posixpath.join(config.run_dir, CONFIG_FILE)):
        raise UserError(
            "run_dir must be a run of python -m albert_tf.run_pretraining",
            received=f"{config.run_dir}, without {CONFIG_FILE}",
        )
    run, pretrainer, step = load_run(config.run_dir, config.checkpoint_step)
    if config.top_k > run.model.vocab_size:
        raise UserError(
            "top_k must be at most vocab_size",
            received=f"{config.top_k} and {run.model.vocab_size}",
        )

    partial = f"{export_dir}.partial"
    if tf.io.gfile.exists(partial):
        tf.io.gfile.rmtree(partial)
    module = tf.Module()
    # The variables alone: a Keras layer would be traced a second time.
    module.model_variables = model_variables(pretrainer)
    tf.saved_model.save(
        module,
        partial,
        signatures=make_signatures(pretrainer, config.top_k),
    )

    assets = posixpath.join(partial, ASSETS_DIR)
    tf.io.gfile.makedirs(assets)
    notes = {
        MODEL_CONFIG_FILE: run.model.to_dict(),
        SERVING_FILE: describe_serving(
            config.run_dir,
            run.data.max_seq_length,
            run.training.sentence_objective,
            step,
        ),
    }
    for name, values in notes.items():
        write_text(
            posixpath.join(assets, name), json.dumps(values, indent=2) + "\n"
        )
    vocabulary = posixpath.join(config.run_dir, TOKENIZER_FILE)
    if tf.io.gfile.exists(vocabulary):
        tf.io.gfile.copy(vocabulary, posixpath.join(assets, TOKENIZER_FILE))
    else:
        logging.warning(
            "%s is not there, so the SavedModel has no vocabulary", vocabulary
        )

    if tf.io.gfile.exists(export_dir):
        tf.io.gfile.rmtree(export_dir)
    tf.io.gfile.rename(partial, export_dir)
    logging.info("exported step %d to %s", step, export_dir)


def check_replaceable(export_dir: str) -> None:
    """Refuses a directory that holds anything but an earlier export.

    Raises:
        UserError: If it does.
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


if __name__ == "__main__":
    flags.run(export, ExportConfig)
