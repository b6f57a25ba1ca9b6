"""Questions about documents: tokens, windows, and the answers in their scores.

A document that is too long for a sequence is cut into windows:

    [CLS] question [SEP] window [SEP]

Windows overlap, so that a short answer that one of them cuts is complete in
another. A token that is in several windows counts only in the window where it
has most context. The context is min(tokens before, tokens after) + 0.01 *
window length; of several windows with the same context, the first one counts.
google-research/albert has the same rule.
"""

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.records.tokenization import (
    GOOGLE_ALBERT,
    Tokenizer,
    make_inputs,
)

_WORD = re.compile(r"\S+")

# Score of the answer "" to a question without a single possible answer.
_NO_ANSWER_SCORE = -1e6


class Answer(NamedTuple):
    """An answer, `document[start : start + len(text)]`."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a document that may contain its answer.

    Attributes:
        answers: Right answers; the first one is trained on.
        is_impossible: Whether the document does not answer the question;
            `answers` is () then, except in a contradictory file.
    """

    id: str
    question: str
    document: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False


# --- tokens and their characters ---------------------------------------------


class AlignedTokens(NamedTuple):
    """The tokens of a text and their characters.

    Attributes:
        ids: int32, `(tokens,)`, as `Tokenizer.encode_batch` returns them.
        begins, ends: int64, `(tokens,)`. Token i stands for the characters
            `text[begins[i]:ends[i]]`, without white space and invisible
            characters (U+200B, byte order marks, ...) at its ends. A bare word
            mark stands for none: its two values are equal.
    """

    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    def find(self, begin: int, end: int) -> tuple[int, int] | None:
        """First and last token of the characters `text[begin:end]`.

        None if they have no token, as white space or combining marks.
        """
        first = int(np.searchsorted(self.ends, begin, side="right"))
        last = int(np.searchsorted(self.begins, end, side="left")) - 1
        return (first, last) if first <= last else None


def align(tokenizer: Tokenizer, text: str) -> AlignedTokens:
    """Tokenizes a raw text, and finds the characters of each token.

    Each character of the normalised text comes from one place of the text, from
    "ﬁnal  Café" for example:

        tokens      ▁final    ▁cafe
        characters  "ﬁnal"    "Café"
    """
    if tokenizer.kind == GOOGLE_ALBERT:
        normalized = tokenizer.normalize(text)
        origins = _find_origins(tokenizer, text)
    else:
        normalized = text
        origins = [(i, i + 1) for i in range(len(text))]
    origins.append((len(text), len(text)))
    tokens = []
    for token, begin, end in tokenizer.encode_with_spans(normalized):
        while begin < end and _is_invisible(normalized[begin]):
            begin += 1
        while begin < end and _is_invisible(normalized[end - 1]):
            end -= 1
        # A token without characters stands before the next character.
        first = last = origins[begin][0]
        if begin < end:
            last = origins[end - 1][1]
        tokens.append((token, first, last))
    ids, begins, ends = np.array(tokens, np.int64).reshape(-1, 3).T.copy()
    return AlignedTokens(ids.astype(np.int32), begins, ends)


def _is_invisible(character: str) -> bool:
    """Whether a character shows nothing: white space, format, control."""
    return not " " < character < "\x7f" and (
        character.isspace() or unicodedata.category(character) in ("Cf", "Cc")
    )


