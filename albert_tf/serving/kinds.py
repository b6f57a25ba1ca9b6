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
    cut,
    fill_gaps,
    join,
    pack,
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
        asks_client: Whether the client tokenizes and finds the answers.
    """

    asks_client = False

    def choices(self, head: TaskHeadConfig) -> tuple[int, ...]:
        """The number of sequences of an example, if they have a dimension."""
        return ()

    def has_second_text(self, run: FinetuningConfig) -> bool:
        """Whether an example is a pair of texts."""
        return bool(run.task.has_pairs)

    def numbers(self, outputs: Outputs) -> Outputs:
        """The answers as numbers: spans, values, probabilities of classes."""
        return {"probabilities": tf.nn.softmax(outputs["logits"])}

    def signatures(
        self,
        forward: Answer,
        run: FinetuningConfig,
        tokenizer: TextTokenizer | None,
    ) -> Signatures:
        """The serving functions by name; `serving_default` takes ids.

        Args:
            forward: The outputs of the model for `PackedTexts`, each int32,
                `(batch, num_choices * length)`.
            tokenizer: The vocabulary; None omits signatures that take text.
        """
        raise NotImplementedError


class _Texts(ServedKind):
    """Kinds that answer a text or a pair of texts."""

    signature_name = "classify"

    def answers(self, head: TaskHeadConfig, outputs: Outputs) -> Outputs:
        """The numbers and the names of their classes."""
        labels = tf.constant(head.labels)
        shape = tf.shape(outputs["logits"])
        return {
            **self.numbers(outputs),
            "labels": tf.broadcast_to(labels, shape),
        }

    def signatures(
        self,
        forward: Answer,
        run: FinetuningConfig,
        tokenizer: TextTokenizer | None,
    ) -> Signatures:
        def answer(*packed: tf.Tensor) -> Outputs:
            return self.answers(run.head, forward(*packed))

        name = self.signature_name
        from_ids = as_signature(answer, PACKED)
        found = {"serving_default": from_ids, name: from_ids}
        if tokenizer:
            # A run of pairs takes no single texts, and the reverse. A converted
            # run, whose texts are unknown, takes both.
            texts = tokenizer, run.data.max_seq_length, "text"
            if run.task.has_pairs is not True:
                found[f"{name}_text"] = from_texts(answer, *texts)
            if run.task.has_pairs is not False:
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
    signature_name = "predict_value"

    def numbers(self, outputs: Outputs) -> Outputs:
        return {"value": outputs["logits"][:, 0]}

    def answers(self, head: TaskHeadConfig, outputs: Outputs) -> Outputs:
        return self.numbers(outputs)


class _QuestionAnswering(ServedKind):
    asks_client = True

    def has_second_text(self, run: FinetuningConfig) -> bool:
        return True

    def numbers(self, outputs: Outputs) -> Outputs:
        return dict(outputs)

    def signatures(
        self,
        forward: Answer,
        run: FinetuningConfig,
        tokenizer: TextTokenizer | None,
    ) -> Signatures:
        inputs = ids_of(*input_names(run.head))
        spans = as_signature(lambda *ids: dict(forward(*ids)), inputs)
        return {"serving_default": spans, "score_spans": spans}


# A word of a raw text: letters and digits with marks between them, as in
# "3.5" and "Franco-German"; or another character that is no white space.
_LETTERS = r"[\pL\pM\pN]+"
_WORD = rf"{_LETTERS}(?:[.,_@/&-]{_LETTERS})*|[^\s\pZ]"


class _TokenClassification(ServedKind):
    def signatures(
        self,
        forward: Answer,
        run: FinetuningConfig,
        tokenizer: TextTokenizer | None,
    ) -> Signatures:
        labels, max_seq_length = run.head.labels, run.data.max_seq_length

        def tag(*packed: tf.Tensor) -> Outputs:
            """The best tag of each token, and its probability."""
            probabilities = tf.nn.softmax(forward(*packed)["logits"])
            best = tf.argmax(probabilities, axis=-1)
            return {
                "tags": tf.gather(tf.constant(labels), best),
                "probabilities": tf.reduce_max(probabilities, axis=-1),
            }

        def tag_words(words: tf.RaggedTensor) -> Outputs:
            """The tag of each word: that of its first token, as in training."""
            assert tokenizer is not None
            pieces = tokenizer.encode(words.flat_values)
            lengths = words.with_values(pieces.row_lengths()).to_tensor()
            positions = tf.cumsum(lengths, axis=1, exclusive=True) + 1
            is_read = (lengths > 0) & (positions < max_seq_length - 1)
            ids = words.with_values(pieces).merge_dims(1, 2)
            found = tag(*pack(max_seq_length, ids))
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
            assert tokenizer is not None
            words, begins, ends = tokenizer.split_words(texts, _WORD)
            offsets = {"begins": begins, "ends": ends}
            return tag_words(words) | {
                name: values.to_tensor() for name, values in offsets.items()
            }

        from_ids = as_signature(tag, PACKED)
        signatures = {"serving_default": from_ids, "tag": from_ids}
        if tokenizer:
            words = tf.TensorSpec([None, None], tf.string, name="words")
            signatures["tag_words"] = as_signature(from_words, [words])
            signatures["tag_text"] = as_signature(from_text, strings("text"))
        return signatures


class _MultipleChoice(ServedKind):
    def choices(self, head: TaskHeadConfig) -> tuple[int, ...]:
        return (head.num_choices,)

    def has_second_text(self, run: FinetuningConfig) -> bool:
        return True

    def signatures(
        self,
        forward: Answer,
        run: FinetuningConfig,
        tokenizer: TextTokenizer | None,
    ) -> Signatures:
        num_choices = run.head.num_choices

        def answer(*inputs: tf.Tensor) -> Outputs:
            """Answers for ids, each `(batch, num_choices * length)`."""
            logits = forward(*inputs)["logits"]
            return {
                "choice_number": tf.argmax(
                    logits, axis=-1, output_type=tf.int32
                ),
                "probabilities": tf.nn.softmax(logits),
            }

        def from_ids(*inputs: tf.Tensor) -> Outputs:
            sizes = [
                tf.shape(inputs[0])[0],
                num_choices * tf.shape(inputs[0])[2],
            ]
            return answer(*(tf.reshape(values, sizes) for values in inputs))

        def from_text(
            question: tf.Tensor, context: tf.Tensor, choices: tf.Tensor
        ) -> Outputs:
            assert tokenizer is not None
            joined = tf.reshape(fill_gaps(question, choices), [-1])
            # [CLS] context [SEP] question choice [SEP], as in training:
            # question and choice keep their last tokens, the context loses
            # its end.
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

        inputs = ids_of(*PackedTexts._fields, num_choices=(num_choices,))
        ids = as_signature(from_ids, inputs)
        signatures = {"serving_default": ids, "choose": ids}
        if tokenizer:
            choices = tf.TensorSpec(
                [None, num_choices], tf.string, name="choices"
            )
            texts = [*strings("question", "context"), choices]
            signatures["choose_text"] = as_signature(from_text, texts)
        return signatures


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
    return [*PackedTexts._fields, *["p_mask"] * head.is_beam]


def serve_task(
    model: AlbertForTask,
    run: FinetuningConfig,
    tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """The serving functions of a fine-tuned model; `run` has its settings.

    A model for question answering has no signatures that take text.
    """
    head, max_length = model.head_config, model.config.max_position_embeddings
    names = input_names(head)

    @tf.function(input_signature=ids_of(*names))
    def forward(*values: tf.Tensor) -> Outputs:
        ids = checked_ids(values[0], max_length, head.num_choices)
        return model(dict(zip(names, [ids, *values[1:]], strict=True)))

    return KINDS[head.kind].signatures(forward, run, tokenizer)
