"""Scores of classification, regression and multiple choice."""

import warnings
from collections.abc import Callable, Mapping

import numpy as np

from albert_tf.finetuning.tasks import Task


def score(
    task: Task, labels: np.ndarray, predictions: np.ndarray
) -> dict[str, float]:
    """Computes the scores of a task, with scikit-learn and SciPy.

    Args:
        task: The task, which names the scores.
        labels: Indices of classes or choices, or values; `(examples,)`.
        predictions: As `labels`.

    Returns:
        The scores by name, the most important first, from 0 to 1 or -1 to 1;
        `total`, the number of examples. A correlation with constant
        predictions, which is not defined, is 0, like the Matthews correlation.

    Example:
        >>> from albert_tf.finetuning.tasks import TASKS
        >>> score(TASKS["mrpc"], np.array([1, 0, 1]), np.array([1, 1, 0]))
        {'accuracy': 0.3333333333333333, 'f1': 0.5, 'total': 3}
    """
    scores = {
        name: float(_SCORES[name](labels, predictions)) for name in task.metrics
    }
    return {**scores, "total": len(labels)}


def _accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.mean(labels == predictions))


def _f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Of class 1, the paraphrases."""
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, zero_division=0.0)


def _f1_macro(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of all classes that occur."""
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, average="macro", zero_division=0.0)


def _matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return matthews_corrcoef(labels, predictions)


def _pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predictions)


def _spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predictions)


def _correlation(
    function: Callable[..., tuple[float, float]],
    labels: np.ndarray,
    predictions: np.ndarray,
) -> float:
    if len(labels) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant predictions
        value = function(labels, predictions)[0]
    return 0.0 if np.isnan(value) else value


def _mean_squared_error(labels: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.mean(np.square(labels - predictions)))


_SCORES: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "f1_macro": _f1_macro,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
    "mean_squared_error": _mean_squared_error,
}
