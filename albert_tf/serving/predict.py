"""Asks an exported model about texts. The names of an export are here."""

import functools
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from albert_tf.config import TaskConfig, TextsConfig
from albert_tf.errors import UserError
from albert_tf.io import cpu, shipped
from albert_tf.io.files import exists, load_json
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.records.gaps import fill_gaps
from albert_tf.records.questions import Question, WindowMaker, find_answers
from albert_tf.records.tokenization import (
    MASK_PIECE,
    ModelInputs,
    Tokenizer,
    sequence_length,
    warn_of_cut,
)

# TensorFlow Serving reserves this directory of a SavedModel for extra files.
ASSETS_DIR = "assets.extra"
SERVING_FILE = "serving.json"

# Key of serving.json: what a client needs to answer questions.
QUESTION_ANSWERING = "question_answering"


class SentenceAnswer(NamedTuple):
    """What a sentence head answers: a signature and its outputs."""

    name: str
    outputs: tuple[str, str]  # probabilities, in the order of the labels


# By sentence objective.
SENTENCE_ANSWERS = {
    "sop": SentenceAnswer("sentence_order", ("in_order", "swapped")),
    "nsp": SentenceAnswer("next_sentence", ("next", "random")),
}

# Largest number of texts, or of windows of documents, in a request. It bounds
# the memory: a thousand long texts would take 16 GB.
_MAX_ROWS = 32

# Names of inputs -> nested lists of texts or ids.
Inputs = Mapping[str, Sequence[Any]]

# What to ask about: the texts of `TextsConfig` that a model takes, by name.
# `choice` is a list.
Row = Mapping[str, Any]


