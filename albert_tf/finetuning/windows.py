"""Cuts a document into windows that fit into a sequence with the question.

    [CLS] question [SEP] window [SEP]

Windows overlap, so that a short answer that one of them cuts is complete in
another. A token that is in several windows counts only in the window where it
has most context. The context is min(tokens before, tokens after) + 0.01 *
window length; of several windows with the same context, the first one counts.
google-research/albert has the same rule.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.example_types import Question
from albert_tf.records.alignment import AlignedTokens, align
from albert_tf.records.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class DocumentWindows:
    """The windows of the document of one question.

    Attributes:
        document: The text of the document.
        query: Token ids of the question, cut to `max_query_length`.
        tokens: The tokens of the document.
        spans: First token and end of each window; at least one window.
        best_window: int64, `(document tokens,)`, the window in which a token
            has most context.
        answer: First and last token of the first answer; None if there is no
            answer, or `problem` says why it is not found.
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

    def answer_in(self, window: int) -> tuple[int, int]:
        """Positions of the answer's first and last token in the sequence.

        Returns:
            (0, 0) if the window does not contain the complete answer.
        """
        begin, end = self.spans[window]
        if self.answer is None or not (
            begin <= self.answer[0] and self.answer[1] < end
        ):
            return 0, 0
        first, last = (t - begin + self.offset for t in self.answer)
        return first, last


class WindowMaker:
    """Makes the windows of questions.

    Args:
        tokenizer: The tokenizer of the model.
        config: `doc_stride` and `max_query_length`.
        max_seq_length: Number of tokens in a sequence.

    Raises:
        UserError: If the longest question leaves no room for a document.

    Example:
        >>> class WordNumbers:  # in place of a Tokenizer
        ...     kind, do_lower_case = "self_contained", False
        ...     def encode_batch(self, texts):
        ...         return AlignedTokens(np.arange(len(texts[0].split())), 0, 0)
        ...     def encode_with_spans(self, text):
        ...         begins = [i for i, c in enumerate(text) if c != " "]
        ...         return begins, begins, [begin + 1 for begin in begins]
        >>> config = TaskConfig(doc_stride=2, max_query_length=2)
        >>> question = Question("q", "which one", "a b c d e", (), True)
        >>> made = WindowMaker(WordNumbers(), config, 8).make(question)
        >>> made.spans  # 8 - 3 - 2 = 3 tokens in each
        [(0, 3), (2, 5)]
        >>> made.best_window.tolist()
        [0, 0, 0, 1, 1]
        >>> made.text_of(1, 2)
        'b c'
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
        self._config = config
        self._room = max_seq_length - 3
        # Consecutive questions may share a document.
        self._align = functools.lru_cache(1)(
            functools.partial(align, tokenizer)
        )

    def make(self, question: Question) -> DocumentWindows:
        """Makes the windows."""
        tokens = self._align(question.document)
        query = self._tokenizer.encode_batch([question.question]).ids.tolist()
        query = query[: self._config.max_query_length]
        spans = split(
            len(tokens.ids), self._room - len(query), self._config.doc_stride
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
        num_tokens: Number of tokens of the document.
        room: Largest number of tokens of a window.
        stride: Number of tokens between the beginnings of two windows. A
            stride above `room` counts as `room`, so that no token is left out.

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


def _find_answer(
    question: Question,
    tokens: AlignedTokens,
    spans: Sequence[tuple[int, int]],
) -> tuple[tuple[int, int] | None, str]:
    """The tokens of the first answer, or why there are none."""
    if question.is_impossible or not question.answers:
        return None, ""
    text, start = question.answers[0]
    if start < 0 or question.document[start : start + len(text)] != text:
        return None, "the document does not have the answer at answer_start"
    found = tokens.find(start, start + len(text)) if text.strip() else None
    if found is None:
        return None, "the answer has no tokens"
    if not any(begin <= found[0] and found[1] < end for begin, end in spans):
        return None, "no window has all of the answer; see --doc_stride"
    return found, ""
