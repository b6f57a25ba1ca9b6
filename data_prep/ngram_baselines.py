r"""Predict masked tokens without a neural network, for comparison.

    python -m data_prep.ngram_baselines \
      --input_file='build/records/train/*.tfrecord' \
      --eval_input_file='build/records/eval/*.tfrecord'

Counts the tokens of 200,000 training records, predicts the masked tokens of
1,000 held-out records, and prints JSON: the mean losses in nats, and held-out
sentences with one word masked, e.g. for `albert_tf.predict`. A trained model
has the same task with `--mode=eval`.

- unigram: the frequency of each piece.
- five_gram: interpolated Kneser-Ney from the 4 tokens before and from the 4
  tokens after, multiplied, and divided by the unigram frequency: the
  probability if the two sides are independent given the token. A context that
  was not counted is shortened; next to [MASK], the shorter one has the counts
  of the text. Where the input is not [MASK], the piece that it has gets a
  higher probability, by the masking rule.

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
from typing import NamedTuple, TypeAlias

import numpy as np

from albert_tf.config import Config, flags, setting
from albert_tf.errors import UserError
from albert_tf.io.files import find_all
from albert_tf.records.features import (
    MASK_ID,
    PAD_ID,
    SPECIAL_PIECES,
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
_NUM_SENTENCES, _SENTENCE_PIECES = 8, range(6, 31)
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


Contexts: TypeAlias = Sequence[np.ndarray]


class NgramModel:
    """Interpolated Kneser-Ney, from the tokens on one side.

    Args:
        tokens: int64, `(positions,)`, the tokens to count.
        contexts: By length, int64, `(positions,)`; see `number_contexts`.

    Example:
        >>> rows = np.array([[5, 6, 5, 6, 5, 7]])
        >>> before = [ids[0] for ids in number_contexts(rows, -1, 8)]
        >>> model = NgramModel(rows[0], before, vocab_size=8)
        >>> (after_5,) = model.probabilities([ids[1:2] for ids in before])
        >>> int(after_5.argmax()), round(float(after_5.sum()), 6)
        (6, 1.0)
    """

    def __init__(
        self, tokens: np.ndarray, contexts: Contexts, vocab_size: int
    ) -> None:
        self._vocab_size = vocab_size
        # By length of the context, different n-grams in order: context, as one
        # number, token, count, and count below a longer n-gram.
        self._grams: list[list[np.ndarray]] = []
        gram_of = np.empty(len(tokens), np.int64)
        for context in contexts:
            order = np.lexsort((tokens, context))
            changes = np.diff(context[order]) | np.diff(tokens[order])
            is_new = np.append(True, changes != 0)
            first = order[is_new]
            if self._grams:
                # Kneser-Ney: below a longer n-gram, a shorter one counts once
                # for each different token in front of it.
                self._grams[-1][-1] = np.bincount(gram_of[first])
            gram_of[order] = np.cumsum(is_new) - 1
            counts = np.bincount(gram_of)
            self._grams.append([context[first], tokens[first], counts, counts])

    def probabilities(self, contexts: Contexts) -> np.ndarray:
        """Distributions of the next token.

        Args:
            contexts: By length, int64, `(batch,)`.

        Returns:
            float64, `(batch, vocab_size)`; each row sums to 1.
        """
        size = self._vocab_size
        result = np.full((len(contexts[0]), size), 1 / size)
        for length, (context, grams) in enumerate(
            zip(contexts, self._grams, strict=True)
        ):
            known, tokens, counts, continuations = grams
            begins = np.searchsorted(known, context, "left")
            ends = np.searchsorted(known, context, "right")
            is_cut = np.zeros(len(context), bool)
            if length + 1 < len(contexts):
                # [MASK] is next, and could be any token. So the context is not
                # a new one, for which the other counts are.
                is_cut = contexts[length + 1] - context * size == MASK_ID
            for used, rows in (counts, is_cut), (continuations, ~is_cut):
                discount = _discount(used)
                for i in np.flatnonzero(rows & (begins < ends)):
                    part = slice(begins[i], ends[i])
                    here = used[part]
                    result[i] *= discount * len(here) / here.sum()
                    result[i, tokens[part]] += (here - discount) / here.sum()
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
    batches = (rows for path in paths for rows in read_rows(path, shape, []))
    parts, num_rows = [], 0
    for rows in batches:
        parts.append((rows["input_ids"], *restore_tokens(rows)))
        num_rows += len(rows["input_ids"])
        if num_rows >= max_rows:
            break
    joined = map(np.concatenate, zip(*parts, strict=True))
    return CountedRows(*(values[:max_rows] for values in joined))


def number_contexts(
    ids: np.ndarray, step: int, vocab_size: int
) -> list[np.ndarray]:
    """Numbers of the contexts of 0 to 4 tokens on one side of each token.

    With more than 55,000 pieces, the numbers wrap around, as a hash.

    Args:
        ids: int64, `(rows, length)`; contexts have `<pad>` beyond the ends.
        step: -1 for the tokens before, 1 for those after.

    Returns:
        By length of the context, int64, `(rows, length)`.
    """
    number = np.zeros(ids.shape, np.int64)
    numbers = [number]
    sides = ((0, 0), (ORDER, ORDER))
    padded = np.pad(ids, sides, constant_values=PAD_ID)
    for distance in range(1, ORDER):
        neighbours = np.roll(padded, -step * distance, axis=1)
        number = number * vocab_size + neighbours[:, ORDER:-ORDER]
        numbers.append(number)
    return numbers


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
        contexts = number_contexts(train.restored, step, vocab_size)
        shown = number_contexts(held_out.input_ids, step, vocab_size)
        counts = [numbers[counted] for numbers in contexts]
        model = NgramModel(tokens, counts, vocab_size)
        sides.append((model, [numbers[at] for numbers in shown]))
    loss = correct = 0.0
    for begin in range(0, len(labels), _TOKENS):
        part = slice(begin, begin + _TOKENS)
        left, right = (
            model.probabilities([numbers[part] for numbers in shown])
            for model, shown in sides
        )
        both = np.zeros_like(left)
        np.divide(left * right, unigram, out=both, where=unigram > 0)
        # Of the masked tokens, 10 % show themselves; 10 % show any of the
        # pieces with equal probability.
        rows = np.flatnonzero(seen[part] != MASK_ID)
        both[rows, seen[part][rows]] *= 1 + vocab_size - _FIRST
        both /= both.sum(axis=1, keepdims=True)
        loss -= np.log(both[np.arange(len(both)), labels[part]]).sum()
        correct += (both.argmax(axis=1) == labels[part]).sum()
    return {
        "unigram_loss": float(-np.log(unigram[labels]).mean()),
        "five_gram_loss": float(loss / len(labels)),
        "five_gram_accuracy": float(correct / len(labels)),
    }


def mask_sentences(
    rows: np.ndarray, tokenizer: Tokenizer
) -> list[dict[str, str]]:
    """Chooses sentences of held-out text, one a row, and masks a word of each.

    Args:
        rows: int64, `(rows, length)`, without masks.

    Returns:
        `text`, with `[MASK]`, and the masked `word`, which is one piece.
    """
    masked, numbers = [], random.Random(0)
    for row in rows:
        pieces = [tokenizer.id_to_piece(int(i)) for i in row]
        ends = [n for n, piece in enumerate(pieces) if piece[-1] in _ENDS]
        # Whole sentences: the first and the last of a segment may be cut, and
        # an unknown word has no text.
        for begin, end in itertools.pairwise(ends):
            sentence = pieces[begin + 1 : end + 1]
            if not set(SPECIAL_PIECES).isdisjoint(sentence):
                continue
            words = _find_words(sentence)
            if len(sentence) in _SENTENCE_PIECES and words:
                at = numbers.choice(words)
                word = sentence[at].lstrip(WORD_MARK)
                sentence[at] = sentence[at].replace(word, "[MASK]")
                text = "".join(sentence).replace(WORD_MARK, " ").strip()
                masked.append({"text": text, "word": word})
                break
        if len(masked) == _NUM_SENTENCES:
            break
    return masked


def _find_words(sentence: Sequence[str]) -> list[int]:
    """Indices of pieces that are words; in scripts with spaces, whole ones."""
    has_spaces = WORD_MARK in "".join(sentence)
    words = []
    for n, (piece, following) in enumerate(itertools.pairwise(sentence)):
        is_word = piece[0] == WORD_MARK and following[0] == WORD_MARK
        if piece.lstrip(WORD_MARK).isalpha() and (is_word or not has_spaces):
            words.append(n)
    return words


def main(config: BaselinesConfig) -> None:
    """Counts, predicts and prints."""
    config.require("input_file", "eval_input_file")
    use_cpu()
    train = find_all("input_file", config.input_file, "*.tfrecord")
    held_out = find_all("eval_input_file", config.eval_input_file, "*.tfrecord")
    directory = posixpath.dirname(held_out[0])
    metadata = read_metadata(directory)
    if metadata.masking != "static":
        raise UserError(
            "eval_input_file must have masks",
            received=f"{directory}, built with masking=dynamic",
        )
    rows = collect_rows(held_out, _MAX_EVAL_ROWS)
    counted = collect_rows(train, _MAX_TRAIN_ROWS)
    tokenizer = Tokenizer(posixpath.join(directory, TOKENIZER_FILE))
    result = {
        **evaluate(counted, rows, metadata.vocab_size),
        "sentences": mask_sentences(rows.restored, tokenizer),
    }
    print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    flags.run(main, BaselinesConfig)
