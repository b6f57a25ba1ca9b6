"""The serving signatures of a SavedModel, functions by name.

`python -m albert_tf.export_saved_model --help` describes them. All call one
function, so that the file holds the graph of the model once.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from albert_tf.config import FinetuningConfig
from albert_tf.config.task import (
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.modeling.models import AlbertForTask, AlbertPretrainer
from albert_tf.records.features import MASK_ID
from albert_tf.serving.predict import (
    CHOOSE,
    CLASSIFY,
    ENCODE,
    FILL_MASK,
    PREDICT_VALUE,
    SCORE_SPANS,
    SENTENCE_SIGNATURES,
    SERVING_DEFAULT,
    TEXT,
    TEXT_PAIR,
)
from albert_tf.serving.text_tokenizer import (
    PackedTexts,
    TextTokenizer,
    cut,
    join,
    pack,
)

Signatures = dict[str, tf.types.experimental.PolymorphicFunction]
Outputs = dict[str, tf.Tensor]
Answer = Callable[..., Outputs]


def _ids(*names: str, num_choices: tuple[int, ...] = ()) -> list[tf.TensorSpec]:
    """Specifications of ids, `(batch, *num_choices, length)`."""
    shape = [None, *num_choices, None]
    return [tf.TensorSpec(shape, tf.int32, name=name) for name in names]


def _strings(*names: str) -> list[tf.TensorSpec]:
    return [tf.TensorSpec([None], tf.string, name=name) for name in names]


_PACKED = _ids(*PackedTexts._fields)


def _signature(function: Answer, inputs: list[tf.TensorSpec]) -> Any:
    """A function that takes inputs by the names of their specifications."""
    return tf.function(function, input_signature=inputs, autograph=False)


def _from_texts(
    answer: Answer, tokenizer: TextTokenizer, max_length: int, *names: str
) -> Any:
    """The signature that takes one or two texts instead of ids."""

    def from_texts(*texts: tf.Tensor) -> Outputs:
        return answer(*pack(max_length, *map(tokenizer.encode, texts)))

    return _signature(from_texts, _strings(*names))


def _checked_ids(
    input_ids: tf.Tensor, max_length: int, num_choices: int = 1
) -> tf.Tensor:
    """Refuses sequences that are longer than the model.

    Args:
        input_ids: int32, `(batch, num_choices * length)`.
        max_length: The number of positions of the model.
        num_choices: Number of sequences in each row.

    Returns:
        The same ids. What is computed from them waits for the check, so that no
        other error comes first.

    Raises:
        InvalidArgumentError: As the graph runs, if `length > max_length`.
    """
    length = tf.shape(input_ids)[1] // num_choices
    message = f"input_ids must be at most {max_length} tokens long"
    check = tf.debugging.assert_less_equal(length, max_length, message)
    with tf.control_dependencies([check]):
        return tf.identity(input_ids)


# --- pretrained models -------------------------------------------------------


def make_signatures(
    pretrainer: AlbertPretrainer,
    top_k: int,
    max_seq_length: int,
    tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """Traces the serving functions of a pretrained model.

    Args:
        pretrainer: The model, built and restored.
        top_k: Number of pieces returned for each mask.
        max_seq_length: Number of tokens after which text is cut off.
        tokenizer: The vocabulary; None omits the signatures that take text.

    Returns:
        The functions by the name of their signature.
    """
    max_length = pretrainer.config.max_position_embeddings

    @tf.function(input_signature=_PACKED)
    def forward(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Outputs:
        outputs = pretrainer.encode(
            {
                "input_ids": _checked_ids(input_ids, max_length),
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

    def classify(*packed: tf.Tensor) -> Outputs:
        probabilities = tf.nn.softmax(forward(*packed)["sentence_logits"])
        columns = tf.unstack(probabilities, axis=-1)
        assert sentence is not None
        return dict(zip(sentence.outputs, columns, strict=True))

    encode_ids = _signature(encode, _PACKED)
    signatures = {
        SERVING_DEFAULT: encode_ids,
        ENCODE: encode_ids,
        FILL_MASK: _signature(fill, [*_PACKED, *_ids("masked_lm_positions")]),
    }
    sentence = SENTENCE_SIGNATURES.get(pretrainer.sentence_objective)
    if sentence:
        signatures[sentence.name] = _signature(classify, _PACKED)
    if tokenizer:
        texts = tokenizer, max_seq_length, "text"
        pairs = *texts, "text_pair"
        signatures[ENCODE + TEXT] = _from_texts(encode_text, *texts)
        signatures[ENCODE + TEXT_PAIR] = _from_texts(encode_text, *pairs)
        signatures[FILL_MASK + TEXT] = _signature(fill_text, _strings("text"))
        if sentence:
            name = sentence.name + TEXT_PAIR
            signatures[name] = _from_texts(classify, *pairs)
    return signatures


def _find_masks(
    ids: tf.RaggedTensor, input_ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the positions of the masks.

    Args:
        ids: int32, `(batch, tokens)`, the texts before they are cut.
        input_ids: int32, `(batch, length)`, the same texts, packed.

    Returns:
        int32, `(batch, masks)`, positions in `input_ids`; and bool,
        `(batch, masks)`, False for a mask that was cut off and for the
        padding slots of a text with fewer masks.
    """
    masks = tf.reduce_sum(tf.cast(ids == MASK_ID, tf.int32), axis=1)
    positions = tf.ragged.boolean_mask(
        tf.zeros_like(input_ids) + tf.range(tf.shape(input_ids)[1]),
        input_ids == MASK_ID,
    )
    shape = [-1, tf.reduce_max(masks)]
    padded = positions.to_tensor(0, shape=shape)
    is_kept = tf.ones_like(positions).to_tensor(0, shape=shape)
    return padded, is_kept > 0


