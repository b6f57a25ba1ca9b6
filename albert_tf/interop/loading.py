"""Loads a model of any format, with its weights and its vocabulary."""

import posixpath
from typing import NamedTuple

from albert_tf.errors import UserError
from albert_tf.interop.formats import (
    HUGGING_FACE,
    RUN,
    find_format,
    read_weights,
    split_run,
)
from albert_tf.interop.hugging_face_tokenizer import is_cased
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.io.files import load_json_if_any
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.modeling.task_model import AlbertForTask
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.directory import RECORDS_METADATA_FILE


class LoadedModel(NamedTuple):
    """A pretrained or fine-tuned model and its vocabulary.

    Attributes:
        model: The model with its weights; `model.backbone` is without heads.
        tokenizer: Its vocabulary.
    """

    model: AlbertPretrainer | AlbertForTask
    tokenizer: Tokenizer


def load(
    path: str, checkpoint_step: int = 0, dtype: str = "float32"
) -> LoadedModel:
    """Loads a pretrained or fine-tuned model.

    Args:
        path: A run directory or one of its checkpoints; a checkpoint of
            google-research/albert, as prefix, directory or .tar.gz; or a
            Hugging Face folder. Local or gs://.
        checkpoint_step: The checkpoint to read from a directory with several;
            0 is the newest.
        dtype: Precision policy, "float32" or "mixed_bfloat16".

    Raises:
        UserError: If there is no model, if it is damaged, or if it has no
            vocabulary.

    Example:
        >>> import albert_tf
        >>> model, tokenizer = albert_tf.load("runs/base")  # doctest: +SKIP
        >>> model.config.hidden_size, tokenizer.vocab_size  # doctest: +SKIP
        (768, 30000)
    """
    weights = read_weights(path, checkpoint_step)
    if not weights.vocabulary:
        raise UserError(
            f"{path} must hold a vocabulary, spiece.model",
            received="none",
            remedy="Copy the SentencePiece model of the training data there.",
        )
    return LoadedModel(
        make_model(weights, dtype),
        Tokenizer(weights.vocabulary, lower_cases(path)),
    )


def make_model(
    weights: ModelWeights, dtype: str = "float32"
) -> AlbertPretrainer | AlbertForTask:
    """Builds a model and assigns its weights.

    Args:
        weights: Architecture and weights.
        dtype: Precision policy, "float32" or "mixed_bfloat16".
    """
    model: AlbertPretrainer | AlbertForTask
    if weights.head is None:
        model = AlbertPretrainer(
            weights.config, weights.sentence_objective, dtype=dtype
        )
    else:
        model = AlbertForTask(weights.config, weights.head, dtype=dtype)
    model.build()
    for variable in model.variables:
        variable.assign(weights.values[variable.path])
    return model


def lower_cases(path: str) -> bool | None:
    """Whether the model was trained on lower-cased text; None if unknown."""
    path = path.rstrip("/")
    found = find_format(path)
    if found == RUN:
        records_file = posixpath.join(split_run(path)[0], RECORDS_METADATA_FILE)
        return (load_json_if_any(records_file) or {}).get("do_lower_case")
    vocabulary = posixpath.join(path, TOKENIZER_FILE)
    if found == HUGGING_FACE and is_cased(path, vocabulary):
        return False
    return None
