"""The serving signatures of a SavedModel, functions by name.

`python -m albert_tf.export_saved_model --help` describes them. All call one
function, so that the file holds the graph of the model once.
"""

from typing import TypeAlias

import tensorflow as tf

from albert_tf.config import FinetuningConfig
from albert_tf.config.task import (
    CLASSIFICATION,
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
Answers = dict[str, tf.Tensor]
Forward: TypeAlias = "tf.types.experimental.PolymorphicFunction"


def ids(name: str) -> tf.TensorSpec:
    """The specification of ids, `(batch, length)`."""
    return tf.TensorSpec([None, None], tf.int32, name=name or None)


def strings(name: str) -> tf.TensorSpec:
    """The specification of texts, `(batch,)`."""
    return tf.TensorSpec([None], tf.string, name=name)


def checked_ids(
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
    text_tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """Traces the serving functions of a pretrained model.

    Args:
        pretrainer: The model, built and restored.
        top_k: Number of pieces returned for each mask.
        max_seq_length: Number of tokens after which text is cut off.
        text_tokenizer: The vocabulary; None omits the text signatures.

    Returns:
        The functions by the name of their signature.
    """
    model = _ServedModel(pretrainer, top_k)
    signatures = _make_id_signatures(model)
    if text_tokenizer is not None:
        signatures |= _make_text_signatures(
            model, text_tokenizer, max_seq_length
        )
    return signatures


class _ServedModel:
    """The model, and the predictions computed from its outputs.

    Args:
        pretrainer: The model, built and restored.
        top_k: Number of pieces returned for each mask.
    """

    def __init__(self, pretrainer: AlbertPretrainer, top_k: int) -> None:
        self._pretrainer = pretrainer
        self._top_k = top_k
        self.sentence_signature = SENTENCE_SIGNATURES.get(
            pretrainer.sentence_objective
        )
        max_length = pretrainer.config.max_position_embeddings

        @tf.function(input_signature=[ids("")] * 3)
        def forward(
            input_ids: tf.Tensor,
            input_mask: tf.Tensor,
            segment_ids: tf.Tensor,
        ) -> Answers:
            outputs = pretrainer.encode(
                {
                    "input_ids": checked_ids(input_ids, max_length),
                    "input_mask": input_mask,
                    "segment_ids": segment_ids,
                }
            )
            return {k: tf.cast(v, tf.float32) for k, v in outputs.items()}

        self._forward = forward

    def encode(self, packed: PackedTexts) -> Answers:
        """Returns `sequence_output` and, with a pooler, `pooled_output`."""
        outputs = self._forward(*packed)
        return {
            name: outputs[name]
            for name in ("sequence_output", "pooled_output")
            if name in outputs
        }

    def fill_mask(
        self, packed: PackedTexts, positions: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the most probable pieces at some positions.

        Args:
            positions: int32, `(batch, predictions)`.

        Returns:
            Ids and log probabilities, int32 and float32,
            `(batch, predictions, top_k)`.
        """
        hidden = self._forward(*packed)["sequence_output"]
        logits = self._pretrainer.mlm_logits(
            tf.gather(hidden, positions, batch_dims=1)
        )
        top = tf.math.top_k(tf.nn.log_softmax(logits), self._top_k)
        return top.indices, top.values

    def classify_sentences(self, packed: PackedTexts) -> Answers:
        """Returns the two probabilities by name: float32, `(batch,)`."""
        assert self.sentence_signature is not None
        outputs = self._forward(*packed)
        probabilities = tf.nn.softmax(outputs["sentence_logits"])
        columns = tf.unstack(probabilities, axis=-1)
        return dict(zip(self.sentence_signature.outputs, columns, strict=True))


def _make_id_signatures(model: _ServedModel) -> Signatures:
    """The signatures that take ids."""
    inputs = [ids(name) for name in PackedTexts._fields]

    @tf.function(input_signature=inputs)
    def encode(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Answers:
        return model.encode(PackedTexts(input_ids, input_mask, segment_ids))

    @tf.function(input_signature=[*inputs, ids("masked_lm_positions")])
    def fill_mask(
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        masked_lm_positions: tf.Tensor,
    ) -> Answers:
        top_ids, log_probabilities = model.fill_mask(
            PackedTexts(input_ids, input_mask, segment_ids),
            masked_lm_positions,
        )
        return {
            "top_ids": top_ids,
            "top_log_probabilities": log_probabilities,
        }

    @tf.function(input_signature=inputs)
    def classify_sentences(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Answers:
        return model.classify_sentences(
            PackedTexts(input_ids, input_mask, segment_ids)
        )

    signatures = {
        SERVING_DEFAULT: encode,
        ENCODE: encode,
        FILL_MASK: fill_mask,
    }
    if model.sentence_signature:
        signatures[model.sentence_signature.name] = classify_sentences
    return signatures


def _make_text_signatures(
    model: _ServedModel, tokenizer: TextTokenizer, max_seq_length: int
) -> Signatures:
    """The signatures that take strings."""

    def with_ids(packed: PackedTexts) -> Answers:
        return model.encode(packed) | {
            "input_ids": packed.input_ids,
            "input_mask": packed.input_mask,
        }

    @tf.function(input_signature=[strings("text")])
    def encode(text: tf.Tensor) -> Answers:
        return with_ids(pack(max_seq_length, tokenizer.encode(text)))

    @tf.function(input_signature=[strings("text"), strings("text_pair")])
    def encode_pair(text: tf.Tensor, text_pair: tf.Tensor) -> Answers:
        return with_ids(
            pack(
                max_seq_length,
                tokenizer.encode(text),
                tokenizer.encode(text_pair),
            )
        )

    @tf.function(input_signature=[strings("text")])
    def fill_mask(text: tf.Tensor) -> Answers:
        ids = tokenizer.encode_with_masks(text)
        packed = pack(max_seq_length, ids)
        positions, is_kept = _find_masks(ids, packed.input_ids)
        top_ids, log_probabilities = model.fill_mask(packed, positions)
        is_kept = is_kept[:, :, tf.newaxis]
        return {
            "top_pieces": tf.where(is_kept, tokenizer.spell(top_ids), ""),
            "top_probabilities": tf.where(
                is_kept, tf.exp(log_probabilities), 0.0
            ),
        }

    @tf.function(input_signature=[strings("text"), strings("text_pair")])
    def classify_sentences(text: tf.Tensor, text_pair: tf.Tensor) -> Answers:
        return model.classify_sentences(
            pack(
                max_seq_length,
                tokenizer.encode(text),
                tokenizer.encode(text_pair),
            )
        )

    signatures = {
        ENCODE + TEXT: encode,
        ENCODE + TEXT_PAIR: encode_pair,
        FILL_MASK + TEXT: fill_mask,
    }
    if model.sentence_signature:
        name = model.sentence_signature.name + TEXT_PAIR
        signatures[name] = classify_sentences
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
    text_tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """Traces the serving functions of a fine-tuned model.

    Args:
        model: The model, built and restored.
        run: Its settings; text is cut off after `max_seq_length` tokens.
        text_tokenizer: The vocabulary; None omits the text signatures. A model
            for question answering has none.

    Returns:
        The functions by the name of their signature.
    """
    make = {
        CLASSIFICATION: _sequence_signatures,
        REGRESSION: _sequence_signatures,
        MULTIPLE_CHOICE: _choice_signatures,
        QUESTION_ANSWERING: _span_signatures,
    }
    return make[model.head_config.kind](
        model, _forward(model), run, text_tokenizer
    )


def _forward(model: AlbertForTask) -> Forward:
    """The model as one function, which all signatures call."""
    max_length = model.config.max_position_embeddings
    names = [*PackedTexts._fields, *["p_mask"] * model.head_config.is_beam]

    @tf.function(input_signature=[ids("")] * len(names))
    def forward(*inputs: tf.Tensor) -> Answers:
        input_ids = checked_ids(
            inputs[0], max_length, model.head_config.num_choices
        )
        features = dict(zip(names, [input_ids, *inputs[1:]], strict=True))
        return model(features)

    return forward


def _sequence_signatures(
    model: AlbertForTask,
    forward: Forward,
    run: FinetuningConfig,
    text_tokenizer: TextTokenizer | None,
) -> Signatures:
    """The signatures of classification and regression.

    A run of pairs takes no single texts, and the reverse. A converted run,
    whose texts are unknown, takes both.
    """
    head, max_seq_length = model.head_config, run.data.max_seq_length
    name = PREDICT_VALUE if head.kind == REGRESSION else CLASSIFY

    def answer(packed: PackedTexts) -> Answers:
        logits = forward(*packed)["logits"]
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

    has_pairs = run.task.has_pairs
    if has_pairs is not True:
        signatures[name + TEXT] = from_text
    if has_pairs is not False:
        signatures[name + TEXT_PAIR] = from_pair
    return signatures


def _choice_signatures(
    model: AlbertForTask,
    forward: Forward,
    run: FinetuningConfig,
    text_tokenizer: TextTokenizer | None,
) -> Signatures:
    num_choices = model.head_config.num_choices
    of_choices = [
        tf.TensorSpec([None, num_choices, None], tf.int32, name=name)
        for name in PackedTexts._fields
    ]

    def answer(*inputs: tf.Tensor) -> Answers:
        """Answers for ids, each `(batch, num_choices * length)`."""
        logits = forward(*inputs)["logits"]
        return {
            "choice_number": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
        }

    @tf.function(input_signature=of_choices)
    def from_ids(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Answers:
        inputs = (input_ids, input_mask, segment_ids)
        sizes = [tf.shape(input_ids)[0], num_choices * tf.shape(input_ids)[2]]
        return answer(*(tf.reshape(values, sizes) for values in inputs))

    signatures = {SERVING_DEFAULT: from_ids, CHOOSE: from_ids}
    if text_tokenizer is None:
        return signatures
    encode = text_tokenizer.encode

    @tf.function(
        input_signature=[
            strings("question"),
            strings("context"),
            tf.TensorSpec([None, num_choices], tf.string, name="choices"),
        ]
    )
    def from_text(
        question: tf.Tensor, context: tf.Tensor, choices: tf.Tensor
    ) -> Answers:
        packed = pack_choices(
            encode(context),
            encode(
                tf.reshape(join_choices(question, choices), [-1]),
            ),
            num_choices,
            run,
        )
        sizes = [tf.shape(choices)[0], -1]
        found = answer(*(tf.reshape(values, sizes) for values in packed))
        choice = tf.gather(choices, found["choice_number"], batch_dims=1)
        return {"choice": choice} | found

    return signatures | {CHOOSE + TEXT: from_text}


def join_choices(questions: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
    """The second text of each choice of a question, as in training.

    A choice replaces each "_" of its question. If the question has no "_", the
    choice follows it.

    Args:
        questions: string, `(batch,)`.
        choices: string, `(batch, num_choices)`.

    Returns:
        string, `(batch, num_choices)`.

    Example:
        >>> join_choices(
        ...     tf.constant(["It is _.", "What is it?"]),
        ...     tf.constant([["a dog", "1_"], ["a dog", "1_"]]),
        ... ).numpy().tolist()
        [[b'It is a dog.', b'It is 1_.'],
         [b'What is it? a dog', b'What is it? 1_']]
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


def pack_choices(
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


def _span_signatures(
    model: AlbertForTask, forward: Forward, *_: object
) -> Signatures:
    inputs = [ids(name) for name in PackedTexts._fields]

    @tf.function(input_signature=inputs)
    def from_ids(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Answers:
        return forward(input_ids, input_mask, segment_ids)

    @tf.function(input_signature=[*inputs, ids("p_mask")])
    def from_beam_ids(
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        p_mask: tf.Tensor,
    ) -> Answers:
        return forward(input_ids, input_mask, segment_ids, p_mask)

    score_spans = from_beam_ids if model.head_config.is_beam else from_ids
    return {SERVING_DEFAULT: score_spans, SCORE_SPANS: score_spans}
