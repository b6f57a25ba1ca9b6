"""The serving signatures of fine-tuned models.

`python -m albert_tf.export_saved_model --help` describes them.
"""

from typing import NamedTuple, TypeAlias

import tensorflow as tf

from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import (
    CLASSIFICATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.errors import UserError
from albert_tf.modeling.task_model import AlbertForTask
from albert_tf.serving.answer_search import find_answers
from albert_tf.serving.document_windows import make_windows
from albert_tf.serving.names import (
    CHOOSE,
    CLASSIFY,
    FIND_ANSWER,
    PAIR_SUFFIX,
    PREDICT_VALUE,
    SCORE_SPANS,
    SERVING_DEFAULT,
    TEXT_SUFFIX,
)
from albert_tf.serving.signatures import (
    Answers,
    Signatures,
    checked_ids,
    ids,
    strings,
)
from albert_tf.serving.text_alignment import align
from albert_tf.serving.text_tokenizer import (
    PackedTexts,
    TextTokenizer,
    cut,
    join,
    pack,
    to_valid_utf8,
)

# Largest number of windows in a call of the model. More are read in parts.
_MAX_WINDOWS = 32

Forward: TypeAlias = "tf.types.experimental.PolymorphicFunction"


class AnswerRules(NamedTuple):
    """How texts become sequences, and scores become answers.

    Attributes:
        max_seq_length: Number of tokens after which text is cut.
        task: Lengths and stride, as in training.
        null_threshold: Null odds above which a question has no answer.
    """

    max_seq_length: int
    task: TaskConfig
    null_threshold: float


def make_task_signatures(
    model: AlbertForTask,
    rules: AnswerRules,
    text_tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """Traces the serving functions.

    Args:
        model: The model, built and restored.
        text_tokenizer: The vocabulary; None omits the text signatures.

    Returns:
        The functions by the name of their signature.

    Raises:
        UserError: If the longest question leaves no room for its context.
    """
    kind = model.head_config.kind
    make = {
        CLASSIFICATION: _sequence_signatures,
        REGRESSION: _sequence_signatures,
        MULTIPLE_CHOICE: _choice_signatures,
        QUESTION_ANSWERING: _span_signatures,
    }
    return make[kind](model, _forward(model), rules, text_tokenizer)


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
    rules: AnswerRules,
    text_tokenizer: TextTokenizer | None,
) -> Signatures:
    """The signatures of classification and regression.

    A run of pairs takes no single texts, and the reverse. A converted run,
    whose texts are unknown, takes both.
    """
    head, max_seq_length = model.head_config, rules.max_seq_length
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

    has_pairs = rules.task.has_pairs
    if has_pairs is not True:
        signatures[name + TEXT_SUFFIX] = from_text
    if has_pairs is not False:
        signatures[name + PAIR_SUFFIX] = from_pair
    return signatures


# --- multiple choice ---------------------------------------------------------


def _choice_signatures(
    model: AlbertForTask,
    forward: Forward,
    rules: AnswerRules,
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
            rules,
        )
        sizes = [tf.shape(choices)[0], -1]
        found = answer(*(tf.reshape(values, sizes) for values in packed))
        choice = tf.gather(choices, found["choice_number"], batch_dims=1)
        return {"choice": choice} | found

    return signatures | {CHOOSE + TEXT_SUFFIX: from_text}


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
    rules: AnswerRules,
) -> PackedTexts:
    """Makes `[CLS] context [SEP] question choice [SEP]`, as in training.

    Question and choice together keep their last `max_qa_length` tokens; the
    context loses its end.

    Args:
        contexts: int32, `(batch, tokens)`.
        choices: int32, `(batch * num_choices, tokens)`, with the questions.
        num_choices: Number of choices of each question.
        rules: `max_seq_length` and `max_qa_length`.
    """
    room = rules.max_seq_length - 3
    longest = min(rules.task.max_qa_length, room)
    second = choices[:, -longest:]
    rows = tf.repeat(tf.range(contexts.nrows()), num_choices)
    first = cut(tf.gather(contexts, rows), room - second.row_lengths())
    return join([first, second])


# --- question answering ------------------------------------------------------


def _span_signatures(
    model: AlbertForTask,
    forward: Forward,
    rules: AnswerRules,
    text_tokenizer: TextTokenizer | None,
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

    is_beam = model.head_config.is_beam
    score_spans = from_beam_ids if is_beam else from_ids
    signatures = {SERVING_DEFAULT: score_spans, SCORE_SPANS: score_spans}
    if text_tokenizer is None:
        return signatures
    task, max_seq_length = rules.task, rules.max_seq_length
    if task.max_query_length + 3 >= max_seq_length:
        raise UserError(
            "max_seq_length must be above max_query_length + 3, so that a "
            "question leaves room for its context",
            received=f"{max_seq_length} and {task.max_query_length}",
            remedy="Export with a larger --max_seq_length.",
        )
    encode = text_tokenizer.encode

    @tf.function(input_signature=[strings("question"), strings("context")])
    def from_text(question: tf.Tensor, context: tf.Tensor) -> Answers:
        context = to_valid_utf8(context)
        documents = align(text_tokenizer, context)
        windows = make_windows(
            encode(question), documents.ids, task, max_seq_length
        )
        sequences = [*windows.packed, *[windows.p_mask] * is_beam]
        scores = _in_parts(forward, sequences)
        return find_answers(
            context, documents, windows, scores, task, rules.null_threshold
        )

    return signatures | {FIND_ANSWER + TEXT_SUFFIX: from_text}


def _in_parts(forward: Forward, inputs: list[tf.Tensor]) -> Answers:
    """Calls the model on at most `_MAX_WINDOWS` rows at a time.

    Args:
        inputs: int32, `(windows, length)`.

    Returns:
        The outputs for all rows.
    """
    count = tf.shape(inputs[0])[0]
    num_parts = tf.maximum((count + _MAX_WINDOWS - 1) // _MAX_WINDOWS, 1)
    size = (count + num_parts - 1) // num_parts
    padding = [[0, num_parts * size - count], [0, 0]]
    shape = [num_parts, size, tf.shape(inputs[0])[1]]
    outputs = forward.get_concrete_function().structured_outputs
    found = tf.map_fn(
        lambda part: forward(*part),
        [tf.reshape(tf.pad(values, padding), shape) for values in inputs],
        parallel_iterations=1,
        fn_output_signature={
            name: tf.TensorSpec(values.shape, values.dtype)
            for name, values in outputs.items()
        },
    )
    return {
        name: tf.reshape(
            values, tf.concat([[num_parts * size], tf.shape(values)[2:]], 0)
        )[:count]
        for name, values in found.items()
    }
