r"""Files of predictions, and their scores.

    python -m albert_tf.finetuning.score --task=squad_v2 \
      --data_file=dev-v2.0.json --predictions_file=predictions.json

The command scores predictions of this project or of another, and prints one
JSON object: for SQuAD, with the keys and values of the official scripts; for
other tasks, with the scores of the paper. It does not need TensorFlow.

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
scores 0 in version 1.1 and is an error in 2.0. Right answers without words are
dropped in 2.0. Two answers without words have an F1 of 0 in 1.1, of 1 in 2.0.

Reference:
    [Rajpurkar et al., 2016](https://arxiv.org/abs/1606.05250), section 6.1;
    [Rajpurkar et al., 2018](https://arxiv.org/abs/1806.03822), section 5.
"""

import collections
import dataclasses
import functools
import json
import posixpath
import re
import string
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unicodedata import category

import numpy as np
from absl import logging

from albert_tf.config import flags
from albert_tf.config.task import (
    CLASSIFICATION,
    EMBEDDING,
    MULTI_LABEL,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    ScoreConfig,
    TaskConfig,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.examples import (
    ExampleSet,
    multi_hot,
    read_examples,
    read_text,
)
from albert_tf.finetuning.tasks import (
    DEV,
    LETTERS,
    RETRIEVAL,
    Task,
)
from albert_tf.io.files import load_json, write_text
from albert_tf.records.questions import Question, QuestionAnswer

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Scripts without spaces, Hangul, and their punctuation.
_CHARACTER = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff"
    "\u2e80-\u31ff\u3400-\u4dbf\u4e00-\ua4cf\ua960-\ua97f\ua9e0-\ua9ff"
    "\uaa60-\uaadf\uac00-\ud7ff\uf900-\ufaff\U00020000-\U000323af]"
)
_HEADER = "index\tprediction"


# --- scores of classes, choices and values -----------------------------------


