r"""Predict masked tokens without a neural network, for comparison.

    python -m benchmarks.masked_lm_baselines \
      --input_file='build/records/train/*.tfrecord' \
      --eval_input_file='build/records/eval/*.tfrecord'

Counts the tokens of the training records, predicts the masked tokens of the
held-out records, and prints a Markdown table of losses, in nats, and top-1
accuracies. A trained model has the same task with `--mode=eval`.

- unigram: the frequency of each piece.
- 5-gram, left: interpolated Kneser-Ney from the 4 tokens before. A context
  that is not in the training records, e.g. with [MASK], is shortened.
- 5-gram, right: the same from the 4 tokens after.
- 5-gram, both sides: the product of the two, divided by the unigram frequency.
  This is the probability if the two sides are independent given the token.

The 5-gram baselines also use the masking rule: the input has [MASK] for 80 % of
the masked tokens, the token itself for 10 %, and a random piece for 10 %. So
where the input has a piece other than [MASK], this piece gets a higher
probability.

Reference:
    [Chen and Goodman, 1998](https://dash.harvard.edu/handle/1/25104739),
    section 3.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.config import Config, flags, setting
from albert_tf.io.files import find
from albert_tf.records.features import MASK_ID, PAD_ID, SPECIAL_PIECES

_BATCH_SIZE = 512
_FIRST_ORDINARY_ID = len(SPECIAL_PIECES)


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """Records to count and to predict."""

    input_file: tuple[str, ...] = setting(
        (),
        "Training records to count, with or without masks: comma-separated "
        "files or globs, e.g. build/records/train/*.tfrecord.",
    )
    eval_input_file: tuple[str, ...] = setting(
        (),
        "Held-out records with masks, one table row per entry: "
        "comma-separated files or globs, e.g. "
        "build/records/eval/*.tfrecord.",
    )
    vocab_size: int = setting(
        8000, "Number of pieces in the vocabulary.", at_least=8
    )
    order: int = setting(
        5,
        "Length of the longest n-gram, the predicted token included.",
        at_least=1,
    )
    max_eval_examples: int = setting(
        0, "Largest number of examples per entry; 0 takes all.", at_least=0
    )


class Records(NamedTuple):
    """Examples of one set of records.

    Attributes:
        input_ids: int32, `(examples, length)`; masked if the records are.
        original_ids: The same without masks.
        rows, columns: int64, `(masked tokens,)`; positions of masked tokens.
    """

    input_ids: np.ndarray
    original_ids: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


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


def read_records(patterns: Sequence[str], max_examples: int = 0) -> Records:
    """Reads examples, and restores the tokens under the masks.

    Args:
        patterns: Files or globs, local or gs://.
        max_examples: Largest number of examples; 0 reads all.
    """
    files = sorted(itertools.chain(*map(find, patterns)))
    ragged = tf.io.RaggedFeature
    features = {
        "input_ids": ragged(tf.int64),
        "masked_lm_positions": ragged(tf.int64),
        "masked_lm_ids": ragged(tf.int64),
        "masked_lm_weights": ragged(tf.float32),
    }
    inputs, positions, labels, weights = [], [], [], []
    dataset = tf.data.TFRecordDataset(files)
    if max_examples:
        dataset = dataset.take(max_examples)
    for serialized in dataset.batch(4096):
        batch = tf.io.parse_example(serialized, features)
        inputs.append(batch["input_ids"].to_tensor().numpy().astype(np.int32))
        positions.append(batch["masked_lm_positions"].to_tensor().numpy())
        labels.append(batch["masked_lm_ids"].to_tensor().numpy())
        weights.append(batch["masked_lm_weights"].to_tensor().numpy())
    input_ids = np.concatenate(inputs)
    rows, slots = np.nonzero(np.concatenate(weights))
    columns = np.concatenate(positions)[rows, slots]
    original_ids = input_ids.copy()
    original_ids[rows, columns] = np.concatenate(labels)[rows, slots]
    return Records(input_ids, original_ids, rows, columns)


def neighbours(input_ids: np.ndarray, number: int, step: int) -> np.ndarray:
    """The tokens on one side of each token, the nearest first.

    Args:
        input_ids: int32, `(examples, length)`.
        number: Number of neighbours.
        step: -1 for the tokens before, 1 for those after.

    Returns:
        int32, `(examples, length, number)`; `<pad>` beyond the ends.

    Example:
        >>> neighbours(np.array([[7, 8, 9]]), 2, -1).tolist()
        [[[0, 0], [7, 0], [8, 7]]]
    """
    length = input_ids.shape[1]
    padded = np.pad(
        input_ids, ((0, 0), (number, number)), constant_values=PAD_ID
    )
    begins = [number + step * (k + 1) for k in range(number)]
    return np.stack([padded[:, b : b + length] for b in begins], axis=-1)


class Baselines:
    """The unigram, and the n-grams of both sides.

    Args:
        train: Records to count.
        order: Length of the longest n-gram.
    """

    def __init__(self, train: Records, vocab_size: int, order: int) -> None:
        self._order = order
        ids = train.original_ids
        counted = ids >= _FIRST_ORDINARY_ID
        tokens = ids[counted]
        # One more for each piece, so that no probability is 0.
        counts = 1.0 + np.bincount(tokens, minlength=vocab_size)
        counts[:_FIRST_ORDINARY_ID] = 0
        self._unigram = counts / counts.sum()
        self._left, self._right = (
            NgramModel(
                tokens, neighbours(ids, order - 1, step)[counted], vocab_size
            )
            for step in (-1, 1)
        )

    def evaluate(self, records: Records) -> dict[str, tuple[float, float]]:
        """Predicts the masked tokens.

        Returns:
            Mean loss in nats and top-1 accuracy, by name of the baseline.
        """
        before, after = (
            neighbours(records.input_ids, self._order - 1, step)
            for step in (-1, 1)
        )
        sums: dict[str, np.ndarray] = {}
        total = len(records.rows)
        for begin in range(0, total, _BATCH_SIZE):
            at = (
                records.rows[begin : begin + _BATCH_SIZE],
                records.columns[begin : begin + _BATCH_SIZE],
            )
            labels = records.original_ids[at]
            seen = records.input_ids[at]
            left = self._left.probabilities(before[at])
            right = self._right.probabilities(after[at])
            both = np.divide(
                left * right,
                self._unigram,
                out=np.zeros_like(left),
                where=self._unigram > 0,
            )
            name = f"{self._order}-gram"
            for key, values in {
                "unigram": np.broadcast_to(self._unigram, left.shape),
                f"{name}, left": _given_input(left, seen),
                f"{name}, right": _given_input(right, seen),
                f"{name}, both sides": _given_input(both, seen),
            }.items():
                sums[key] = sums.get(key, 0) + _score(values, labels)
        return {
            key: (float(loss / total), float(correct / total))
            for key, (loss, correct) in sums.items()
        }


def _given_input(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Distributions given what the input has at the positions.

    Args:
        values: `(batch, vocab_size)`, probabilities up to a factor.
        seen: int, `(batch,)`, the token in the input, [MASK] for most.
    """
    values = values.copy()
    values[:, :_FIRST_ORDINARY_ID] = 0
    num_random = values.shape[1] - _FIRST_ORDINARY_ID
    shown = np.flatnonzero(seen != MASK_ID)
    # Kept for 10 % of the masked tokens; replaced for 10 % by each piece with
    # equal probability.
    values[shown, seen[shown]] *= 1 + num_random
    return values / values.sum(axis=1, keepdims=True)


def _score(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Sums of loss and of correct predictions; float64, `(2,)`."""
    of_labels = values[np.arange(len(labels)), labels]
    return np.array(
        [-np.log(of_labels).sum(), (values.argmax(axis=1) == labels).sum()]
    )


def main(config: BenchmarkConfig) -> None:
    """Counts, predicts and prints."""
    config.require("input_file", "eval_input_file")
    train = read_records(config.input_file)
    baselines = Baselines(train, config.vocab_size, config.order)
    print("| held-out records | masked tokens | baseline | loss | top-1 |")
    print("|---|---|---|---|---|")
    for pattern in config.eval_input_file:
        records = read_records([pattern], config.max_eval_examples)
        for name, (loss, correct) in baselines.evaluate(records).items():
            print(
                f"| {pattern} | {len(records.rows):,} | {name} | {loss:.3f} "
                f"| {correct:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
