"""Scores of predictions, as of the official scripts, and their files.

    *.tsv              of GLUE's leaderboard: columns index and prediction
    predictions.json   answers by question id, as the scripts of SQuAD read them
    best_answers.json  the same, without the null threshold
    null_odds.json     by question id; the larger, the less likely an answer
    nbest.json         the best answers to each question, with probabilities
    *.jsonl            the words of each text, and their tags

Answers are compared in lower case, without punctuation and articles. In
Chinese, Japanese, Korean, Thai and other scripts that need it, each character
counts as a word, as in the scripts of KorQuAD and DRCD. The best
score over all right answers counts. As in the scripts, a missing prediction
scores 0. Right answers without words are
dropped in 2.0. Two answers without words have an F1 of 0 in 1.1, of 1 in 2.0.

Reference:
    [Rajpurkar et al., 2016](https://arxiv.org/abs/1606.05250), section 6.1;
    [Rajpurkar et al., 2018](https://arxiv.org/abs/1806.03822), section 5.
"""

import collections
import functools
import json
import posixpath
import re
import string
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unicodedata import category

import numpy as np

from albert_tf.io.files import write_text
from albert_tf.records.questions import Question, QuestionAnswer

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Scripts without spaces, Hangul, and their punctuation.
_CHARACTER = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff"
    "\u2e80-\u31ff\u3400-\u4dbf\u4e00-\ua4cf\ua960-\ua97f\ua9e0-\ua9ff"
    "\uaa60-\uaadf\uac00-\ud7ff\uf900-\ufaff\U00020000-\U000323af]"
)


# --- scores of classes, choices and values -----------------------------------


def compute(
    names: Iterable[str], labels: Sequence[Any] | np.ndarray, found: Any
) -> dict[str, float]:
    """Computes scores, with scikit-learn and SciPy.

    Args:
        names: Of the scores.
        labels: For each example a value, the number of a class or choice, or
            for each class whether it applies.
        found: The predictions, as `labels`.

    Returns:
        The scores by name, and `total`, the number of examples. A correlation
        with constant predictions, which is not defined, is 0.
    """
    # Imported here so that describing tasks needs neither library.
    from scipy import stats
    from sklearn import metrics

    functions: Mapping[str, Callable[..., Any]] = {
        "accuracy": metrics.accuracy_score,
        # F1 of class 1, the paraphrases; macro: mean of all classes that occur.
        "f1": metrics.f1_score,
        "f1_macro": functools.partial(metrics.f1_score, average="macro"),
        "f1_micro": functools.partial(metrics.f1_score, average="micro"),
        "matthews": metrics.matthews_corrcoef,
        "pearson": functools.partial(_correlation, stats.pearsonr),
        "spearman": functools.partial(_correlation, stats.spearmanr),
        "mean_squared_error": lambda x, y: np.mean(np.subtract(x, y) ** 2),
    }
    return _apply({name: functions[name] for name in names}, labels, found)


def compute_spans(
    names: Iterable[str], labels: Sequence[Any], found: Any
) -> dict[str, float]:
    """As `compute`, by seqeval, of lists of tags: spans must be complete."""
    from seqeval import metrics

    functions = {name: getattr(metrics, f"{name}_score") for name in names}
    return _apply(functions, labels, found)


def _apply(
    functions: Mapping[str, Callable[..., Any]], labels: Any, found: Any
) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant predictions
        scores = {
            name: float(function(labels, found))
            for name, function in functions.items()
        }
    return {**scores, "total": len(labels)}


def _correlation(
    correlate: Callable[..., Any], labels: np.ndarray, predictions: np.ndarray
) -> float:
    if len(labels) < 2:
        return 0.0
    value = correlate(labels, predictions).statistic
    return 0.0 if np.isnan(value) else value


# --- scores of answers -------------------------------------------------------


def _words(text: str) -> list[str]:
    plain = text.lower().translate(_NO_PUNCTUATION)
    if _CHARACTER.search(plain):  # elsewhere, as in SQuAD's scripts
        plain = "".join(c for c in plain if not category(c).startswith("P"))
        plain = _CHARACTER.sub(r" \g<0> ", plain)
    return _ARTICLES.sub(" ", plain).split()


