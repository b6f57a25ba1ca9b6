"""The serving signatures of a SavedModel, functions by name.

`python -m albert_tf.export_saved_model --help` describes them. All call one
function, so that the file holds the graph of the model once.
"""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config.task import (
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.modeling.task_model import AlbertForTask
from albert_tf.records.features import MASK_ID
from albert_tf.serving.names import (
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
Answer = Callable[[PackedTexts], Outputs]


def _ids(name: str | None = None) -> tf.TensorSpec:
    """The specification of ids, `(batch, length)`."""
    return tf.TensorSpec([None, None], tf.int32, name=name)


def _strings(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name=name)


_PACKED = [_ids(name) for name in PackedTexts._fields]


def _from_ids(answer: Answer) -> tf.types.experimental.PolymorphicFunction:
    @tf.function(input_signature=_PACKED)
    def from_ids(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Outputs:
        return answer(PackedTexts(input_ids, input_mask, segment_ids))

    return from_ids


def _from_text(
    answer: Answer, tokenizer: TextTokenizer, max_seq_length: int
) -> tf.types.experimental.PolymorphicFunction:
    @tf.function(input_signature=[_strings("text")])
    def from_text(text: tf.Tensor) -> Outputs:
        return answer(pack(max_seq_length, tokenizer.encode(text)))

    return from_text


def _from_pair(
    answer: Answer, tokenizer: TextTokenizer, max_seq_length: int
) -> tf.types.experimental.PolymorphicFunction:
    @tf.function(input_signature=[_strings("text"), _strings("text_pair")])
    def from_pair(text: tf.Tensor, text_pair: tf.Tensor) -> Outputs:
        segments = tokenizer.encode(text), tokenizer.encode(text_pair)
        return answer(pack(max_seq_length, *segments))

    return from_pair


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

    @tf.function(input_signature=[_ids()] * 3)
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

    def encode(packed: PackedTexts) -> Outputs:
        outputs = forward(*packed)
        return {
            name: outputs[name]
            for name in ("sequence_output", "pooled_output")
            if name in outputs
        }

    def fill(
        packed: PackedTexts, positions: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids and log probabilities, each `(batch, predictions, top_k)`."""
        hidden = forward(*packed)["sequence_output"]
        logits = pretrainer.mlm_logits(
            tf.gather(hidden, positions, batch_dims=1)
        )
        top = tf.math.top_k(tf.nn.log_softmax(logits), top_k)
        return top.indices, top.values

    sentence = SENTENCE_SIGNATURES.get(pretrainer.sentence_objective)

    def classify(packed: PackedTexts) -> Outputs:
        probabilities = tf.nn.softmax(forward(*packed)["sentence_logits"])
        columns = tf.unstack(probabilities, axis=-1)
        assert sentence is not None
        return dict(zip(sentence.outputs, columns, strict=True))

    @tf.function(input_signature=[*_PACKED, _ids("masked_lm_positions")])
    def fill_ids(
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        masked_lm_positions: tf.Tensor,
    ) -> Outputs:
        packed = PackedTexts(input_ids, input_mask, segment_ids)
        top_ids, log_probabilities = fill(packed, masked_lm_positions)
        return {"top_ids": top_ids, "top_log_probabilities": log_probabilities}

    encode_ids = _from_ids(encode)
    signatures = {
        SERVING_DEFAULT: encode_ids,
        ENCODE: encode_ids,
        FILL_MASK: fill_ids,
    }
    if sentence:
        signatures[sentence.name] = _from_ids(classify)
    if tokenizer is None:
        return signatures

    def encode_text(packed: PackedTexts) -> Outputs:
        return encode(packed) | {
            "input_ids": packed.input_ids,
            "input_mask": packed.input_mask,
        }

    @tf.function(input_signature=[_strings("text")])
    def fill_text(text: tf.Tensor) -> Outputs:
        ids = tokenizer.encode_with_masks(text)
        packed = pack(max_seq_length, ids)
        positions, is_kept = _find_masks(ids, packed.input_ids)
        top_ids, log_probabilities = fill(packed, positions)
        is_kept = is_kept[:, :, tf.newaxis]
        return {
            "top_pieces": tf.where(is_kept, tokenizer.spell(top_ids), ""),
            "top_probabilities": tf.where(
                is_kept, tf.exp(log_probabilities), 0.0
            ),
        }

    texts = tokenizer, max_seq_length
    signatures[ENCODE + TEXT] = _from_text(encode_text, *texts)
    signatures[ENCODE + TEXT_PAIR] = _from_pair(encode_text, *texts)
    signatures[FILL_MASK + TEXT] = fill_text
    if sentence:
        signatures[sentence.name + TEXT_PAIR] = _from_pair(classify, *texts)
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

    @tf.function(input_signature=[_ids()] * len(inputs))
    def forward(*values: tf.Tensor) -> Outputs:
        ids = _checked_ids(values[0], max_length, head.num_choices)
        return model(dict(zip(inputs, [ids, *values[1:]], strict=True)))

    if head.kind == MULTIPLE_CHOICE:
        return _choice_signatures(forward, head.num_choices, run, tokenizer)
    if head.kind == QUESTION_ANSWERING:
        return _span_signatures(forward, head.is_beam)
    return _sequence_signatures(forward, head, run, tokenizer)


def _sequence_signatures(
    forward: Callable[..., Outputs],
    head: TaskHeadConfig,
    run: FinetuningConfig,
    tokenizer: TextTokenizer | None,
) -> Signatures:
    """The signatures of classification and regression.

    A run of pairs takes no single texts, and the reverse. A converted run,
    whose texts are unknown, takes both.
    """
    name = PREDICT_VALUE if head.kind == REGRESSION else CLASSIFY

    def answer(packed: PackedTexts) -> Outputs:
        logits = forward(*packed)["logits"]
        if head.kind == REGRESSION:
            return {"value": logits[:, 0]}
        labels = tf.constant(head.labels)
        return {
            "label": tf.gather(labels, tf.argmax(logits, axis=-1)),
            "labels": tf.broadcast_to(labels, tf.shape(logits)),
            "probabilities": tf.nn.softmax(logits),
        }

    from_ids = _from_ids(answer)
    signatures = {SERVING_DEFAULT: from_ids, name: from_ids}
    if tokenizer is None:
        return signatures
    texts = tokenizer, run.data.max_seq_length
    if run.task.has_pairs is not True:
        signatures[name + TEXT] = _from_text(answer, *texts)
    if run.task.has_pairs is not False:
        signatures[name + TEXT_PAIR] = _from_pair(answer, *texts)
    return signatures


def _span_signatures(
    forward: Callable[..., Outputs], is_beam: bool
) -> Signatures:
    @tf.function(input_signature=[*_PACKED, _ids("p_mask")])
    def from_beam_ids(
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        p_mask: tf.Tensor,
    ) -> Outputs:
        return forward(input_ids, input_mask, segment_ids, p_mask)

    from_ids = from_beam_ids
    if not is_beam:
        from_ids = _from_ids(lambda packed: forward(*packed))
    return {SERVING_DEFAULT: from_ids, SCORE_SPANS: from_ids}


def _choice_signatures(
    forward: Callable[..., Outputs],
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

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, num_choices, None], tf.int32, name=name)
            for name in PackedTexts._fields
        ]
    )
    def from_ids(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Outputs:
        inputs = (input_ids, input_mask, segment_ids)
        sizes = [tf.shape(input_ids)[0], num_choices * tf.shape(input_ids)[2]]
        return answer(*(tf.reshape(values, sizes) for values in inputs))

    signatures = {SERVING_DEFAULT: from_ids, CHOOSE: from_ids}
    if tokenizer is None:
        return signatures

    @tf.function(
        input_signature=[
            _strings("question"),
            _strings("context"),
            tf.TensorSpec([None, num_choices], tf.string, name="choices"),
        ]
    )
    def from_text(
        question: tf.Tensor, context: tf.Tensor, choices: tf.Tensor
    ) -> Outputs:
        joined = tf.reshape(_join_choices(question, choices), [-1])
        packed = _pack_choices(
            tokenizer.encode(context),
            tokenizer.encode(joined),
            num_choices,
            run,
        )
        sizes = [tf.shape(choices)[0], -1]
        found = answer(*(tf.reshape(values, sizes) for values in packed))
        choice = tf.gather(choices, found["choice_number"], batch_dims=1)
        return {"choice": choice} | found

    return signatures | {CHOOSE + TEXT: from_text}


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


def _pack_choices(
    contexts: tf.RaggedTensor,
    choices: tf.RaggedTensor,
    num_choices: int,
    run: FinetuningConfig,
) -> PackedTexts:
    """Makes `[CLS] context [SEP] question choice [SEP]`, as in training.

    Question and choice together keep their last `max_qa_length` tokens; the
    context loses its end.

    Args:
        contexts: int32, `(batch, tokens)`.
        choices: int32, `(batch * num_choices, tokens)`, with the questions.
        num_choices: Number of choices of each question.
        run: `max_seq_length` and `max_qa_length`.
    """
    room = run.data.max_seq_length - 3
    longest = min(run.task.max_qa_length, room)
    second = choices[:, -longest:]
    rows = tf.repeat(tf.range(contexts.nrows()), num_choices)
    first = cut(tf.gather(contexts, rows), room - second.row_lengths())
    return join([first, second])
