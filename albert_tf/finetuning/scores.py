"""Scores of predictions, as papers and the official scripts of SQuAD have them.

Answers are compared in lower case, without punctuation and articles, with words
separated by one space. The best score over all right answers counts.

The scripts of versions 1.1 and 2.0 differ, and so do the scores here. A missing
prediction scores 0 in 1.1 and is an error in 2.0. Right answers without words
are dropped in 2.0. Two answers without words have an F1 of 0 in 1.1, of 1 in
2.0.

Reference:
    [Rajpurkar et al., 2016](https://arxiv.org/abs/1606.05250), section 6.1;
    [Rajpurkar et al., 2018](https://arxiv.org/abs/1806.03822), section 5.
"""

import collections
import functools
import re
import string
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.tasks import Task
from albert_tf.records.documents import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(
    task: Task, labels: Sequence[float] | np.ndarray, predictions: np.ndarray
) -> dict[str, float]:
    """Computes the scores of a task, with scikit-learn and SciPy.

    Args:
        task: Its `metrics` name the scores.
        labels: Indices of classes or choices, or values; `(examples,)`.
        predictions: As `labels`.

    Returns:
        The scores by name, the most important first. Correlations are from -1
        to 1, `mean_squared_error` is 0 or larger, and other scores are from 0
        to 1. `total` is the number of examples. A correlation with constant
        predictions, which is not defined, is 0.
    """
    # Imported here so that describing tasks needs neither library.
    from scipy import stats
    from sklearn import metrics

    functions: Mapping[str, Callable[..., Any]] = {
        "accuracy": metrics.accuracy_score,
        # F1 of class 1, the paraphrases; macro: mean of all classes that occur.
        "f1": metrics.f1_score,
        "f1_macro": functools.partial(metrics.f1_score, average="macro"),
        "matthews": metrics.matthews_corrcoef,
        "pearson": functools.partial(_correlation, stats.pearsonr),
        "spearman": functools.partial(_correlation, stats.spearmanr),
        "mean_squared_error": lambda x, y: np.mean(np.square(x - y)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant predictions
        scores = {
            name: float(functions[name](labels, predictions))
            for name in task.metrics
        }
    return {**scores, "total": len(labels)}


def _correlation(
    correlate: Callable[..., Any], labels: np.ndarray, predictions: np.ndarray
) -> float:
    """A correlation; 0 if it is not defined."""
    if len(labels) < 2:
        return 0.0
    value = correlate(labels, predictions).statistic
    return 0.0 if np.isnan(value) else value


# --- answers -----------------------------------------------------------------


def normalize_answer(text: str) -> str:
    """Normalises an answer, so that equal answers compare equal.

    Example:
        >>> normalize_answer("  The “Rhine”, a river. ")
        '“rhine” river'
    """
    plain = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(answer: str, gold: str) -> float:
    """1.0 if the normalised answers are equal, else 0.0."""
    return float(normalize_answer(answer) == normalize_answer(gold))


def word_f1(answer: str, gold: str) -> float:
    """The harmonic mean of precision and recall of the words.

    Two answers without words get 0, as in version 1.1.
    """
    found = normalize_answer(answer).split()
    wanted = normalize_answer(gold).split()
    shared = collections.Counter(found) & collections.Counter(wanted)
    num_shared = sum(shared.values())
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(found), num_shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score_answers(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    na_prob_thresh: float = 1.0,
    *,
    may_be_unanswerable: bool = True,
) -> dict[str, float]:
    """Scores predictions with the keys of the official scripts.

    Args:
        questions: The questions, with all right answers.
        predictions: Answers by question id; "" for no answer. To find the
            best thresholds, they must be the best answers of the model, not
            replaced by "" at some threshold.
        null_odds: By question id, the larger, the less likely there is an
            answer; None for 0 everywhere.
        na_prob_thresh: A question with larger `null_odds` counts as answered
            by "".
        may_be_unanswerable: Whether to score as in version 2.0.

    Returns:
        `exact` and `f1` in percent and `total`, the number of questions. For
        version 2.0 also those of answerable (`HasAns_`) and unanswerable
        (`NoAns_`) questions, if there are any; and with `null_odds`, the best
        scores over all thresholds (`best_exact`, `best_f1`), and the
        thresholds (`best_exact_thresh`, `best_f1_thresh`).

    Raises:
        UserError: If a prediction is not a string, if no question has a
            prediction, or, in version 2.0, if any question lacks a prediction
            or null odds.
    """
    _check(questions, predictions, null_odds, may_be_unanswerable)
    raw = {
        question.id: _score(
            predictions.get(question.id), question, may_be_unanswerable
        )
        for question in questions
    }
    if not may_be_unanswerable:
        return _mean(raw.values())
    has_answer = {q.id: bool(q.answers) for q in questions}
    odds = null_odds if null_odds is not None else dict.fromkeys(raw, 0.0)
    scores = dict(raw)
    for name in raw:
        if odds[name] > na_prob_thresh:
            scores[name] = (float(not has_answer[name]),) * 2
    found = _mean(scores.values())
    for prefix, wanted in (("HasAns", True), ("NoAns", False)):
        part = [scores[n] for n in scores if has_answer[n] == wanted]
        if part:
            found |= {f"{prefix}_{k}": v for k, v in _mean(part).items()}
    for i, key in enumerate(("exact", "f1") if null_odds is not None else ()):
        found[f"best_{key}"], found[f"best_{key}_thresh"] = _best_threshold(
            {name: pair[i] for name, pair in raw.items()},
            predictions,
            odds,
            has_answer,
        )
    return found


def _check(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None,
    may_be_unanswerable: bool,
) -> None:
    wrong = [
        f"{value!r} for {name}"
        for name, value in predictions.items()
        if not isinstance(value, str)
    ]
    if wrong:
        raise UserError(
            "predictions_file must map each question id to a text",
            received=name_faults(wrong),
        )
    ids = [question.id for question in questions]
    files: dict[str, Mapping[str, object]] = {"predictions_file": predictions}
    if null_odds is not None and may_be_unanswerable:
        files["null_odds_file"] = null_odds
    for what, given in files.items():
        missing = [name for name in ids if name not in given]
        if not missing:
            continue
        count, names = f"{len(missing)} of {len(ids)}", name_faults(missing)
        if may_be_unanswerable or len(missing) == len(ids):
            raise UserError(
                f"{what} must have an entry for every question of data_file",
                received=f"none for {count} questions: {names}",
                remedy="Check that these are predictions for that file.",
            )
        logging.warning(
            "no prediction for %s questions, which score 0: %s", count, names
        )


def _score(
    answer: str | None, question: Question, may_be_unanswerable: bool
) -> tuple[float, float]:
    """The best exact match and the best F1 over all right answers."""
    golds = [text for text, _ in question.answers]
    score_f1 = word_f1
    if may_be_unanswerable:
        golds = list(filter(normalize_answer, golds)) or [""]
        score_f1 = _f1_or_agreement
    if answer is None or not golds:
        return 0.0, 0.0
    return (
        max(exact_match(answer, gold) for gold in golds),
        max(score_f1(answer, gold) for gold in golds),
    )


def _f1_or_agreement(answer: str, gold: str) -> float:
    """`word_f1`, but 1 for two answers without words, as in version 2.0."""
    if not normalize_answer(answer) or not normalize_answer(gold):
        return exact_match(answer, gold)
    return word_f1(answer, gold)


def _mean(scores: Iterable[tuple[float, float]]) -> dict[str, float]:
    exact, f1 = zip(*scores, strict=True)
    return {
        "exact": 100.0 * sum(exact) / len(exact),
        "f1": 100.0 * sum(f1) / len(f1),
        "total": len(exact),
    }


def _best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """The best mean score over all thresholds, in percent, and the threshold.

    At first all answers are ""; then questions are answered in the order of
    their odds. Questions with equal odds are answered one by one, in the order
    of the file, as in the official script.
    """
    total = best = float(sum(not answered for answered in has_answer.values()))
    best_threshold = 0.0
    for name in sorted(null_odds, key=lambda name: null_odds[name]):
        if name not in scores:
            continue
        if has_answer[name]:
            total += scores[name]
        elif predictions[name]:
            total -= 1
        if total > best:
            best, best_threshold = total, null_odds[name]
    return 100.0 * best / len(scores), best_threshold
