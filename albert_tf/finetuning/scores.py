"""Scores of classification, regression and multiple choice."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.finetuning.tasks import Task


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

    Example:
        >>> from albert_tf.finetuning.tasks import TASKS
        >>> score(TASKS["mrpc"], np.array([1, 0, 1]), np.array([1, 1, 0]))
        {'accuracy': 0.3333333333333333, 'f1': 0.5, 'total': 3}
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
