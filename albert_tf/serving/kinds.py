"""What exported models of fine-tuned tasks answer, by kind of task.

`finetuning.kinds` has the training of the same kinds.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config import task as config_task
from albert_tf.modeling.models import AlbertForTask
from albert_tf.serving.text_tokenizer import (
    PackedTexts,
    TextTokenizer,
    fill_gaps,
    first_tokens,
    pack,
    pack_choices,
)

Signatures = dict[str, tf.types.experimental.PolymorphicFunction]
Outputs = dict[str, tf.Tensor]
Answer = Callable[..., Outputs]


# --- signatures --------------------------------------------------------------


def ids_of(
    *names: str, num_choices: tuple[int, ...] = ()
) -> list[tf.TensorSpec]:
    """Specifications of ids, `(batch, *num_choices, length)`."""
    shape = [None, *num_choices, None]
    return [tf.TensorSpec(shape, tf.int32, name=name) for name in names]


def strings(*names: str) -> list[tf.TensorSpec]:
    """Specifications of texts, `(batch,)`."""
    return [tf.TensorSpec([None], tf.string, name=name) for name in names]


PACKED = ids_of(*PackedTexts._fields)


def as_signature(function: Answer, inputs: list[tf.TensorSpec]) -> Any:
    """A function that takes inputs by the names of their specifications."""
    return tf.function(function, input_signature=inputs, autograph=False)


def from_texts(
    answer: Answer, tokenizer: TextTokenizer, max_length: int, *names: str
) -> Any:
    """The signature that takes one or two texts instead of ids."""

    def answer_texts(*texts: tf.Tensor) -> Outputs:
        return answer(*pack(max_length, *map(tokenizer.encode, texts)))

    return as_signature(answer_texts, strings(*names))


def checked_ids(
    input_ids: tf.Tensor, max_length: int, num_choices: int = 1
) -> tf.Tensor:
    """Refuses, as the graph runs, sequences that are longer than the model.

    Takes and returns ids, int32, `(batch, num_choices * length)`. What is
    computed from them waits for the check, so that no other error comes first.
    """
    length = tf.shape(input_ids)[1] // num_choices
    message = f"input_ids must be at most {max_length} tokens long"
    check = tf.debugging.assert_less_equal(length, max_length, message)
    with tf.control_dependencies([check]):
        return tf.identity(input_ids)


# --- kinds -------------------------------------------------------------------


class ServedKind:
    """A kind of task.

    Attributes:
        signature: The signature that takes ids, beside `serving_default`.
        asks_client: Whether the client tokenizes and finds the answers.
        has_question: Whether an example always has two texts.
        has_choices: Whether an example has a sequence for each choice.
    """

    signature: str
    asks_client = False
    has_question = False
    has_choices = False

    def choices(self, head: TaskHeadConfig) -> tuple[int, ...]:
        """The number of sequences of an example, if they have a dimension."""
        return (head.num_choices,) if self.has_choices else ()

    def numbers(self, outputs: Outputs) -> Outputs:
        """The answers as numbers: spans, values, probabilities of classes."""
        return {"probabilities": tf.nn.softmax(outputs["logits"])}

    def answers(self, head: TaskHeadConfig, outputs: Outputs) -> Outputs:
        """The answers of a signature, for the outputs of the model."""
        return self.numbers(outputs)

    def text_signatures(
        self, answer: Answer, run: FinetuningConfig, tokenizer: TextTokenizer
    ) -> Signatures:
        """The serving functions that take texts, by name.

        Args:
            answer: The `answers` for `PackedTexts`, each int32,
                `(batch, num_choices * length)`.
        """
        return {}


class _Texts(ServedKind):
    """Kinds that answer a text or a pair of texts."""

    signature = "classify"

    def answers(self, head: TaskHeadConfig, outputs: Outputs) -> Outputs:
        """The numbers and the names of their classes."""
        shape = tf.shape(outputs["logits"])
        labels = tf.broadcast_to(tf.constant(head.labels), shape)
        return {**self.numbers(outputs), "labels": labels}

    def text_signatures(
        self, answer: Answer, run: FinetuningConfig, tokenizer: TextTokenizer
    ) -> Signatures:
        # A run of pairs takes no single texts, and the reverse. A converted
        # run, whose texts are unknown, takes both.
        name, has_pairs = self.signature, run.task.has_pairs
        texts = tokenizer, run.data.max_seq_length, "text"
        found = {}
        if has_pairs is not True:
            found[f"{name}_text"] = from_texts(answer, *texts)
        if has_pairs is not False:
            pairs = from_texts(answer, *texts, "text_pair")
            found[f"{name}_text_pair"] = pairs
        return found


class _Classification(_Texts):
    def answers(self, head: TaskHeadConfig, outputs: Outputs) -> Outputs:
        best = tf.argmax(outputs["logits"], axis=-1)
        label = tf.gather(tf.constant(head.labels), best)
        return {**super().answers(head, outputs), "label": label}


class _MultiLabel(_Texts):
    def numbers(self, outputs: Outputs) -> Outputs:
        return {"probabilities": tf.sigmoid(outputs["logits"])}


class _Regression(_Texts):
    signature = "predict_value"

    def numbers(self, outputs: Outputs) -> Outputs:
        return {"value": outputs["logits"][:, 0]}

    def answers(self, head: TaskHeadConfig, outputs: Outputs) -> Outputs:
        return self.numbers(outputs)


class _QuestionAnswering(ServedKind):
    signature = "score_spans"
    asks_client = has_question = True

    def numbers(self, outputs: Outputs) -> Outputs:
        return dict(outputs)


# A word of a raw text: letters and digits with marks between them, as in
# "3.5" and "Franco-German"; or another character that is no white space.
_LETTERS = r"[\pL\pM\pN]+"
_WORD = rf"{_LETTERS}(?:[.,_@/&-]{_LETTERS})*|[^\s\pZ]"


class _TokenClassification(ServedKind):
    signature = "tag"

    def answers(self, head: TaskHeadConfig, outputs: Outputs) -> Outputs:
        """The best tag of each token, and its probability."""
        probabilities = tf.nn.softmax(outputs["logits"])
        best = tf.argmax(probabilities, axis=-1)
        return {
            "tags": tf.gather(tf.constant(head.labels), best),
            "probabilities": tf.reduce_max(probabilities, axis=-1),
        }

    def text_signatures(
        self, answer: Answer, run: FinetuningConfig, tokenizer: TextTokenizer
    ) -> Signatures:
        max_seq_length = run.data.max_seq_length

        def tag_words(words: tf.RaggedTensor) -> Outputs:
            """The tag of each word: that of its first token, as in training."""
            pieces = tokenizer.encode(words.flat_values)
            lengths = words.with_values(pieces.row_lengths()).to_tensor()
            positions, is_read = first_tokens(lengths, max_seq_length)
            ids = words.with_values(pieces).merge_dims(1, 2)
            found = answer(*pack(max_seq_length, ids))
            positions = tf.where(is_read, positions, 0)
            tags, probabilities = (
                tf.gather(found[name], positions, batch_dims=1)
                for name in ("tags", "probabilities")
            )
            return {
                "words": words.to_tensor(""),
                "tags": tf.where(is_read, tags, ""),
                "probabilities": tf.where(is_read, probabilities, 0.0),
            }

        def from_words(words: tf.Tensor) -> Outputs:
            is_word = words != ""
            return tag_words(tf.ragged.boolean_mask(words, is_word))

        def from_text(texts: tf.Tensor) -> Outputs:
            words, begins, ends = tokenizer.split_words(texts, _WORD)
            offsets = {"begins": begins, "ends": ends}
            return tag_words(words) | {
                name: values.to_tensor() for name, values in offsets.items()
            }

        words = tf.TensorSpec([None, None], tf.string, name="words")
        return {
            "tag_words": as_signature(from_words, [words]),
            "tag_text": as_signature(from_text, strings("text")),
        }


class _MultipleChoice(ServedKind):
    signature = "choose"
    has_question = has_choices = True

    def answers(self, head: TaskHeadConfig, outputs: Outputs) -> Outputs:
        logits = outputs["logits"]
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {"choice_number": best, **self.numbers(outputs)}

    def text_signatures(
        self, answer: Answer, run: FinetuningConfig, tokenizer: TextTokenizer
    ) -> Signatures:
        num_choices = run.head.num_choices

        def from_text(
            question: tf.Tensor, context: tf.Tensor, choices: tf.Tensor
        ) -> Outputs:
            joined = tf.reshape(fill_gaps(question, choices), [-1])
            packed = pack_choices(
                tokenizer.encode(context),
                tokenizer.encode(joined),
                run.task.max_qa_length,
                run.data.max_seq_length,
            )
            # Not -1, which stands for any number if there are no questions.
            length = num_choices * tf.shape(packed.input_ids)[1]
            shape = [tf.shape(choices)[0], length]
            found = answer(*(tf.reshape(values, shape) for values in packed))
            choice = tf.gather(choices, found["choice_number"], batch_dims=1)
            return {"choice": choice} | found

        choices = tf.TensorSpec([None, num_choices], tf.string, name="choices")
        texts = [*strings("question", "context"), choices]
        return {"choose_text": as_signature(from_text, texts)}


KINDS: Mapping[str, ServedKind] = {
    config_task.CLASSIFICATION: _Classification(),
    config_task.MULTI_LABEL: _MultiLabel(),
    config_task.REGRESSION: _Regression(),
    config_task.MULTIPLE_CHOICE: _MultipleChoice(),
    config_task.TOKEN_CLASSIFICATION: _TokenClassification(),
    config_task.QUESTION_ANSWERING: _QuestionAnswering(),
}


def input_names(head: TaskHeadConfig) -> list[str]:
    """The names of the ids that a model reads."""
    names = [*PackedTexts._fields]
    return [*names, "p_mask"] if head.is_beam else names


def serve_task(
    model: AlbertForTask,
    run: FinetuningConfig,
    tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """The serving functions of a fine-tuned model; `run` has its settings.

    Args:
        tokenizer: The vocabulary; None omits signatures that take text. A model
            for question answering has none.

    Returns:
        The functions by name; `serving_default` takes ids.
    """
    head, max_length = model.head_config, model.config.max_position_embeddings
    kind, names = KINDS[head.kind], input_names(head)
    choices = kind.choices(head)

    @tf.function(input_signature=ids_of(*names))
    def forward(*values: tf.Tensor) -> Outputs:
        ids = checked_ids(values[0], max_length, head.num_choices)
        return model(dict(zip(names, [ids, *values[1:]], strict=True)))

    def answer(*values: tf.Tensor) -> Outputs:
        return kind.answers(head, forward(*values))

    def from_ids(*values: tf.Tensor) -> Outputs:
        if choices:
            batch, count, length = tf.unstack(tf.shape(values[0]))
            shape = [batch, count * length]
            values = tuple(tf.reshape(ids, shape) for ids in values)
        return answer(*values)

    ids = as_signature(from_ids, ids_of(*names, num_choices=choices))
    signatures = {"serving_default": ids, kind.signature: ids}
    if tokenizer:
        signatures |= kind.text_signatures(answer, run, tokenizer)
    return signatures
