r"""Predict masked tokens without a neural network, for comparison.

    python -m data_prep.ngram_baselines \
      --input_file='build/records/train/*.tfrecord' \
      --eval_input_file='build/records/eval/*.tfrecord' --num_sentences=5

Counts the tokens of 200,000 training records, predicts the masked tokens of
1,000 held-out records, and prints JSON: the entropy of the pieces, the mean
losses in nats, and held-out sentences with one word masked, e.g. for
`albert_tf.predict`. A trained model has the same task with `--mode=eval`.

- unigram: the frequency of each piece.
- five_gram: interpolated Kneser-Ney from the 4 tokens before and from the 4
  tokens after, multiplied, and divided by the unigram frequency. This is the
  probability if the two sides are independent given the token. A context that
  is not in the training records, e.g. with [MASK], is shortened.

The 5-grams also use the masking rule: the input has [MASK] for 80 % of the
masked tokens, the token itself for 10 %, and a random piece for 10 %. So where
the input has a piece other than [MASK], this piece gets a higher probability.

Reference:
    [Chen and Goodman, 1998](https://dash.harvard.edu/handle/1/25104739),
    section 3.
"""

import dataclasses
import itertools
import json
import posixpath
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.config import Config, flags, setting
from albert_tf.errors import UserError
from albert_tf.io.files import find_all
from albert_tf.records.features import (
    MASK_ID,
    PAD_ID,
    TOKENIZER_FILE,
    read_metadata,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID as _FIRST
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.inspection import read_rows, read_shape, restore_tokens, use_cpu

# Length of the longest n-gram, the predicted token included.
ORDER = 5
_TOKENS = 512  # in a batch
_MAX_TRAIN_ROWS, _MAX_EVAL_ROWS = 200_000, 1000
_SENTENCE_PIECES = range(6, 31)
_ENDS = ".!?\u3002\uff01\uff1f\u0964\u06d4"  # also of Chinese, Hindi, Urdu


@dataclasses.dataclass(frozen=True)
class BaselinesConfig(Config):
    """Records to count and to predict."""

    input_file: tuple[str, ...] = setting(
        (),
        "Training records to count: comma-separated files or globs, local or "
        "gs://, e.g. build/records/train/*.tfrecord.",
    )
    eval_input_file: tuple[str, ...] = setting(
        (),
        "Held-out records with masks, e.g. build/records/eval/*.tfrecord.",
    )
    num_sentences: int = setting(
        0, "Number of held-out sentences to print, a word masked.", at_least=0
    )


class NgramModel:
    """Interpolated Kneser-Ney, from the tokens on one side.

    Args:
        tokens: int, `(positions,)`, the tokens to count.
        contexts: int, `(positions, order - 1)`, the neighbours of each token
            on one side, the nearest first.

    Example:
        >>> tokens = np.array([5, 6, 5, 6, 5, 7])
        >>> before = np.array([[0], [5], [6], [5], [6], [5]])
        >>> model = NgramModel(tokens, before, vocab_size=8)
        >>> after_5 = model.probabilities(np.array([[5]]))[0]
        >>> int(after_5.argmax()), round(float(after_5.sum()), 6)
        (6, 1.0)
    """

    def __init__(
        self, tokens: np.ndarray, contexts: np.ndarray, vocab_size: int
    ) -> None:
        self._vocab_size = vocab_size
        # By length of the context: n-grams as context * vocab_size + token,
        # sorted, with their counts; and longer contexts as
        # context * vocab_size + next neighbour, sorted. The number of a context
        # is its index in `_longer`.
        self._grams: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._longer: list[np.ndarray] = []
        context = np.zeros(len(tokens), np.int64)
        shorter_gram = np.empty(0, np.int64)
        for length in range(contexts.shape[1] + 1):
            grams, first, gram, counts = np.unique(
                context * vocab_size + tokens,
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            if length:
                # Kneser-Ney: a shorter n-gram counts once for each different
                # token in front of it.
                self._counts[-1] = np.bincount(
                    shorter_gram[first], minlength=len(self._grams[-1])
                )
            self._grams.append(grams)
            self._counts.append(counts)
            shorter_gram = gram
            if length < contexts.shape[1]:
                longer, context = np.unique(
                    context * vocab_size + contexts[:, length],
                    return_inverse=True,
                )
                self._longer.append(longer)
        self._discounts = [_discount(counts) for counts in self._counts]

    def probabilities(self, contexts: np.ndarray) -> np.ndarray:
        """Distributions of the next token.

        Args:
            contexts: int, `(batch, order - 1)`, the nearest neighbour first.

        Returns:
            float64, `(batch, vocab_size)`; each row sums to 1.
        """
        size = self._vocab_size
        result = np.full((len(contexts), size), 1 / size)
        rows = np.arange(len(contexts))
        context = np.zeros(len(contexts), np.int64)
        for length, (grams, counts, discount) in enumerate(
            zip(self._grams, self._counts, self._discounts, strict=True)
        ):
            begins = np.searchsorted(grams, context * size)
            ends = np.searchsorted(grams, (context + 1) * size)
            for row, begin, end in zip(rows, begins, ends, strict=True):
                here = counts[begin:end]
                total = here.sum()
                result[row] *= discount * len(here) / total
                result[row, grams[begin:end] % size] += (
                    here - discount
                ) / total
            if length == len(self._longer):
                break
            longer = self._longer[length]
            wanted = context * size + contexts[rows, length]
            found = np.searchsorted(longer, wanted)
            found[found == len(longer)] = 0
            known = longer[found] == wanted
            rows, context = rows[known], found[known]
        return result


def _discount(counts: np.ndarray) -> float:
    """Absolute discount by the numbers of n-grams that occur once and twice."""
    once, twice = (counts == 1).sum(), (counts == 2).sum()
    return float(once / (once + 2 * twice)) if once and twice else 0.5


class CountedRows(NamedTuple):
    """Rows with and without masks, `(rows, length)`; see `restore_tokens`."""

    input_ids: np.ndarray
    restored: np.ndarray
    is_masked: np.ndarray


def collect_rows(paths: Sequence[str], max_rows: int) -> CountedRows:
    """Reads the first intact rows of shards."""
    shape = read_shape(paths[0])
    parts = []
    missing = max_rows
    for path in paths:
        for rows in read_rows(path, shape, []):
            parts.append((rows["input_ids"], *restore_tokens(rows)))
            missing -= len(rows["input_ids"])
            if missing <= 0:
                break
        if missing <= 0:
            break
    ids, restored, is_masked = map(np.concatenate, zip(*parts, strict=True))
    return CountedRows(
        ids[:max_rows], restored[:max_rows], is_masked[:max_rows]
    )


def neighbours(ids: np.ndarray, number: int, step: int) -> np.ndarray:
    """The tokens on one side of each token, the nearest first.

    Args:
        ids: int64, `(rows, length)`.
        number: Number of neighbours.
        step: -1 for the tokens before, 1 for those after.

    Returns:
        int64, `(rows, length, number)`; `<pad>` beyond the ends.

    Example:
        >>> neighbours(np.array([[7, 8, 9]]), 2, -1).tolist()
        [[[0, 0], [7, 0], [8, 7]]]
    """
    length = ids.shape[1]
    padded = np.pad(ids, ((0, 0), (number, number)), constant_values=PAD_ID)
    begins = [number + step * (k + 1) for k in range(number)]
    return np.stack([padded[:, b : b + length] for b in begins], axis=-1)


def evaluate(
    train: CountedRows, held_out: CountedRows, vocab_size: int
) -> dict[str, float]:
    """Counts `train`, and predicts the masked tokens of `held_out`.

    Returns:
        `unigram_loss` and `five_gram_loss`, means in nats, and
        `five_gram_accuracy`, the fraction of right first guesses.
    """
    counted = train.restored >= _FIRST
    tokens = train.restored[counted]
    # One more for each piece, so that no probability is 0.
    unigram = 1.0 + np.bincount(tokens, minlength=vocab_size)
    unigram[:_FIRST] = 0
    unigram /= unigram.sum()
    at = np.nonzero(held_out.is_masked)
    labels, seen = held_out.restored[at], held_out.input_ids[at]
    sides = []
    for step in (-1, 1):
        contexts = neighbours(train.restored, ORDER - 1, step)[counted]
        shown = neighbours(held_out.input_ids, ORDER - 1, step)[at]
        sides.append((NgramModel(tokens, contexts, vocab_size), shown))
    loss = correct = 0.0
    for begin in range(0, len(labels), _TOKENS):
        part = slice(begin, begin + _TOKENS)
        left, right = (
            model.probabilities(shown[part]) for model, shown in sides
        )
        both = np.zeros_like(left)
        np.divide(left * right, unigram, out=both, where=unigram > 0)
        # Of the masked tokens, 10 % show themselves; 10 % show any of the
        # pieces with equal probability.
        rows = np.flatnonzero(seen[part] != MASK_ID)
        both[rows, seen[part][rows]] *= 1 + vocab_size - _FIRST
        both /= both.sum(axis=1, keepdims=True)
        of_labels = both[np.arange(len(both)), labels[part]]
        loss -= np.log(of_labels).sum()
        correct += (both.argmax(axis=1) == labels[part]).sum()
    return {
        "unigram_loss": float(-np.log(unigram[labels]).mean()),
        "five_gram_loss": float(loss / len(labels)),
        "five_gram_accuracy": float(correct / len(labels)),
    }


def mask_sentences(
    rows: np.ndarray, tokenizer: Tokenizer, number: int
) -> list[dict[str, str]]:
    """Chooses sentences of held-out text, and masks a word of one piece.

    Args:
        rows: int64, `(rows, length)`, without masks.

    Returns:
        `text`, with `[MASK]`, and the masked `word`.
    """
    chosen, numbers = [], random.Random(0)
    for row in rows:
        pieces = [tokenizer.id_to_piece(int(i)) for i in row if i >= _FIRST]
        ends = [n for n, piece in enumerate(pieces) if piece[-1] in _ENDS]
        # Whole sentences: the first and the last of a row may be cut.
        for begin, end in itertools.pairwise(ends):
            sentence = pieces[begin + 1 : end + 1]
            words = [
                n
                for n, piece in enumerate(sentence[:-1])
                if piece.lstrip(WORD_MARK).isalpha()
                # In scripts with spaces, whole words.
                and (
                    WORD_MARK not in "".join(sentence)
                    or piece[0] == WORD_MARK == sentence[n + 1][0]
                )
            ]
            if len(sentence) not in _SENTENCE_PIECES or not words:
                continue
            at = numbers.choice(words)
            word = sentence[at].lstrip(WORD_MARK)
            sentence[at] = sentence[at].replace(word, "[MASK]")
            text = "".join(sentence).replace(WORD_MARK, " ").strip()
            chosen.append({"text": text, "word": word})
            break
        if len(chosen) == number:
            break
    return chosen


def main(config: BaselinesConfig) -> None:
    """Counts, predicts and prints."""
    config.require("input_file", "eval_input_file")
    use_cpu()
    sets = []
    for name, limit in (
        ("input_file", _MAX_TRAIN_ROWS),
        ("eval_input_file", _MAX_EVAL_ROWS),
    ):
        paths = find_all(name, getattr(config, name), "*.tfrecord")
        directory = posixpath.dirname(paths[0])
        metadata = read_metadata(directory)
        sets.append((metadata, collect_rows(paths, limit), directory))
    (metadata, train, _), (of_held_out, held_out, directory) = sets
    if of_held_out.masking != "static":
        raise UserError(
            "eval_input_file must have masks",
            received=f"{directory}, built with masking=dynamic",
        )
    result: dict[str, object] = {
        "unigram_entropy": metadata.unigram_entropy_nats,
        **evaluate(train, held_out, metadata.vocab_size),
        "masked_tokens": int(held_out.is_masked.sum()),
    }
    if config.num_sentences:
        tokenizer = Tokenizer(posixpath.join(directory, TOKENIZER_FILE))
        result["sentences"] = mask_sentences(
            held_out.restored, tokenizer, config.num_sentences
        )
    print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    flags.run(main, BaselinesConfig)
