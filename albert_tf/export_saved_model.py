r"""Exports a pretrained run as a SavedModel with serving signatures.

    python -m albert_tf.export_saved_model \
      --run_dir=build/demo/run --export_dir=build/demo/saved_model

Signatures that take text: UTF-8 strings `text`, and `text_pair` where one
follows it, both `(batch,)`. They tokenize in the graph.

    encode_text         -> sequence_output: float32, (batch, length, H)
    encode_text_pair       pooled_output: float32, (batch, H)
                           input_ids, input_mask: int32, (batch, length)
    fill_mask_text      -> top_pieces: string, (batch, masks, top_k)
                           top_probabilities: float32, (batch, masks, top_k)
    sentence_order_text_pair
                        -> in_order, swapped: float32, (batch,), probabilities

`length` is that of the batch's longest text, `max_seq_length` of the run at
most: longer text loses its end, of a pair the longer one first. `masks` is the
greatest number of [MASK] in a text of the batch; a text with fewer, and a mask
that was cut off, have "" and 0. Only here "[MASK]" is the piece; elsewhere it
is mere text.

Signatures for whoever tokenizes elsewhere: ids, int32, with any batch size and
any length up to `max_position_embeddings`; float32 out, but for the ids.

    encode          input_ids, input_mask, segment_ids: (batch, length)
                    -> sequence_output, pooled_output, as above
    serving_default the same
    fill_mask       the same, and masked_lm_positions: (batch, predictions)
                    -> top_ids: int32, (batch, predictions, top_k)
                       top_log_probabilities: (batch, predictions, top_k)
    sentence_order  input_ids, input_mask, segment_ids: (batch, length)
                    -> in_order, swapped, as above

A run of `--sentence_objective=nsp` has `next_sentence` (next, random)
instead of `sentence_order`; one of `none` has neither, and no pooled_output.

Text needs tensorflow-text, here and wherever Python loads the model;
TensorFlow Serving has it. On a TPU VM it must be installed by
`pip install --no-deps tensorflow-text==2.20.*`, or it brings another
TensorFlow. `--notext_signatures` does without.

Beside the model, in `assets.extra/`, lie the vocabulary (`spiece.model`), the
architecture (`albert_config.json`), what a caller must know to make ids of
text (`serving.json`), and the requests with which TensorFlow Serving warms up.
How it is served: albert_tf/serving/README.md.
"""

import json
import posixpath
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.config import ExportConfig, PretrainingConfig, flags
from albert_tf.errors import UserError
from albert_tf.fill_mask import ASSETS_DIR, SERVING_FILE
from albert_tf.io.files import load_json_if_any, write_text
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoints import load_run, model_variables
from albert_tf.runs.directory import CONFIG_FILE, RECORDS_METADATA_FILE
from albert_tf.serving.signatures import make_signatures
from albert_tf.serving.text_tokenizer import TextTokenizer
from albert_tf.serving.warmup_requests import (
    WARMUP_FILE,
    write_warmup_requests,
)

MODEL_CONFIG_FILE = "albert_config.json"


def load_tokenizer(
    config: ExportConfig, records: Mapping[str, Any], vocab_size: int
) -> Tokenizer | None:
    """The run's vocabulary; None if it has none and text is not to be served.

    Args:
        config: Names the run.
        records: The metadata of its records; empty if unknown.
        vocab_size: Pieces that the model knows.

    Raises:
        UserError: If it is missing, or not that of the run's records.
    """
    vocabulary = posixpath.join(config.run_dir, TOKENIZER_FILE)
    if not tf.io.gfile.exists(vocabulary):
        if config.text_signatures:
            raise UserError(
                f"{vocabulary} must be there for signatures that take text",
                received="no such file",
                remedy="Copy the SentencePiece model of the records there, "
                "or set --notext_signatures.",
            )
        logging.warning(
            "%s is not there, so the SavedModel has no vocabulary", vocabulary
        )
        return None
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


def describe_serving(
    run: PretrainingConfig,
    step: int,
    records: Mapping[str, Any],
    tokenizer: Tokenizer | None,
) -> dict[str, Any]:
    """What `serving.json` holds.

    Returns:
        `step` of the checkpoint; `max_seq_length` and `sentence_objective`
        of the run; `vocabulary_kind`, `do_lower_case` and `vocabulary_sha256`
        of its vocabulary or else of its records' metadata, None where that
        is unknown. Of a "self_contained" vocabulary, any SentencePiece
        runtime makes the ids of raw text; a "published" one needs
        `tokenization.Tokenizer` around it.
    """
    if tokenizer:
        records = {
            "vocabulary_kind": tokenizer.kind,
            "do_lower_case": tokenizer.do_lower_case,
            "vocabulary_sha256": tokenizer.sha256,
        }
    return {
        "step": step,
        "max_seq_length": run.data.max_seq_length,
        "sentence_objective": run.training.sentence_objective,
        "vocabulary_kind": records.get("vocabulary_kind"),
        "do_lower_case": records.get("do_lower_case"),
        "vocabulary_sha256": records.get("vocabulary_sha256"),
    }


def export(config: ExportConfig) -> None:
    """Writes the SavedModel, whole or not at all.

    Raises:
        UserError: If there is no such run or checkpoint, if `export_dir`
            holds something else, if `top_k` exceeds the vocabulary, or if
            text is to be served and that is missing or tensorflow-text.
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

    records_path = posixpath.join(config.run_dir, RECORDS_METADATA_FILE)
    records = load_json_if_any(records_path) or {}
    tokenizer = load_tokenizer(config, records, run.model.vocab_size)
    vocabulary = posixpath.join(config.run_dir, TOKENIZER_FILE)
    text_tokenizer = None
    if tokenizer and config.text_signatures:
        text_tokenizer = TextTokenizer(vocabulary, tokenizer.do_lower_case)

    partial = f"{export_dir}.partial"
    if tf.io.gfile.exists(partial):
        tf.io.gfile.rmtree(partial)
    module = tf.Module()
    # The variables alone: a Keras layer would be traced a second time.
    module.model_variables = model_variables(pretrainer)
    # Its SentencePiece model is a resource of the graph's.
    module.text_tokenizer = text_tokenizer
    signatures = make_signatures(
        pretrainer, config.top_k, run.data.max_seq_length, text_tokenizer
    )
    tf.saved_model.save(module, partial, signatures=signatures)

    assets = posixpath.join(partial, ASSETS_DIR)
    tf.io.gfile.makedirs(assets)
    notes = {
        MODEL_CONFIG_FILE: run.model.to_dict(),
        SERVING_FILE: describe_serving(run, step, records, tokenizer),
    }
    for name, values in notes.items():
        write_text(
            posixpath.join(assets, name), json.dumps(values, indent=2) + "\n"
        )
    if tokenizer:
        tf.io.gfile.copy(vocabulary, posixpath.join(assets, TOKENIZER_FILE))
    write_warmup_requests(
        posixpath.join(assets, WARMUP_FILE),
        {
            name: function.input_signature
            for name, function in signatures.items()
        },
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