class ExportedModel:
    """A SavedModel of `export_saved_model`, and the content of serving.json."""

    def __init__(self, saved_model_dir: str) -> None:
        import tensorflow as tf

        from albert_tf.serving.text_tokenizer import import_text_ops

        saved_model_dir = shipped.in_first_model(saved_model_dir, "saved_model")
        self.assets_dir = posixpath.join(saved_model_dir, ASSETS_DIR)
        serving_file = posixpath.join(self.assets_dir, SERVING_FILE)
        if not exists(serving_file):
            raise UserError(
                "saved_model_dir must be a SavedModel of albert_tf",
                received=f"{saved_model_dir}, without {SERVING_FILE}",
                remedy="Make one with python -m albert_tf.export_saved_model.",
            )
        self.serving: dict[str, Any] = load_json(serving_file)
        warn_of_slow_products(self.serving.get("precision", ""))
        import_text_ops()
        self.model = tf.saved_model.load(saved_model_dir)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        path = posixpath.join(self.assets_dir, TOKENIZER_FILE)
        return Tokenizer(path, self.serving["do_lower_case"])

    def warn_of_cut(self, rows: Sequence[Row]) -> None:
        """Says how many rows are longer than the sequences of the model.

        For choices, the length of a row is that of its longest sequence.
        """

        def length(row: Row) -> int:
            seconds = [row["text_pair"]] if "text_pair" in row else []
            for choice in row.get("choice", ()):
                seconds.append(fill_gaps(row["question"], choice))
            first, *others = map(
                self.tokenizer.encode_with_masks, [row["text"], *seconds]
            )
            if not others:
                return sequence_length([first])
            return max(sequence_length([first, other]) for other in others)

        warn_of_cut(map(length, rows), self.serving["max_seq_length"])

    def list_signatures(self) -> list[str]:
        return sorted(self.model.signatures)

    def predict(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        """Calls a signature; returns nested lists by the name of the output."""
        import tensorflow as tf

        function = self.model.signatures[signature]
        _, specs = function.structured_input_signature
        tensors = {name: tf.constant(values) for name, values in inputs.items()}
        for name, tensor in tensors.items():
            wanted = specs[name].shape
            if not wanted.is_compatible_with(tensor.shape):
                raise UserError(
                    f"{name} must have {wanted[1]} entries for each question, "
                    "as in training",
                    received=tensor.shape[1],
                )
        return {
            name: _decode(values.numpy().tolist())
            for name, values in function(**tensors).items()
        }


def _decode(values: Any) -> Any:
    """Decodes the UTF-8 strings of nested lists; keeps numbers."""
    if isinstance(values, list):
        return [_decode(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values


def warn_of_slow_products(precision: str) -> None:
    """Warns on a CPU without instructions for bfloat16 (Linux)."""
    is_fast = cpu.has_any("amx_bf16", "avx512_bf16", "bf16")
    if precision == "mixed_bfloat16" and is_fast is False:
        logging.warning(
            "this CPU has no instructions for bfloat16: a model of "
            "mixed_bfloat16 is slower on it than one of float32"
        )


def predict_in_parts(
    model: ExportedModel, signature: str, inputs: Inputs
) -> dict[str, Any]:
    """`model.predict`, in requests of bounded size and of similar lengths."""
    (num_rows,) = {len(values) for values in inputs.values()}
    outputs: dict[str, Any] = {}
    lengths = [sum(map(len, row)) for row in zip(*inputs.values(), strict=True)]
    order = sorted(range(num_rows), key=lengths.__getitem__)
    for begin in range(0, num_rows, _MAX_ROWS):
        chosen = sorted(order[begin : begin + _MAX_ROWS])
        part = {
            name: [values[row] for row in chosen]
            for name, values in inputs.items()
        }
        for name, values in model.predict(signature, part).items():
            by_row = outputs.setdefault(name, [None] * num_rows)
            for row, value in zip(chosen, values, strict=True):
                by_row[row] = value
    return outputs


def print_responses(model: ExportedModel, texts: TextsConfig) -> None:
    """Prints the predictions of a model for texts; see `albert_tf.predict`."""
    task = find_task(model.list_signatures())
    check_texts(task, texts)
    rows = rows_of(texts)
    answers = answer_rows(model, rows)
    for row, answer in zip(rows, answers, strict=True):
        if task.signature != FILL_MASK:
            print(json.dumps(answer, ensure_ascii=False))
        elif texts.text_pair:
            name = next(iter(answer))  # in_order or next
            pair = f"{row['text']} | {row['text_pair']}"
            print(f"{answer[name]:.1%} {name.replace('_', ' ')}: {pair}")
        else:
            _print_filled(row["text"], answer["masks"])
    if task.signature == FILL_MASK and not texts.text_pair:
        without = [text for text in texts.text if MASK_PIECE not in text]
        warn_of_texts_without_mask(len(without), len(rows))


def warn_of_texts_without_mask(number: int, total: int) -> None:
    """Says how many texts have nothing to fill."""
    if number:
        logging.warning(
            "%d of %d texts have no %s, so nothing is filled in them",
            number,
            total,
            MASK_PIECE,
        )


def _print_filled(text: str, masks: Sequence[Mapping[str, float]]) -> None:
    """Prints a text and the most probable pieces of its masks."""
    print(text)
    for mask in masks:
        answers = [f"{piece} {value:.1%}" for piece, value in mask.items()]
        print("   ", "  ".join(answers))
    if num_cut_off := text.count(MASK_PIECE) - len(masks):
        print(f"    {num_cut_off} [MASK] beyond the model's max_seq_length")


def rows_of(texts: TextsConfig) -> list[dict[str, Any]]:
    """A row for each text, or for each text and question."""
    pairs, rows = texts.second_texts(), []
    for number, text in enumerate(texts.text):
        for question in texts.question or ("",):
            row: dict[str, Any] = {"text": text}
            if pairs:
                row["text_pair"] = pairs[number]
            if texts.question:
                row["question"] = question
            if texts.choice:
                row["choice"] = list(texts.choice)
            rows.append(row)
    return rows


def answer_rows(
    model: ExportedModel, rows: Sequence[Row]
) -> list[dict[str, Any]]:
    """Asks a model about rows, which all have the same texts.

    Returns:
        An answer for each row, with these keys. Pretrained model: for pairs,
        the probability of each label of the sentence head; for single texts
        `masks`, the most probable pieces of each mask and their probabilities,
        without masks that were cut off. Classification: `label`, and
        `probabilities` by label; into several classes, without `label`.
        Token classification:
        `words`, `begins` and `ends` in the text, `tags` and their
        `probabilities`. Regression: `value`. Multiple choice: `choice`,
        `choice_number` from 0, and `probabilities`, one for each choice.
        Question answering: `answer`, "" if there is none; `start` and `end`, so
        that `text[start:end]` is the answer; `score`, `null_score` and
        `null_odds`.
    """
    task = find_task(model.list_signatures())
    if task.signature == "score_spans":
        pairs = [(row["text"], row["question"]) for row in rows]
        return list(_answer_questions(model, pairs))
    names = {"choice": "choices"}
    if "question" in task.needs:
        names["text"] = "context"
    model.warn_of_cut(rows)
    inputs = {
        names.get(name, name): [row[name] for row in rows] for name in rows[0]
    }
    has_pairs = "text_pair" in rows[0]
    signature = task.of_pairs if has_pairs else task.signature
    return list(_read_answers(predict_in_parts(model, signature, inputs)))


class Task(NamedTuple):
    """What a model answers, and the settings that hold its texts."""

    signature: str
    name: str  # in words
    needs: tuple[str, ...] = ("text",)
    may_have: tuple[str, ...] = ()
    of_pairs: str = ""  # the signature of pairs of texts


FILL_MASK = "fill_mask_text"
_PAIR_SIGNATURES = {
    FILL_MASK: [
        f"{answer.name}_text_pair" for answer in SENTENCE_ANSWERS.values()
    ],
    "classify_text": ["classify_text_pair"],
    "predict_value_text": ["predict_value_text_pair"],
}
_TASKS = (
    Task(FILL_MASK, "filling masks"),
    Task("classify_text", "classification"),
    Task("predict_value_text", "regression"),
    Task("tag_text", "token classification"),
    Task("choose_text", "multiple choice", ("text", "question", "choice")),
    Task("score_spans", "question answering", ("text", "question")),
)


def find_task(signatures: Sequence[str]) -> Task:
    """What a model with these signatures answers.

    Raises:
        UserError: If it takes no texts.
    """
    for task in _TASKS:
        names = _PAIR_SIGNATURES.get(task.signature, [])
        of_pairs = next((name for name in names if name in signatures), "")
        if task.signature in signatures:
            may_have = ("text_pair",) if of_pairs else ()
            return task._replace(may_have=may_have, of_pairs=of_pairs)
        if of_pairs:
            return task._replace(
                name=f"{task.name} of pairs",
                needs=("text", "text_pair"),
                of_pairs=of_pairs,
            )
    raise UserError(
        "the model must have signatures that take text",
        received=", ".join(signatures),
        remedy="Export the run again without --notext_signatures.",
    )


def check_texts(
    task: Task, texts: TextsConfig, *, has_file: bool = False
) -> None:
    """Refuses texts that a model does not take, or lacks.

    Args:
        has_file: Whether a file has the texts that are not given.

    Raises:
        UserError: Naming what to set, and what to omit.
    """
    settings = ("text", "text_pair", "question", "choice")
    given = [setting for setting in settings if getattr(texts, setting)]
    allowed = {*task.needs, *task.may_have}
    others = [setting for setting in given if setting not in allowed]
    is_complete = has_file or set(task.needs) <= set(given)
    if is_complete and not others:
        return
    wanted = ", ".join(task.needs)
    if task.may_have:
        wanted += f", and may have {', '.join(task.may_have)}"
    remedy = "Set " + " ".join(f"--{setting}=..." for setting in task.needs)
    if others:
        remedy += ", and omit " + " ".join(f"--{name}" for name in others)
    raise UserError(
        f"a model for {task.name} must be given {wanted}",
        received=", ".join(given) or "none",
        remedy=f"{remedy}.",
    )


def _read_answers(outputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names = sorted(outputs)
    columns = [outputs[name] for name in names]
    for values in zip(*columns, strict=True):
        answer = dict(zip(names, values, strict=True))
        if "labels" in answer:
            labels = answer.pop("labels")
            answer["probabilities"] = dict(
                zip(labels, answer["probabilities"], strict=True)
            )
        if "top_pieces" in answer:
            # Masks of probability 0 pad a text with fewer masks than others.
            masks = answer["top_pieces"], answer["top_probabilities"]
            answer = {
                "masks": [
                    dict(zip(pieces, probabilities, strict=True))
                    for pieces, probabilities in zip(*masks, strict=True)
                    if probabilities[0]
                ]
            }
        if "words" in answer:  # "" pads a text with fewer words than others
            length = sum(map(bool, answer["words"]))
            answer = {name: found[:length] for name, found in answer.items()}
        yield answer


def _answer_questions(
    model: ExportedModel, pairs: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Answers questions, after their documents, as `--mode=predict` does."""
    serving = model.serving
    settings = dict(serving[QUESTION_ANSWERING])
    is_beam = settings.pop("squad_head") == "beam"
    null_threshold = settings.pop("null_threshold")
    maker = WindowMaker(
        model.tokenizer,
        TaskConfig(**settings),
        serving["max_seq_length"],
    )
    questions = [Question("", question, text) for text, question in pairs]
    rows = [
        windows.inputs(window, serving["max_seq_length"])
        for windows in map(maker.make, questions)
        for window in range(len(windows.spans))
    ]
    longest = max(int(row["input_mask"].sum()) for row in rows)
    names = [*ModelInputs._fields]
    if is_beam:
        names.append("p_mask")
    inputs = {
        name: [row[name][:longest].tolist() for row in rows] for name in names
    }
    scores = {
        name: np.array(values)
        for name, values in predict_in_parts(
            model, "score_spans", inputs
        ).items()
    }
    for name, values in scores.items():
        if values.dtype.kind == "f":
            # Sums of float32 numbers are those of --mode=predict.
            scores[name] = values.astype(np.float32)
    for answer in find_answers(questions, maker, scores):
        text, best = answer.text(null_threshold), answer.candidates[0]
        yield {
            "answer": text,
            "end": best.end if text else 0,
            "null_odds": float(np.float32(answer.null_odds)),
            "null_score": answer.null_score,
            "score": best.score,
            "start": best.begin if text else 0,
        }