def _find_origins(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Begin and end in a text of what each normalised character comes from."""
    origins: list[tuple[int, int]] = []
    for number, word in enumerate(_WORD.finditer(text)):
        begin, end = word.span()
        if number:  # a space
            origins.append((origins[-1][1] if origins else 0, begin))
        if word.group().isascii():
            origins += [(i, i + 1) for i in range(begin, end)]
            continue
        for cluster in _split_clusters(word.group()):
            end = begin + len(cluster)
            origins += [(begin, end)] * len(tokenizer.normalize(cluster))
            begin = end
    return origins


def _split_clusters(word: str) -> Iterator[str]:
    """Yields each character with the marks and letters that it joins."""
    cluster = word[0]
    for character in word[1:]:
        if _is_mark(character) or _compose(cluster, character):
            cluster += character
        else:
            yield cluster
            cluster = character
    yield cluster


@functools.lru_cache(1 << 12)
def _is_mark(character: str) -> bool:
    first = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.combining(first) > 0


@functools.lru_cache(1 << 12)
def _compose(cluster: str, character: str) -> bool:
    """Whether a character changes what precedes it, or is changed by it."""
    nfkc = functools.partial(unicodedata.normalize, "NFKC")
    return nfkc(cluster + character) != nfkc(cluster) + nfkc(character)


# --- windows -----------------------------------------------------------------


def make_p_mask(segment_ids: np.ndarray) -> np.ndarray:
    """1 for a token that no answer contains, int32, `(batch, length)`.

    0 for the document, which is the second segment without its `[SEP]`, and, as
    in google-research/albert, for `[CLS]`.
    """
    p_mask = np.ones_like(segment_ids)
    p_mask[:, :-1] -= segment_ids[:, :-1] * segment_ids[:, 1:]
    p_mask[:, 0] = 0
    return p_mask


@dataclasses.dataclass(frozen=True)
class DocumentWindows:
    """The windows of the document of one question.

    Attributes:
        query: Token ids of the question, cut to `max_query_length`.
        tokens: The tokens of the document.
        spans: First token and end of each window; at least one window.
        best_window: int64, `(document tokens,)`, the window in which a token
            has most context.
        answer: First and last token of the first answer; None without answer.
        problem: Why the answer is not found; "" otherwise.
    """

    document: str
    query: list[int]
    tokens: AlignedTokens
    spans: Sequence[tuple[int, int]]
    best_window: np.ndarray
    answer: tuple[int, int] | None
    problem: str

    @property
    def offset(self) -> int:
        """Position of a window's first document token in its sequence."""
        return len(self.query) + 2

    def text_of(self, first: int, last: int) -> str:
        """The text of the document from token `first` through `last`."""
        begin, end = self.tokens.begins[first], self.tokens.ends[last]
        return self.document[begin:end].strip()

    def inputs(self, window: int, length: int) -> dict[str, np.ndarray]:
        """The sequence of a window as inputs of a model, int32, `(length,)`."""
        begin, end = self.spans[window]
        tokens = self.tokens.ids[begin:end].tolist()
        inputs = make_inputs([self.query], [tokens], length)._asdict()
        inputs["p_mask"] = make_p_mask(inputs["segment_ids"])
        return {name: rows[0] for name, rows in inputs.items()}

    def answer_in(self, window: int) -> tuple[int, int]:
        """Positions of the answer's first and last token in the sequence.

        (0, 0) if the window does not contain the complete answer.
        """
        begin, end = self.spans[window]
        first, last = self.answer or (-1, -1)
        if begin <= first and last < end:
            return first - begin + self.offset, last - begin + self.offset
        return 0, 0


class WindowMaker:
    """Makes the windows of questions.

    Args:
        config: `doc_stride` and `max_query_length`.
        max_seq_length: Number of tokens in a sequence.

    Raises:
        UserError: If the longest question leaves no room for a document.
    """

    def __init__(
        self, tokenizer: Tokenizer, config: TaskConfig, max_seq_length: int
    ) -> None:
        if config.max_query_length + 3 >= max_seq_length:
            raise UserError(
                "max_query_length must be below max_seq_length - 3",
                received=f"{config.max_query_length} and {max_seq_length}",
                remedy="Raise --max_seq_length, or lower --max_query_length: a "
                "question must leave room for its document.",
            )
        self._tokenizer = tokenizer
        self.config = config
        self._room = max_seq_length - 3
        # Consecutive questions may share a document.
        self._align = functools.lru_cache(1)(
            functools.partial(align, tokenizer)
        )

    def make(self, question: Question) -> DocumentWindows:
        tokens = self._align(question.document)
        query = self._tokenizer.encode_batch([question.question]).ids.tolist()
        query = query[: self.config.max_query_length]
        spans = split(
            len(tokens.ids), self._room - len(query), self.config.doc_stride
        )
        answer, problem = _find_answer(question, tokens, spans)
        return DocumentWindows(
            question.document,
            query,
            tokens,
            spans,
            _best_window(spans, len(tokens.ids)),
            answer,
            problem,
        )


def split(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """First token and end of each window of a document.

    Args:
        room: Largest number of tokens of a window.
        stride: Number of tokens between the beginnings of two windows, at most
            `room`, so that no token is left out.

    Example:
        >>> split(7, room=4, stride=2)
        [(0, 4), (2, 6), (4, 7)]
        >>> split(0, room=4, stride=2)
        [(0, 0)]
    """
    spans = [(0, min(room, num_tokens))]
    while spans[-1][1] < num_tokens:
        begin = spans[-1][0] + min(stride, room)
        spans.append((begin, min(begin + room, num_tokens)))
    return spans


def _best_window(spans: Sequence[tuple[int, int]], length: int) -> np.ndarray:
    best = np.zeros(length, np.int64)
    best_context = np.full(length, -1.0)
    for window, (begin, end) in enumerate(spans):
        before = np.arange(end - begin)
        context = np.minimum(before, before[::-1]) + 0.01 * (end - begin)
        is_better = context > best_context[begin:end]
        best[begin:end][is_better] = window
        best_context[begin:end][is_better] = context[is_better]
    return best


def find_fault(question: Question) -> str:
    """Why the document does not have the first answer; "" if it has it.

    Also "" for an impossible question, and one without answers.
    """
    if question.is_impossible or not question.answers:
        return ""
    text, start = question.answers[0]
    found = question.document[max(start, 0) : start + len(text)]
    if not text.strip():
        return "the answer is empty"
    if start < 0 or found != text:
        return (
            f"the document has {found[:40]!r} at answer_start {start}, not the "
            f"answer {text[:40]!r}"
        )
    return ""


def _find_answer(
    question: Question,
    tokens: AlignedTokens,
    spans: Sequence[tuple[int, int]],
) -> tuple[tuple[int, int] | None, str]:
    """The tokens of the first answer, or why there are none."""
    if question.is_impossible or not question.answers:
        return None, ""
    if find_fault(question):  # the reader of the file names it
        return None, ""
    text, start = question.answers[0]
    found = tokens.find(start, start + len(text))
    if found is None:
        return None, "the answer has no tokens"
    if not any(begin <= found[0] and found[1] < end for begin, end in spans):
        return None, "no window has all of the answer; see --doc_stride"
    return found, ""


# --- answers -----------------------------------------------------------------


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
        candidates: The best answers with different texts, best first.
        null_score: The smallest null score of the windows, since one window
            that contains an answer is enough.
        null_odds: The larger, the less likely there is an answer.
    """

    id: str
    candidates: tuple[Candidate, ...]
    null_score: float
    null_odds: float

    def text(self, null_threshold: float | None = None) -> str:
        """The best answer; "" if `null_odds` exceeds the threshold."""
        if null_threshold is not None and self.null_odds > null_threshold:
            return ""
        return self.candidates[0].text


# First token, last token and score of spans; three arrays, `(spans,)`.
_Spans: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]


def find_answers(
    questions: Iterable[Question],
    maker: WindowMaker,
    scores: Mapping[str, np.ndarray],
) -> Iterator[QuestionAnswer]:
    """Yields the answer to each question, in order.

    Args:
        maker: Makes the windows that were scored.
        scores: Outputs of the head for all windows, in order. Plain head:
            `start_logits`, `end_logits`, `(windows, length)`; the null score
            is the sum of those of [CLS], and `null_odds` its excess over the
            best answer. Beam head: `start_positions` and `start_log_probs`,
            `(windows, beam)`, `end_positions` and `end_log_probs`, `(windows,
            beam, beam)`, `null_logits`, `(windows,)`, which is the null score
            and `null_odds`.
    """
    is_beam = "null_logits" in scores
    config, rows = maker.config, itertools.count()
    for question in questions:
        windows = maker.make(question)
        found, null_scores = [], []
        for window, (begin, end) in enumerate(windows.spans):
            row = next(rows)
            of_window = {name: values[row] for name, values in scores.items()}
            if is_beam:
                null_score = of_window["null_logits"]
                firsts, lasts, sums = _beam_spans(of_window)
            else:
                starts = of_window["start_logits"]
                ends = of_window["end_logits"]
                null_score = starts[0] + ends[0]
                part = slice(windows.offset, windows.offset + end - begin)
                firsts, lasts, sums = _plain_spans(
                    starts[part], ends[part], config.n_best_size
                )
                firsts, lasts = firsts + part.start, lasts + part.start
            null_scores.append(float(null_score))
            firsts += begin - windows.offset
            lasts += begin - windows.offset
            keep = (begin <= firsts) & (firsts <= lasts) & (lasts < end)
            keep &= lasts - firsts < config.max_answer_length
            # A first token counts only where it has most context.
            keep[keep] = windows.best_window[firsts[keep]] == window
            found.append((firsts[keep], lasts[keep], sums[keep]))
        candidates = _best(found, windows, config.n_best_size)
        null_score = min(null_scores)
        best_score = 0.0 if is_beam else candidates[0].score
        yield QuestionAnswer(
            question.id, candidates, null_score, null_score - best_score
        )


def _plain_spans(
    start_logits: np.ndarray, end_logits: np.ndarray, n_best_size: int
) -> _Spans:
    """Spans of the best starts and ends."""
    firsts, lasts = np.meshgrid(
        np.argsort(-start_logits, kind="stable")[:n_best_size],
        np.argsort(-end_logits, kind="stable")[:n_best_size],
        indexing="ij",
    )
    sums = start_logits[firsts] + end_logits[lasts]
    return firsts.ravel(), lasts.ravel(), sums.ravel()


def _beam_spans(scores: Mapping[str, np.ndarray]) -> _Spans:
    ends = scores["end_positions"]
    starts = scores["start_positions"][:, np.newaxis]
    sums = scores["start_log_probs"][:, np.newaxis] + scores["end_log_probs"]
    firsts = np.broadcast_to(starts, ends.shape)
    return firsts.flatten(), ends.flatten(), sums.ravel()


def _best(
    found: Sequence[_Spans], windows: DocumentWindows, n_best_size: int
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
        best[""] = (0, 0, _NO_ANSWER_SCORE)
    from scipy.special import softmax  # late: its import takes 0.2 s

    probabilities = softmax([score for _, _, score in best.values()]).tolist()
    return tuple(
        Candidate(text, *values, probability)
        for (text, values), probability in zip(
            best.items(), probabilities, strict=True
        )
    )
