"""Windows of documents, made in a TensorFlow graph.

They equal those of `finetuning.windows`, which explains them. Windows and
tokens are numbered over all questions of a batch.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.config.task import TaskConfig
from albert_tf.serving.text_tokenizer import PackedTexts, cut, join


class Windows(NamedTuple):
    """The windows of the documents of several questions.

    Attributes:
        packed: The sequences `[CLS] question [SEP] window [SEP]`, each
            `(windows, length)`.
        p_mask: int32, `(windows, length)`; 0 for `[CLS]` and the document, 1
            elsewhere.
        examples: int64, `(windows,)`, number of the question.
        begins, ends: int64, `(windows,)`, number of the first token of the
            window, and of the first one after it.
        offsets: int64, `(windows,)`, position of the first token of the window
            in the sequence.
        best_window: int64, `(tokens of all documents,)`, the window in which a
            token has most context.
    """

    packed: PackedTexts
    p_mask: tf.Tensor
    examples: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    offsets: tf.Tensor
    best_window: tf.Tensor


def make_windows(
    questions: tf.RaggedTensor,
    documents: tf.RaggedTensor,
    config: TaskConfig,
    max_seq_length: int,
) -> Windows:
    """Makes the windows of each question, in order.

    Args:
        questions: int32, `(batch, tokens)`.
        documents: int32, `(batch, tokens)`.
        config: `doc_stride` and `max_query_length`.
        max_seq_length: Largest number of tokens in a sequence.

    Example:
        >>> windows = make_windows(
        ...     tf.ragged.constant([[5]]),
        ...     tf.ragged.constant([[6, 7, 8, 9]]),
        ...     TaskConfig(doc_stride=2),
        ...     max_seq_length=7,
        ... )
        >>> windows.packed.input_ids.numpy().tolist()
        [[2, 5, 3, 6, 7, 8, 3], [2, 5, 3, 8, 9, 3, 0]]
        >>> windows.best_window.numpy().tolist()
        [0, 0, 0, 1]
    """
    queries = cut(questions, tf.constant(config.max_query_length, tf.int64))
    sizes = documents.row_lengths()
    room = max_seq_length - 3 - queries.row_lengths()
    stride = tf.minimum(tf.constant(config.doc_stride, tf.int64), room)
    # Windows after the first cover the tokens beyond `room`, `stride` new ones
    # each; the division rounds up.
    counts = 1 + (tf.maximum(sizes - room, 0) + stride - 1) // stride

    examples = tf.repeat(tf.range(documents.nrows()), counts)
    numbers = tf.ragged.range(counts).values
    first = numbers * tf.gather(stride, examples)
    last = tf.minimum(
        first + tf.gather(room, examples), tf.gather(sizes, examples)
    )
    document_begins = tf.gather(documents.row_starts(), examples)
    begins, ends = first + document_begins, last + document_begins

    tokens = tf.ragged.range(begins, ends)
    packed = join(
        [
            tf.gather(queries, examples),
            tokens.with_values(tf.gather(documents.values, tokens.values)),
        ]
    )
    offsets = tf.gather(queries.row_lengths(), examples) + 2
    positions = tf.range(tf.shape(packed.input_ids, tf.int64)[1])
    is_document = (positions >= offsets[:, tf.newaxis]) & (
        positions < (offsets + ends - begins)[:, tf.newaxis]
    )
    return Windows(
        packed,
        tf.cast(~is_document & (positions > 0), tf.int32),
        examples,
        begins,
        ends,
        offsets,
        _best_window(tokens, tf.size(documents.values, tf.int64)),
    )


def _best_window(tokens: tf.RaggedTensor, num_tokens: tf.Tensor) -> tf.Tensor:
    """For each token, the window with most context; of several, the first one.

    Args:
        tokens: int64, `(windows, tokens of the window)`.
        num_tokens: Number of tokens of all documents.
    """
    sizes = tokens.row_lengths()
    before = tf.ragged.range(sizes).values
    windows = tokens.value_rowids()
    after = tf.gather(sizes, windows) - 1 - before
    # float64, as in `finetuning.windows`: then both agree on which contexts
    # are equal.
    context = tf.cast(tf.minimum(before, after), tf.float64) + 0.01 * tf.cast(
        tf.gather(sizes, windows), tf.float64
    )
    best = tf.math.unsorted_segment_max(context, tokens.values, num_tokens)
    is_best = context == tf.gather(best, tokens.values)
    return tf.math.unsorted_segment_min(
        tf.boolean_mask(windows, is_best),
        tf.boolean_mask(tokens.values, is_best),
        num_tokens,
    )