def score(
    task: Task, labels: Sequence[Any] | np.ndarray, predictions: Any
) -> dict[str, float]:
    """Computes the scores of a task, with scikit-learn, SciPy and seqeval.

    Args:
        task: Its `metrics` name the scores.
        labels: Indices of classes or choices, or values; `(examples,)`. 1 for
            each class of a list, 0 for others; `(examples, classes)`. Or the
            tags of each text.
        predictions: As `labels`.

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
        "mean_squared_error": lambda x, y: np.mean(np.square(x - y)),
    }
    if task.kind == MULTI_LABEL:
        labels, predictions = np.array(labels), np.array(predictions)
    if task.kind == TOKEN_CLASSIFICATION:  # of spans; accuracy, of words
        from seqeval import metrics as spans

        functions = {n: getattr(spans, f"{n}_score") for n in task.metrics}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant predictions
        scores = {
            name: float(functions[name](labels, predictions))
            for name in task.metrics
        }
    return {**scores, "total": len(labels)}


def score_embeddings(
    examples: ExampleSet, embeddings: np.ndarray
) -> dict[str, float]:
    """Computes the scores of embeddings, `(pairs, 2, H)`.

    Returns:
        The correlations of cosines with the labels. Without labels, the
        fractions of first texts whose own second text is among the k most
        similar ones of all different second texts, `recall@k`; and `total`.
    """
    labels, pairs = examples.labels(), examples.examples
    if None not in labels:
        return score(examples.task, labels, cosines_of(embeddings))
    first, second = np.moveaxis(_units(embeddings), 1, 0)
    seconds = {pair.text_pair: i for i, pair in enumerate(pairs)}
    places = {text: place for place, text in enumerate(seconds)}
    own = np.array([places[pair.text_pair] for pair in pairs])
    others = second[[*seconds.values()]]
    ranks = []
    for one, place in zip(first, own, strict=True):
        cosines = others @ one
        # Equal embeddings, or NaN, are no success.
        ranks.append(np.sum(~(cosines < cosines[place])) - 1)
    found = {
        name: float(np.mean(np.array(ranks) < int(name.partition("@")[2])))
        for name in RETRIEVAL
    }
    return {**found, "total": len(pairs)}


def cosines_of(embeddings: np.ndarray) -> np.ndarray:
    """The cosines of pairs of embeddings, `(pairs, 2, H)`."""
    return np.prod(_units(embeddings), axis=1).sum(axis=-1)


def _units(embeddings: np.ndarray) -> np.ndarray:
    return embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)


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
    _check(questions, predictions, may_be_unanswerable)
    raw = {
        question.id: _score(
            predictions.get(question.id), question, may_be_unanswerable
        )
        for question in questions
    }
    if not may_be_unanswerable:
        return _mean(list(raw.values()))
    has_answer = {q.id: bool(q.answers) for q in questions}
    odds = null_odds if null_odds is not None else dict.fromkeys(raw, 0.0)
    scores = {
        name: (float(not has_answer[name]),) * 2
        if odds[name] > null_threshold
        else pair
        for name, pair in raw.items()
    }
    found = _mean(list(scores.values()))
    for prefix, wanted in (("HasAns", True), ("NoAns", False)):
        part = [scores[n] for n in scores if has_answer[n] == wanted]
        if part:
            found |= {f"{prefix}_{k}": v for k, v in _mean(part).items()}
    if null_odds is None:
        return found
    # Ties are answered one by one, in the order of the null odds.
    order = [n for n in sorted(odds, key=odds.__getitem__) if n in raw]
    for i, key in enumerate(("exact", "f1")):
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
        found[f"best_{key}"] = 100.0 * best / len(raw)
        found[f"best_{key}_thresh"] = threshold
    return found


def _check(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    may_be_unanswerable: bool,
) -> None:
    missing = [q.id for q in questions if q.id not in predictions]
    if not missing:
        return
    message = (
        f"{len(missing)} of {len(questions)} questions: {name_faults(missing)}"
    )
    if may_be_unanswerable or len(missing) == len(questions):
        raise UserError(
            "predictions_file must have an entry for every question of "
            "data_file",
            received=f"none for {message}",
            remedy="Check that these are predictions for that file.",
        )
    logging.warning("no prediction, which scores 0, for %s", message)


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
    exact, f1 = (100.0 * sum(s) / total for s in zip(*scores, strict=True))
    return {"exact": exact, "f1": f1, "total": total}


# --- files of predictions ----------------------------------------------------


def names_of(task: Task) -> Sequence[str]:
    """The classes, or letters of choices, and numbers of those after Z."""
    numbers = range(len(LETTERS), task.num_choices)
    return task.labels or [*LETTERS[: task.num_choices], *map(str, numbers)]


def write_predictions(
    path: str, examples: ExampleSet, predictions: Any
) -> None:
    """Writes the predictions of all kinds but question answering.

    They are as in `score`. Values of STS-B are cut to its range, 0 to 5.
    """
    task, names = examples.task, names_of(examples.task)
    if task.kind == TOKEN_CLASSIFICATION:
        texts = zip(examples.examples, predictions, strict=True)
        rows = [
            {"id": example.id, "tokens": example.words, "tags": tags}
            for example, tags in texts
        ]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        write_text(path, "".join(lines))
        return
    if task.kind == EMBEDDING:
        predictions = cosines_of(predictions)
    if task.name == "stsb":
        predictions = np.clip(predictions, 0, 5)
    lines = [_HEADER]
    for example, value in zip(examples.examples, predictions, strict=True):
        if task.kind in (REGRESSION, EMBEDDING):
            text = f"{value:.3f}"
        elif task.kind == MULTI_LABEL:
            found = [names[i] for i, is_one in enumerate(value) if is_one]
            text = json.dumps(found, ensure_ascii=False)
        else:
            text = names[int(value)]
        lines.append(f"{example.id}\t{text}")
    write_text(path, "\n".join(lines) + "\n")


def read_predictions(path: str, examples: ExampleSet) -> list[str]:
    """Reads predictions as text, in the order of the examples.

    Raises:
        UserError: If the file has other examples.
    """
    header, *lines = read_text(path).replace("\r", "").rstrip("\n").split("\n")
    fields = [line.split("\t") for line in lines]
    if header != _HEADER or any(len(values) != 2 for values in fields):
        raise UserError(
            f"{path} must have two columns, index and prediction, separated "
            "by a tab",
            received=repr(header),
        )
    found = dict(fields)
    ids = [example.id for example in examples.examples]
    if sorted(name for name, _ in fields) != sorted(ids):
        raise UserError(
            f"{path} must have one prediction for each example of "
            f"{examples.source}",
            received=f"{len(fields)} for {len(ids)} examples; others are "
            + name_faults(sorted(found.keys() ^ set(ids))),
            remedy="Check that these are predictions of that file.",
        )
    return [found[name] for name in ids]


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


# --- the command -------------------------------------------------------------


def compute_scores(config: ScoreConfig) -> dict[str, float]:
    """Scores the predictions that the settings name.

    Raises:
        UserError: If a file is missing, or belongs to another task or file.
    """
    config.require("data_file", "predictions_file")
    columns = dataclasses.asdict(config.task)
    examples = read_examples(
        TaskConfig(**columns, dev_file=config.data_file), DEV
    )
    path, task = config.predictions_file, examples.task
    if task.kind == QUESTION_ANSWERING:
        answers = load_json(path)
        wrong = [type(answers).__name__]
        if isinstance(answers, dict):
            wrong = [
                f"{answer!r:.40} for {name}"
                for name, answer in answers.items()
                if not isinstance(answer, str)
            ]
        if wrong:
            raise UserError(
                f"{path} must be a JSON object with a text by question id",
                received=name_faults(wrong),
            )
        return score_answers(
            examples.examples,
            answers,
            may_be_unanswerable=task.may_be_unanswerable,
        )
    if task.kind == TOKEN_CLASSIFICATION:
        return score(task, examples.labels(), _read_tags(path, examples))
    if task.kind == EMBEDDING and None in examples.labels():
        raise UserError(
            f"{examples.source} must have values to compare cosines with",
            received=f"no column {columns['label_column']}",
            remedy="Name another --label_column.",
        )
    values = read_predictions(path, examples)
    lists = _read_lists(path, values) if task.kind == MULTI_LABEL else None
    if task.name == CLASSIFICATION:
        # A model may predict a class of its training set that the file lacks.
        found = {name for names in lists or [values] for name in names}
        others = sorted(set(filter(None, found)) - set(task.labels))
        task = dataclasses.replace(task, labels=(*task.labels, *others))
    examples.task = task
    labels = examples.labels()
    names = {name: i for i, name in enumerate(names_of(task))}
    if lists is not None:
        rows = [
            multi_hot(map(names.__getitem__, row), len(names)) for row in lists
        ]
        return score(task, labels, rows)
    is_value = task.kind in (REGRESSION, EMBEDDING)
    parse = float if is_value else names.__getitem__
    try:
        predictions = np.array(list(map(parse, values)))
        if not np.isfinite(predictions).all():
            raise ValueError("nan or inf")
    except (ValueError, KeyError) as error:
        wanted = f"one of {', '.join(names)}" if names else "a number"
        raise UserError(
            f"each prediction in {path} must be {wanted}", received=error
        ) from None
    return score(task, labels, predictions)


def _read_lists(path: str, values: Sequence[str]) -> list[list[str]]:
    """The lists of classes that `write_predictions` has written."""
    lists = []
    for value in values:
        try:
            names = json.loads(value)
        except ValueError:
            names = None
        if not (
            isinstance(names, list) and all(isinstance(n, str) for n in names)
        ):
            raise UserError(
                f'each prediction in {path} must be a list, e.g. ["joy"]',
                received=value,
            )
        lists.append(names)
    return lists


def _read_tags(path: str, examples: ExampleSet) -> list[list[str]]:
    """The predicted tags of each text, in the order of the examples."""
    config = TaskConfig(
        task=TOKEN_CLASSIFICATION,
        dev_file=path,
        id_column="id" if path.endswith(".jsonl") else "",
    )
    predicted = read_examples(config, DEV)
    found = {
        (example.id, example.words): tags
        for example, tags in zip(
            predicted.examples, predicted.labels(), strict=True
        )
    }
    wanted = [(example.id, example.words) for example in examples.examples]
    if missing := [
        name for name, words in wanted if (name, words) not in found
    ]:
        raise UserError(
            f"{path} must have the words of each example of {examples.source}",
            received=f"others for {name_faults(missing)}",
            remedy="Check that these are predictions of that file.",
        )
    return [found[key] for key in wanted]


def main(config: ScoreConfig) -> None:
    """Prints the scores of the predictions that the flags name."""
    print(json.dumps(compute_scores(config), indent=2))


if __name__ == "__main__":
    flags.run(main, ScoreConfig)
