"""Decodes answers from the scores of all windows of their documents."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from albert_tf.config.task import NO_ANSWER_SCORE, TaskConfig
from albert_tf.finetuning.example_types import ExampleSet
from albert_tf.finetuning.windows import DocumentWindows, WindowMaker
from albert_tf.records.tokenization import Tokenizer


class Candidate(NamedTuple):
    """A possible answer.

    Attributes:
        text: `document[begin:end]`.
        begin, end: Positions of its characters in the document.
        score: Logits or log probabilities of start and end, added.
        probability: Softmax of `score` over the best candidates.
    """

    text: str
    begin: int
    end: int
    score: float
    probability: float


class QuestionAnswer(NamedTuple):
    """The prediction for a question.

    Attributes:
        id: Id of the question.
        candidates: The best answers with different texts, best first.
        null_odds: The larger, the less likely there is an answer. The
            predicted answer is "" if `null_odds` exceeds the null threshold.

    Example:
        >>> best = Candidate("the Rhine", 4, 13, score=7.5, probability=0.9)
        >>> answer = QuestionAnswer("q1", (best,), null_odds=-2.0)
        >>> answer.text(null_threshold=0.0), answer.text(null_threshold=-3.0)
        ('the Rhine', '')
    """

    id: str
    candidates: tuple[Candidate, ...]
    null_odds: float

    def text(self, null_threshold: float | None = None) -> str:
        """The best answer; "" if `null_odds` exceeds the threshold."""
        if null_threshold is not None and self.null_odds > null_threshold:
            return ""
        return self.candidates[0].text


class _Spans(NamedTuple):
    """Scored spans of one window, as tokens of the document, `(spans,)`."""

    firsts: np.ndarray
    lasts: np.ndarray
    scores: np.ndarray


def decode(
    examples: ExampleSet,
    tokenizer: Tokenizer,
    config: TaskConfig,
    max_seq_length: int,
    predictions: Mapping[str, np.ndarray],
) -> Iterator[QuestionAnswer]:
    """Yields the answer to each question, in order.

    The null score of a question is the smallest null score of its windows,
    since one window that contains an answer is enough.

    Args:
        examples: The questions.
        tokenizer: As for `make_records`.
        config: As for `make_records`, with `max_answer_length` and
            `n_best_size`.
        max_seq_length: As for `make_records`.
        predictions: For each record in any order, `example_number` and
            `window_number`, `(records,)` or `(records, 1)`, and the scores.
            Of the plain head: `start_logits`, `end_logits`,
            `(records, length)`; the null score is the sum of those of [CLS],
            and `null_odds` its excess over the best answer. Of the beam head:
            `start_positions` and `start_log_probs`, `(records, beam)`,
            `end_positions` and `end_log_probs`, `(records, beam, beam)`,
            `null_logits`, `(records,)`, which is the null score and
            `null_odds`.

    Raises:
        KeyError: If a window has no scores.
    """
    maker = WindowMaker(tokenizer, config, max_seq_length)
    keys = zip(
        np.ravel(predictions["example_number"]).tolist(),
        np.ravel(predictions["window_number"]).tolist(),
        strict=True,
    )
    records = {key: record for record, key in enumerate(keys)}
    is_plain = "start_logits" in predictions
    for number, question in enumerate(examples.examples):
        windows = maker.make(question)
        found, null_scores = [], []
        for window in range(len(windows.spans)):
            record = records[number, window]
            scores = {name: rows[record] for name, rows in predictions.items()}
            if is_plain:
                null_score = scores["start_logits"][0] + scores["end_logits"][0]
                spans = _plain_spans(windows, window, scores, config)
            else:
                null_score = scores["null_logits"]
                spans = _beam_spans(windows, window, scores)
            null_scores.append(float(null_score))
            found.append(_possible(spans, windows, window, config))
        candidates = _best(found, windows, config.n_best_size)
        best_score = candidates[0].score if is_plain else 0.0
        yield QuestionAnswer(
            question.id, candidates, min(null_scores) - best_score
        )


def _plain_spans(
    windows: DocumentWindows,
    window: int,
    scores: Mapping[str, np.ndarray],
    config: TaskConfig,
) -> _Spans:
    """Spans of the best starts and ends among the tokens of the document."""
    begin, end = windows.spans[window]
    part = slice(windows.offset, windows.offset + end - begin)
    start_logits = scores["start_logits"][part]
    end_logits = scores["end_logits"][part]
    firsts, lasts = np.meshgrid(
        np.argsort(-start_logits, kind="stable")[: config.n_best_size],
        np.argsort(-end_logits, kind="stable")[: config.n_best_size],
        indexing="ij",
    )
    sums = start_logits[firsts] + end_logits[lasts]
    return _Spans(firsts.ravel() + begin, lasts.ravel() + begin, sums.ravel())


def _beam_spans(
    windows: DocumentWindows, window: int, scores: Mapping[str, np.ndarray]
) -> _Spans:
    ends = scores["end_positions"]
    starts = scores["start_positions"][:, np.newaxis]
    sums = scores["start_log_probs"][:, np.newaxis] + scores["end_log_probs"]
    to_document = windows.spans[window][0] - windows.offset
    return _Spans(
        np.broadcast_to(starts, ends.shape).ravel() + to_document,
        ends.ravel() + to_document,
        sums.ravel(),
    )


def _possible(
    spans: _Spans, windows: DocumentWindows, window: int, config: TaskConfig
) -> _Spans:
    """Drops invalid spans, and spans whose first token counts elsewhere.

    A token counts only in its `best_window`.
    """
    begin, end = windows.spans[window]
    firsts, lasts = spans.firsts, spans.lasts
    keep = (begin <= firsts) & (firsts <= lasts) & (lasts < end)
    keep &= lasts - firsts < config.max_answer_length
    keep[keep] = windows.best_window[firsts[keep]] == window
    return _Spans(*(values[keep] for values in spans))


def _best(
    found: list[_Spans], windows: DocumentWindows, n_best_size: int
) -> tuple[Candidate, ...]:
    firsts, lasts, scores = map(np.concatenate, zip(*found, strict=True))
    best: dict[str, tuple[int, int, float]] = {}
    for i in np.argsort(-scores, kind="stable"):
        text = windows.text_of(firsts[i], lasts[i])
        if text and text not in best:
            begin = int(windows.tokens.begins[firsts[i]])
            begin = windows.document.index(text, begin)
            best[text] = (begin, begin + len(text), float(scores[i]))
            if len(best) == n_best_size:
                break
    if not best:
        best[""] = (0, 0, NO_ANSWER_SCORE)
    probabilities = softmax([score for _, _, score in best.values()])
    return tuple(
        Candidate(text, *place_and_score, float(probability))
        for (text, place_and_score), probability in zip(
            best.items(), probabilities, strict=True
        )
    )
