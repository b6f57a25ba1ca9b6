"""Finds the best answer in the scores of all windows, in a TensorFlow graph.

The answer equals the first candidate of `finetuning.answers.decode`.
"""

from collections.abc import Mapping

import tensorflow as tf

from albert_tf.config.task import NO_ANSWER_SCORE, TaskConfig
from albert_tf.serving.document_windows import Windows
from albert_tf.serving.text_alignment import AlignedTexts


def find_answers(
    contexts: tf.Tensor,
    documents: AlignedTexts,
    windows: Windows,
    scores: Mapping[str, tf.Tensor],
    config: TaskConfig,
    null_threshold: float,
) -> dict[str, tf.Tensor]:
    """Finds the best answer to each question.

    Args:
        contexts: string, `(batch,)`, valid UTF-8: the documents.
        documents: The tokens of the documents.
        windows: The windows of the documents.
        scores: Of each window, the outputs of the head: `start_logits` and
            `end_logits`, `(windows, length)`; or those of `BeamSpanHead`.
        config: `max_answer_length` and `n_best_size`.
        null_threshold: The answer is "" if `null_odds` is larger.

    Returns:
        `answer`, string; `start` and `end`, int32, where it begins and ends in
        the characters of the context, 0 for the answer ""; `score` of the best
        span, even if the answer is "", `null_score` and `null_odds`, float32.
        Each `(batch,)`.
    """
    is_plain = "null_logits" not in scores
    if is_plain:
        starts, ends, sums = _plain_spans(scores, windows, config.n_best_size)
        null_scores = scores["start_logits"][:, 0] + scores["end_logits"][:, 0]
    else:
        starts, ends = scores["start_positions"], scores["end_positions"]
        sums = scores["start_log_probs"][..., tf.newaxis]
        sums += scores["end_log_probs"]
        null_scores = scores["null_logits"]

    # Tokens of spans, (windows, spans).
    shape = tf.shape(sums)
    shift = (windows.begins - windows.offsets)[:, tf.newaxis]
    first, last = (
        shift
        + tf.cast(
            tf.reshape(tf.broadcast_to(positions, shape), [shape[0], -1]),
            tf.int64,
        )
        for positions in (starts[..., tf.newaxis], ends)
    )
    letters, before, through = _count_letters(documents)
    sums = tf.where(
        (first >= windows.begins[:, tf.newaxis])
        & (first <= last)
        & (last < windows.ends[:, tf.newaxis])
        & (last - first < config.max_answer_length)
        & (_at(windows.best_window, first) == _row_numbers(first))
        & (_at(before, first) < _at(through, last)),
        tf.reshape(sums, [shape[0], -1]),
        sums.dtype.min,
    )

    # The best span of each window, then that of each question; of equals, the
    # first one.
    top = tf.math.top_k(sums, 1)
    num_questions = tf.shape(contexts, tf.int64)[0]
    best = tf.math.unsorted_segment_max(
        top.values[:, 0], windows.examples, num_questions
    )
    is_best = top.values[:, 0] == tf.gather(best, windows.examples)
    best_window = tf.math.unsorted_segment_min(
        tf.boolean_mask(_row_numbers(first)[:, 0], is_best),
        tf.boolean_mask(windows.examples, is_best),
        num_questions,
    )
    best_first, best_last = (
        tf.gather(
            tf.gather(tokens, best_window),
            tf.gather(top.indices[:, 0], best_window),
            batch_dims=1,
        )
        for tokens in (first, last)
    )

    is_found = best > best.dtype.min
    score = tf.where(is_found, best, NO_ANSWER_SCORE)
    null_score = tf.math.unsorted_segment_min(
        null_scores, windows.examples, num_questions
    )
    null_odds = tf.cast(null_score, tf.float64)
    if is_plain:
        null_odds -= tf.cast(score, tf.float64)
    is_found &= null_odds <= null_threshold
    context_begins = documents.is_white_space.row_starts()
    start = _at(letters, _at(before, best_first)) - context_begins
    end = _at(letters, _at(through, best_last) - 1) + 1 - context_begins
    start, end = (
        tf.where(is_found, tf.cast(place, tf.int32), 0)
        for place in (start, end)
    )
    return {
        "answer": tf.strings.substr(
            contexts, start, end - start, unit="UTF8_CHAR"
        ),
        "start": start,
        "end": end,
        "score": score,
        "null_score": null_score,
        "null_odds": tf.cast(null_odds, tf.float32),
    }


def _plain_spans(
    scores: Mapping[str, tf.Tensor], windows: Windows, n_best_size: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Spans of the best starts and ends among the tokens of the document.

    Returns:
        Starts, `(windows, n)`, ends, `(windows, 1, n)`, and their scores,
        `(windows, n, n)`.
    """
    # p_mask is 0 for [CLS], too.
    positions = tf.range(tf.shape(windows.p_mask)[1])
    is_document = (windows.p_mask == 0) & (positions > 0)
    n = tf.minimum(n_best_size, tf.shape(windows.p_mask)[1])
    starts, ends = (
        tf.math.top_k(tf.where(is_document, scores[name], -float("inf")), n)
        for name in ("start_logits", "end_logits")
    )
    return (
        starts.indices,
        ends.indices[:, tf.newaxis],
        starts.values[..., tf.newaxis] + ends.values[:, tf.newaxis],
    )


def _count_letters(
    documents: AlignedTexts,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Counts the characters that are not white space, in all documents.

    Returns:
        Their positions, int64, `(letters,)`; and for each token, their number
        before its begin and before its end, int64, `(all tokens,)`.
    """
    is_letter = ~documents.is_white_space.values
    counts = tf.cumsum(tf.cast(is_letter, tf.int64))
    counts = tf.concat([[0], counts], 0)
    document_begins = tf.gather(
        documents.is_white_space.row_starts(), documents.ids.value_rowids()
    )
    return (
        tf.where(is_letter)[:, 0],
        tf.gather(counts, documents.begins.values + document_begins),
        tf.gather(counts, documents.ends.values + document_begins),
    )


def _at(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """`values[places]`; for a place outside, a value that is not used."""
    padded = tf.concat([values, [0]], 0)
    end = tf.size(values, tf.int64)
    return tf.gather(padded, tf.clip_by_value(places, 0, end))


def _row_numbers(matrix: tf.Tensor) -> tf.Tensor:
    """For each element of a matrix, the number of its row, int64."""
    rows = tf.range(tf.shape(matrix, tf.int64)[0])[:, tf.newaxis]
    return tf.broadcast_to(rows, tf.shape(matrix))
