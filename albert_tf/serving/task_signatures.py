"""The serving signatures of fine-tuned models: classification, regression.

`python -m albert_tf.export_saved_model --help` describes them.
"""

import tensorflow as tf

from albert_tf.config.task_head import CLASSIFICATION, REGRESSION
from albert_tf.errors import UserError
from albert_tf.modeling.task_model import AlbertForTask
from albert_tf.serving.names import (
    CLASSIFY,
    PAIR_SUFFIX,
    PREDICT_VALUE,
    SERVING_DEFAULT,
    TEXT_SUFFIX,
)
from albert_tf.serving.signatures import Answers, Signatures, ids, strings
from albert_tf.serving.text_tokenizer import PackedTexts, TextTokenizer, pack

_NAMES = {CLASSIFICATION: CLASSIFY, REGRESSION: PREDICT_VALUE}


def make_task_signatures(
    model: AlbertForTask,
    max_seq_length: int,
    text_tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """Traces the serving functions.

    Args:
        model: The model, built and restored.
        max_seq_length: Number of tokens after which text is cut off.
        text_tokenizer: The vocabulary; None omits the text signatures.

    Returns:
        The functions by the name of their signature.

    Raises:
        UserError: If the model is of another kind of task.
    """
    head = model.head_config
    if head.kind not in _NAMES:
        raise UserError(
            "an exported model must be pretrained, or fine-tuned for "
            "classification or regression",
            received=f"a model for {head.kind.replace('_', ' ')}",
            remedy="Convert it with python -m albert_tf.convert_checkpoint "
            "--to_format=hugging_face.",
        )

    def answer(packed: PackedTexts) -> Answers:
        logits = model(packed._asdict())["logits"]
        if head.kind == REGRESSION:
            return {"value": logits[:, 0]}
        labels = tf.constant(head.labels)
        return {
            "label": tf.gather(labels, tf.argmax(logits, axis=-1)),
            "labels": tf.broadcast_to(labels, tf.shape(logits)),
            "probabilities": tf.nn.softmax(logits),
        }

    @tf.function(input_signature=[ids(n) for n in PackedTexts._fields])
    def from_ids(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Answers:
        return answer(PackedTexts(input_ids, input_mask, segment_ids))

    name = _NAMES[head.kind]
    signatures = {SERVING_DEFAULT: from_ids, name: from_ids}
    if text_tokenizer is None:
        return signatures
    encode = text_tokenizer.encode

    @tf.function(input_signature=[strings("text")])
    def from_text(text: tf.Tensor) -> Answers:
        return answer(pack(max_seq_length, encode(text)))

    @tf.function(input_signature=[strings("text"), strings("text_pair")])
    def from_pair(text: tf.Tensor, text_pair: tf.Tensor) -> Answers:
        return answer(pack(max_seq_length, encode(text), encode(text_pair)))

    return signatures | {
        name + TEXT_SUFFIX: from_text,
        name + PAIR_SUFFIX: from_pair,
    }