# --- fine-tuned models -------------------------------------------------------


def make_task_signatures(
    model: AlbertForTask,
    run: FinetuningConfig,
    tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """Traces the serving functions of a fine-tuned model.

    Args:
        model: The model, built and restored.
        run: Its settings; text is cut off after `max_seq_length` tokens.
        tokenizer: The vocabulary; None omits the signatures that take text. A
            model for question answering has none.

    Returns:
        The functions by the name of their signature.
    """
    head, max_length = model.head_config, model.config.max_position_embeddings
    inputs = [*PackedTexts._fields, *["p_mask"] * head.is_beam]

    @tf.function(input_signature=_ids(*inputs))
    def forward(*values: tf.Tensor) -> Outputs:
        ids = _checked_ids(values[0], max_length, head.num_choices)
        return model(dict(zip(inputs, [ids, *values[1:]], strict=True)))

    if head.kind == MULTIPLE_CHOICE:
        return _choice_signatures(forward, head.num_choices, run, tokenizer)
    if head.kind == QUESTION_ANSWERING:
        spans = _signature(lambda *ids: dict(forward(*ids)), _ids(*inputs))
        return {SERVING_DEFAULT: spans, SCORE_SPANS: spans}

    def answer(*packed: tf.Tensor) -> Outputs:
        logits = forward(*packed)["logits"]
        if head.kind == REGRESSION:
            return {"value": logits[:, 0]}
        labels = tf.constant(head.labels)
        return {
            "label": tf.gather(labels, tf.argmax(logits, axis=-1)),
            "labels": tf.broadcast_to(labels, tf.shape(logits)),
            "probabilities": tf.nn.softmax(logits),
        }

    name = PREDICT_VALUE if head.kind == REGRESSION else CLASSIFY
    from_ids = _signature(answer, _PACKED)
    signatures = {SERVING_DEFAULT: from_ids, name: from_ids}
    if tokenizer:
        # A run of pairs takes no single texts, and the reverse. A converted
        # run, whose texts are unknown, takes both.
        texts = tokenizer, run.data.max_seq_length, "text"
        if run.task.has_pairs is not True:
            signatures[name + TEXT] = _from_texts(answer, *texts)
        if run.task.has_pairs is not False:
            pairs = _from_texts(answer, *texts, "text_pair")
            signatures[name + TEXT_PAIR] = pairs
    return signatures


def _choice_signatures(
    forward: Answer,
    num_choices: int,
    run: FinetuningConfig,
    tokenizer: TextTokenizer | None,
) -> Signatures:
    def answer(*inputs: tf.Tensor) -> Outputs:
        """Answers for ids, each `(batch, num_choices * length)`."""
        logits = forward(*inputs)["logits"]
        return {
            "choice_number": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
        }

    def from_ids(*inputs: tf.Tensor) -> Outputs:
        sizes = [tf.shape(inputs[0])[0], num_choices * tf.shape(inputs[0])[2]]
        return answer(*(tf.reshape(values, sizes) for values in inputs))

    def from_text(
        question: tf.Tensor, context: tf.Tensor, choices: tf.Tensor
    ) -> Outputs:
        assert tokenizer is not None
        joined = tf.reshape(_join_choices(question, choices), [-1])
        # [CLS] context [SEP] question choice [SEP], as in training: question
        # and choice keep their last tokens, the context loses its end.
        room = run.data.max_seq_length - 3
        second = tokenizer.encode(joined)
        second = second[:, -min(run.task.max_qa_length, room) :]
        contexts = tokenizer.encode(context)
        rows = tf.repeat(tf.range(contexts.nrows()), num_choices)
        first = cut(tf.gather(contexts, rows), room - second.row_lengths())
        packed = join([first, second])
        sizes = [tf.shape(choices)[0], -1]
        found = answer(*(tf.reshape(values, sizes) for values in packed))
        choice = tf.gather(choices, found["choice_number"], batch_dims=1)
        return {"choice": choice} | found

    fields = PackedTexts._fields
    ids = _signature(from_ids, _ids(*fields, num_choices=(num_choices,)))
    signatures = {SERVING_DEFAULT: ids, CHOOSE: ids}
    if tokenizer:
        choices = tf.TensorSpec([None, num_choices], tf.string, name="choices")
        texts = [*_strings("question", "context"), choices]
        signatures[CHOOSE + TEXT] = _signature(from_text, texts)
    return signatures


def _join_choices(questions: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
    """The second text of each choice of a question, as in training.

    A choice replaces each "_" of its question. If the question has no "_", the
    choice follows it.

    Args:
        questions: string, `(batch,)`.
        choices: string, `(batch, num_choices)`.

    Returns:
        string, `(batch, num_choices)`.
    """
    num_choices = choices.shape[1]
    parts = tf.strings.split(tf.repeat(questions, num_choices), sep="_")
    flat = tf.gather(tf.reshape(choices, [-1]), parts.value_rowids())
    is_first = tf.ragged.range(parts.row_lengths()).values == 0
    filled = parts.with_values(tf.where(is_first, "", flat) + parts.values)
    return tf.where(
        tf.strings.regex_full_match(questions, "(?s).*_.*")[:, tf.newaxis],
        tf.reshape(
            tf.strings.unsorted_segment_join(
                filled.values, filled.value_rowids(), filled.nrows()
            ),
            tf.shape(choices),
        ),
        questions[:, tf.newaxis] + " " + choices,
    )