def _compare(answer: str, gold: str, is_version_2: bool) -> tuple[float, float]:
    """Whether the words are equal, and the F1 of the words."""
    found, wanted = _words(answer), _words(gold)
    exact = float(found == wanted)
    if is_version_2 and not (found and wanted):
        return exact, exact
    shared = collections.Counter(found) & collections.Counter(wanted)
    num_shared = sum(shared.values())
    if not num_shared:
        return exact, 0.0
    precision, recall = num_shared / len(found), num_shared / len(wanted)
    return exact, 2 * precision * recall / (precision + recall)


def score_answers(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    null_threshold: float = 1.0,
    *,
    may_be_unanswerable: bool = True,
) -> dict[str, float]:
    """Scores predictions with the keys of the official scripts.

    Args:
        questions: The questions, with all right answers.
        predictions: Answers by question id; "" for no answer. The best
            thresholds need the best answers, not replaced by "".
        null_odds: By question id, the larger, the less likely there is an
            answer; None for 0 everywhere.
        null_threshold: A question with larger `null_odds` counts as answered
            by "".
        may_be_unanswerable: Whether to score as in version 2.0.

    Returns:
        `exact` and `f1` in percent and `total`, the number of questions. For
        version 2.0 also those of answerable (`HasAns_`) and unanswerable
        (`NoAns_`) questions, if there are any; and with `null_odds`, the best
        scores over all thresholds (`best_exact`, `best_f1`), and the
        thresholds (`best_exact_thresh`, `best_f1_thresh`).
    """
    raw = {
        question.id: _score(
            predictions.get(question.id), question, may_be_unanswerable
        )
        for question in questions
    }
    if not may_be_unanswerable:
        return _mean(list(raw.values()))
    has_answer = {question.id: bool(question.answers) for question in questions}
    odds = null_odds if null_odds is not None else dict.fromkeys(raw, 0.0)
    scores = {
        name: (float(not has_answer[name]),) * 2
        if odds[name] > null_threshold
        else pair
        for name, pair in raw.items()
    }
    found = _mean(list(scores.values()))
    for prefix, wanted in (("HasAns", True), ("NoAns", False)):
        part = [scores[name] for name in scores if has_answer[name] == wanted]
        if part:
            for score, value in _mean(part).items():
                found[f"{prefix}_{score}"] = value
    if null_odds is None:
        return found
    # Ties are answered one by one, in the order of the null odds.
    order = [name for name in sorted(odds, key=odds.__getitem__) if name in raw]
    for i, score in enumerate(("exact", "f1")):
        # At first all answers are ""; then questions are answered in order.
        total = best = float(len(raw) - sum(has_answer.values()))
        threshold = 0.0
        for name in order:
            if has_answer[name]:
                total += raw[name][i]
            elif predictions[name]:
                total -= 1
            if total > best:
                best, threshold = total, odds[name]
        found[f"best_{score}"] = 100.0 * best / len(raw)
        found[f"best_{score}_thresh"] = threshold
    return found


def _score(
    answer: str | None, question: Question, may_be_unanswerable: bool
) -> tuple[float, float]:
    """The best exact match and the best F1 over all right answers."""
    golds = [text for text, _ in question.answers]
    if may_be_unanswerable:
        golds = list(filter(_words, golds)) or [""]
    if answer is None or not golds:
        return 0.0, 0.0
    pairs = [_compare(answer, gold, may_be_unanswerable) for gold in golds]
    exact, f1 = map(max, zip(*pairs, strict=True))
    return exact, f1


def _mean(scores: Sequence[tuple[float, float]]) -> dict[str, float]:
    total = len(scores)
    exact, f1 = map(sum, zip(*scores, strict=True))
    return {
        "exact": 100.0 * exact / total,
        "f1": 100.0 * f1 / total,
        "total": total,
    }


# --- files of predictions ----------------------------------------------------


def write_answers(
    directory: str,
    answers: Sequence[QuestionAnswer],
    null_threshold: float | None = None,
) -> None:
    """Writes all files of answers.

    In `predictions.json`, "" replaces an answer whose null odds are larger than
    `null_threshold`.
    """
    contents: Mapping[str, Mapping[str, Any]] = {
        "predictions.json": {a.id: a.text(null_threshold) for a in answers},
        "best_answers.json": {a.id: a.text() for a in answers},
        "null_odds.json": {a.id: a.null_odds for a in answers},
        "nbest.json": {
            a.id: [candidate._asdict() for candidate in a.candidates]
            for a in answers
        },
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        write_text(posixpath.join(directory, name), text + "\n")
