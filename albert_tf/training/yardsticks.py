"""What a model is good for, beside its losses: minimal pairs, a linear probe.

Minimal pairs (BLiMP): of two sentences that differ in one point of grammar, the
model should give the right one the higher probability. The log probability of
a sentence is the sum over its tokens of their log probability while they are
masked: each alone ("plain"), or each together with the tokens after it in its
word ("word-l2r"), since the end of a word gives its beginning away.

Linear probe: the accuracy of a logistic regression that reads the mean of the
last hidden states of the tokens of a text.

Reference:
    BLiMP: [Warstadt et al., 2020](https://arxiv.org/abs/1912.00582); sums with
    single masks: [Salazar et al., 2020](https://arxiv.org/abs/1910.14659);
    word-l2r: [Kauf and Ivanova, 2023](https://arxiv.org/abs/2305.10588).
"""

import collections
import csv
import functools
import gzip
import io
import itertools
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from tqdm import tqdm

from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.modeling.heads import mean_of_tokens
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.records.features import MASK_ID, PAD_ID, UNK_ID
from albert_tf.records.tokenization import Tokenizer, join, truncate

# Rows have few different lengths, for each of which a program is traced.
_LENGTH_STEP, _BATCH_TOKENS = 16, 16_384
# Sums of float32 logits that differ by less, in nats, are equal.
_TIE = 1e-5
_GZIP = b"\x1f\x8b"

# Yields the parts of a measurement, given with the name of it.
Parts: TypeAlias = Callable[[Sequence[Any], str], Iterable[Any]]


def show_progress(parts: Sequence[Any], name: str) -> Iterable[Any]:
    """The `Parts` of a measurement that nothing ends early."""
    return tqdm(parts, name, unit="batch", mininterval=5, leave=False)


class Yardstick(Protocol):
    """A measurement of one model, on data that it keeps in memory."""

    def measure(
        self,
        model: keras.layers.Layer,
        strategy: tf.distribute.Strategy,
        parts: Parts = show_progress,
    ) -> dict[str, float]:
        """The metrics by name. Every replica computes the same.

        Raises:
            UserError: If an output of the model is not finite.
        """
        ...


class _Pair(NamedTuple):
    paradigm: str
    groups: dict[str, Any]  # the row, with the names of the groups
    good: str
    bad: str


class MinimalPairs:
    """Pairs of a right and a wrong sentence.

    Args:
        patterns: Files of JSON lines with `sentence_good` and `sentence_bad`,
            perhaps compressed by gzip; local or gs://. Each file is a
            paradigm, or each value of `UID`. `field` and `linguistics_term`
            group the paradigms.
        max_seq_length: Pairs with a longer sentence are left out.
        pairs_per_file: Number of pairs to read of each file; 0: all.

    Attributes:
        num_pairs: Number of pairs that are compared.
        num_skipped: Number of pairs left out, too long or empty.
        num_unknown: Number of `<unk>` in the sentences.

    Raises:
        UserError: If there are no pairs, or a line is not one.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        tokenizer: Tokenizer,
        max_seq_length: int,
        pairs_per_file: int = 0,
    ) -> None:
        pairs = _read_pairs(patterns, pairs_per_file)
        texts = [p.good for p in pairs] + [p.bad for p in pairs]
        encoded = tokenizer.encode_batch(texts)
        tokens = np.split(encoded.ids, encoded.ends[:-1])
        sizes = np.array([*map(len, tokens)])
        fits = (sizes > 0) & (sizes <= max_seq_length - 2)
        fits = fits[: len(pairs)] & fits[len(pairs) :]
        self._pairs = [p for p, fit in zip(pairs, fits, strict=True) if fit]
        self.num_pairs = len(self._pairs)
        self.num_skipped = len(pairs) - self.num_pairs
        if not self.num_pairs:
            raise UserError(
                "minimal pairs must fit into the sequences of the model",
                received=f"{len(pairs)} pairs, all longer than "
                f"{max_seq_length} tokens",
            )
        if self.num_skipped:
            logging.warning(
                "%d of %d minimal pairs have more than %d tokens, and are left "
                "out",
                self.num_skipped,
                len(pairs),
                max_seq_length,
            )
        kept = np.flatnonzero(np.concatenate([fits, fits]))
        sentences = [tokens[i] for i in kept]
        flat = np.concatenate(sentences)
        self.num_unknown = int((flat == UNK_ID).sum())
        self._frequencies = np.array(
            [tokenizer.log_frequencies()[s].sum() for s in sentences]
        )
        self._ids = join([s.tolist() for s in sentences]).input_ids
        self._max_seq_length = max_seq_length
        # A row for each token: its sentence, its position in the row and the
        # end of the masked positions. [CLS] is at position 0.
        sizes = sizes[kept]
        begins = np.cumsum(sizes) - sizes
        self._sentences = np.repeat(np.arange(len(sizes)), sizes)
        offsets = np.repeat(begins, sizes) - 1
        self._positions = np.arange(len(flat)) - offsets
        opens_word = tokenizer.words.find(flat)
        opens_word[begins] = True
        words = np.append(np.flatnonzero(opens_word), len(flat))
        after = np.searchsorted(words, np.arange(len(flat)), side="right")
        self._word_ends = words[after] - offsets
        self._program: Any = None

    def measure(
        self,
        model: keras.layers.Layer,
        strategy: tf.distribute.Strategy,
        parts: Parts = show_progress,
    ) -> dict[str, float]:
        """`minimal_pairs_accuracy`, `minimal_pairs_plain_accuracy`, 0 to 1."""
        results = self.compare(model, strategy, parts)
        return {
            "minimal_pairs_accuracy": self.mean(results["word_l2r"]),
            "minimal_pairs_plain_accuracy": self.mean(results["plain"]),
        }

    def compare(
        self,
        model: keras.layers.Layer,
        strategy: tf.distribute.Strategy,
        parts: Parts = show_progress,
    ) -> dict[str, np.ndarray]:
        """1 for each pair that the model gets right, 0.5 for equal scores.

        Returns:
            float64, `(num_pairs,)`, by rule, as `scores`.
        """
        results = {}
        scores = self.scores(model, strategy, parts)
        for rule, (good, bad) in scores.items():
            difference = np.where(abs(good - bad) < _TIE, 0, good - bad)
            results[rule] = (np.sign(difference) + 1) / 2
        return results

    def scores(
        self,
        model: keras.layers.Layer,
        strategy: tf.distribute.Strategy,
        parts: Parts = show_progress,
    ) -> dict[str, np.ndarray]:
        """Log probabilities of the good and of the bad sentences.

        Returns:
            float64, `(2, num_pairs)`, nats, by rule: "word_l2r" and "plain" as
            in the module; and "frequency", without a model: the sum of the
            scores of the pieces in the vocabulary.
        """
        ends = self._positions + 1
        # By both rules, a token that ends a word is masked alone.
        differs = np.flatnonzero(self._word_ends != ends)
        values = self._log_probabilities(
            model,
            strategy,
            parts,
            np.concatenate([np.arange(len(ends)), differs]),
            np.concatenate([ends, self._word_ends[differs]]),
        )
        plain = values[: len(ends)]
        word_l2r = plain.copy()
        word_l2r[differs] = values[len(ends) :]
        return {
            "word_l2r": np.bincount(self._sentences, word_l2r).reshape(2, -1),
            "plain": np.bincount(self._sentences, plain).reshape(2, -1),
            "frequency": self._frequencies.reshape(2, -1),
        }

    def mean(self, results: np.ndarray) -> float:
        """The mean over paradigms, of one rule of `compare`."""
        means = self.by("paradigm", results)
        return sum(means.values()) / len(means)

    def by(self, group: str, results: np.ndarray) -> dict[str, float]:
        """Means over the paradigms of each group.

        Args:
            group: "paradigm", "field" or "linguistics_term".
        """
        of_paradigm = collections.defaultdict(list)
        group_of = {}
        for pair, result in zip(self._pairs, results, strict=True):
            of_paradigm[pair.paradigm].append(float(result))
            group_of[pair.paradigm] = (
                pair.paradigm
                if group == "paradigm"
                # BLiMP spells one field in two ways.
                else pair.groups.get(group, "").replace("/", "_")
            )
        means = collections.defaultdict(list)
        for paradigm, values in of_paradigm.items():
            if name := group_of[paradigm]:
                means[name].append(sum(values) / len(values))
        return {name: sum(m) / len(m) for name, m in sorted(means.items())}

    def _log_probabilities(
        self,
        model: keras.layers.Layer,
        strategy: tf.distribute.Strategy,
        parts: Parts,
        rows: np.ndarray,
        ends: np.ndarray,
    ) -> np.ndarray:
        """Log probabilities, in nats, of the tokens of rows; float64."""
        if self._program is None:
            self._program = _compile(
                strategy, functools.partial(_masked_log_probabilities, model)
            )
        sizes = (self._ids != PAD_ID).sum(1)[self._sentences[rows]]
        lengths = -(-sizes // _LENGTH_STEP) * _LENGTH_STEP
        lengths = np.minimum(lengths, self._max_seq_length)
        batches = []
        for length in np.unique(lengths):
            of_length = np.flatnonzero(lengths == length)
            size = max(1, _BATCH_TOKENS // length)
            batches += [
                (length, size, of_length[i : i + size])
                for i in range(0, len(of_length), size)
            ]
        values = np.empty(len(rows))
        pad = max(0, int(lengths.max()) - self._ids.shape[1])
        ids_of = np.pad(self._ids, [(0, 0), (0, pad)])
        for length, size, part in parts(batches, "minimal pairs"):
            padded = np.resize(part, size)  # repeats rows
            chosen = rows[padded]
            ids = ids_of[self._sentences[chosen], :length]
            positions = self._positions[chosen][:, np.newaxis]
            columns = np.arange(length)
            masked = (columns >= positions) & (
                columns < ends[padded][:, np.newaxis]
            )
            targets = np.take_along_axis(ids, positions, axis=1)
            found = self._program(
                tf.constant(np.where(masked, MASK_ID, ids), tf.int32),
                tf.constant(positions, tf.int32),
                tf.constant(targets, tf.int32),
            )
            values[part] = found.numpy()[: len(part)]
        if not np.isfinite(values).all():
            raise UserError(
                "the log probabilities of minimal pairs must be finite",
                received="NaN or infinite ones",
            )
        return values


def _masked_log_probabilities(
    model: AlbertPretrainer,
    ids: tf.Tensor,
    positions: tf.Tensor,
    targets: tf.Tensor,
) -> tf.Tensor:
    batch = {
        "input_ids": ids,
        "input_mask": tf.cast(ids != PAD_ID, tf.int32),
        "segment_ids": tf.zeros_like(ids),
        "masked_lm_positions": positions,
    }
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        targets, model(batch)["mlm_logits"]
    )
    return -losses[:, 0]


def _read(path: str) -> str:
    with files.open_existing(path, "rb") as file:
        content = file.read()
    try:
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path} must be UTF-8, perhaps compressed by gzip",
            received=str(error),
        ) from None


def _numbered_lines(text: str) -> Iterable[tuple[int, str]]:
    """The lines that are not empty. Strings of JSON may hold U+2028."""
    lines = enumerate(text.split("\n"), 1)
    return ((number, line) for number, line in lines if line.strip())


def _read_pairs(patterns: Sequence[str], pairs_per_file: int) -> list[_Pair]:
    pairs = []
    for path in files.find_all("minimal pairs", patterns, "*.jsonl"):
        lines = _numbered_lines(_read(path))
        for number, line in itertools.islice(lines, pairs_per_file or None):
            try:
                row = json.loads(line)
                good, bad = row["sentence_good"], row["sentence_bad"]
            except (ValueError, KeyError, TypeError):
                good = bad = None
            if not (isinstance(good, str) and isinstance(bad, str)):
                raise UserError(
                    f"line {number} of {path} must be a JSON object with the "
                    "texts sentence_good and sentence_bad",
                    received=line[:80],
                )
            name = os.path.basename(path).partition(".")[0]
            pairs.append(_Pair(row.get("UID", name), row, good, bad))
    if not pairs:
        raise UserError(
            "minimal pairs must be in files of JSON lines",
            received=f"{','.join(patterns)}, with no pair",
        )
    return pairs


class LinearProbe:
    """Labelled texts, for a logistic regression on the states of a model.

    Accuracy is that of five parts of the texts, each predicted from the other
    four.

    Args:
        path: A file of JSON lines or CSV with a header, perhaps compressed by
            gzip; local or gs://. Its columns are `text` and `label`, or `text`
            and one other, which is the label.
        max_seq_length: Longer texts are cut at their ends.

    Raises:
        UserError: If the file has other columns, or fewer than two classes, or
            fewer than five texts of a class.
    """

    def __init__(
        self, path: str, tokenizer: Tokenizer, max_seq_length: int
    ) -> None:
        rows = _read_table(path)
        columns = [str(name) for name in rows[0]] if rows else []
        others = [c for c in columns if c != "text"]
        label = others[0] if len(others) == 1 else "label"
        if "text" not in columns or label not in columns:
            raise UserError(
                f"{path} must have the columns text and label",
                received=", ".join(columns) or "no rows",
            )
        for number, row in enumerate(rows, 1):
            values = row if isinstance(row, dict) else {}
            if values.get("text") is None or values.get(label) is None:
                raise UserError(
                    f"row {number} of {path} must have text and {label}",
                    received=str(row)[:80],
                )
        self._labels = np.array([str(row[label]) for row in rows])
        counts = np.unique(self._labels, return_counts=True)[1]
        if len(counts) < 2 or counts.min() < 5:
            raise UserError(
                f"{path} must have two classes, with five texts each",
                received=f"{len(counts)} classes; the smallest has "
                f"{counts.min()}",
            )
        encoded = tokenizer.encode_batch([str(row["text"]) for row in rows])
        tokens = [t.tolist() for t in np.split(encoded.ids, encoded.ends[:-1])]
        self._tokens, _ = truncate(tokens, None, max_seq_length)
        self._max_seq_length = max_seq_length
        self._program: Any = None

    def measure(
        self,
        model: keras.layers.Layer,
        strategy: tf.distribute.Strategy,
        parts: Parts = show_progress,
    ) -> dict[str, float]:
        """`probe_accuracy`, 0 to 1."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        means = self._means(model, strategy, parts)
        splitter = StratifiedKFold(5, shuffle=True, random_state=0)
        folds = [*splitter.split(means, self._labels)]
        scores = []
        for train, test in parts(folds, "logistic regressions"):
            classifier = make_pipeline(
                StandardScaler(), LogisticRegression(max_iter=1000)
            ).fit(means[train], self._labels[train])
            scores.append(classifier.score(means[test], self._labels[test]))
        return {"probe_accuracy": float(np.mean(scores))}

    def _means(
        self,
        model: keras.layers.Layer,
        strategy: tf.distribute.Strategy,
        parts: Parts,
    ) -> np.ndarray:
        if self._program is None:
            self._program = _compile(
                strategy,
                lambda *row: mean_of_tokens(model.backbone(*row)[0], row[1]),
            )
        longest = max(map(len, self._tokens)) + 2
        length = -(-longest // _LENGTH_STEP) * _LENGTH_STEP
        length = min(length, self._max_seq_length)
        size = max(1, _BATCH_TOKENS // length)
        means = []
        firsts = range(0, len(self._tokens), size)
        for first in parts(firsts, "texts of the probe"):
            part = list(self._tokens[first : first + size])
            part += [[]] * (size - len(part))
            means.append(self._program(*join(part, length=length)).numpy())
        found = np.concatenate(means)[: len(self._tokens)]
        if not np.isfinite(found).all():
            raise UserError(
                "the hidden states of the texts of the probe must be finite",
                received="NaN or infinite ones",
            )
        return found


def _compile(
    strategy: tf.distribute.Strategy, on_replica: Callable[..., tf.Tensor]
) -> Any:
    @tf.function
    def program(*inputs: tf.Tensor) -> tf.Tensor:
        values = strategy.run(on_replica, args=inputs)
        return strategy.experimental_local_results(values)[0]

    return program


def _read_table(path: str) -> list[dict[str, Any]]:
    text = _read(path)
    try:
        if text.lstrip().startswith("{"):
            return [json.loads(line) for _, line in _numbered_lines(text)]
        # By default, a field of more than 131,072 characters is an error.
        csv.field_size_limit(sys.maxsize)
        # Strict: an unclosed quotation mark would take the rest for one field.
        return [*csv.DictReader(io.StringIO(text, newline=""), strict=True)]
    except (ValueError, csv.Error) as error:
        raise UserError(
            f"{path} must be JSON lines or CSV", received=str(error)
        ) from None
