r"""Predict with an exported SavedModel.

    python -m albert_tf.export_saved_model \
      --run_dir=runs/sst2 --export_dir=export/sst2
    python -m albert_tf.predict --saved_model_dir=export/sst2 \
      --text='A film to remember.'

For a fine-tuned model, the command prints a JSON object for each text. Give
--text once per text.

Classification and regression, here of pairs: the label and the probability of
each label, or the value:

    --text='It rained.' --text_pair='The sun shone.'
    {"label": "contradiction", "probabilities": {"contradiction": 0.97, ...}}

Question answering: the answer, which is text[start:end]. `score` is the sum of
the logits of its first and last token, or with --squad_head=beam of their log
probabilities. The answer is "" if `null_odds` exceeds the null threshold of the
run:

    --text='Basel lies on the Rhine.' --question='Where is Basel?'
    {"answer": "on the Rhine", "end": 23, "null_odds": -6.1,
     "null_score": 0.2, "score": 6.3, "start": 11}

Token classification: the words, their characters, and their tags:

    --text='It is in Bern.'
    {"begins": [0, ...], "ends": [2, ...], "probabilities": [0.99, ...],
     "tags": ["O", "O", "O", "B-LOC", "O"], "words": ["It", ...]}

Multiple choice: the best choice, its number from 0, and the probability of each
choice. There must be as many choices as in training:

    --text='Tom fell into the river.' --question='How is he?' \
      --choice=wet --choice=dry
    {"choice": "wet", "choice_number": 0, "probabilities": [0.98, 0.02]}

Give --question once per question; each is asked about each text.

A model that is only pretrained fills masks or, given --text_pair, prints the
probability that the second text follows the first:

    --text='She opened the door.' --text_pair='It was dark inside.'
    71.3% in order: She opened the door. | It was dark inside.

With --input_file, the texts are the lines of a .txt file, or the rows of a
table, whose columns have the names of the flags; --question and --choice hold
for rows without such a column. The command prints a JSON object for each row,
or writes it to --output_file, which appears when it is complete: the columns
of the row, and those of the answer. A bad row is refused before the first
prediction. Memory is bounded, but for a JSON array.

    --input_file=reviews.csv --output_file=answers.jsonl
    {"id": "17", "text": "A film to remember.", "predicted_label": "positive",
     "predicted_probabilities": {...}}

The command needs tensorflow-text.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from tqdm import tqdm

from albert_tf.cluster import versions
from albert_tf.config import PredictConfig, TextsConfig, flags
from albert_tf.errors import UserError
from albert_tf.io.files import atomic_write
from albert_tf.records.tokenization import MASK_PIECE
from albert_tf.serving.predict import (
    FILL_MASK,
    ExportedModel,
    Row,
    answer_rows,
    check_texts,
    find_task,
    print_responses,
    rows_of,
    warn_of_texts_without_mask,
)

# Of the names of answers beside the columns of a row.
_PREFIX = "predicted_"

# Rows that are sorted by length and answered at a time, which bounds memory.
_NUM_ROWS = 1024

_Row: TypeAlias = tuple[dict[str, Any], Row]  # as read; what the model takes
_R = TypeVar("_R")


def main(config: PredictConfig) -> None:
    """Prints or writes the answers of an exported model to texts."""
    config.require("saved_model_dir")
    if not config.input_file:
        config.require("text")
    versions.import_tensorflow()
    model = ExportedModel(config.saved_model_dir)
    if not config.input_file:
        print_responses(model, config)
        return
    output = config.output_file
    if output and os.path.realpath(output) == os.path.realpath(
        config.input_file
    ):
        raise UserError("output_file must not be input_file", received=output)
    task = find_task(model.list_signatures())
    check_texts(task, config, has_file=True)
    columns = task.needs, task.may_have
    num_rows = num_without_mask = 0
    for _, texts in _read(config, *columns):  # refuses a bad row
        num_rows += 1
        num_without_mask += MASK_PIECE not in texts["text"]
    if task.signature == FILL_MASK and "text_pair" not in texts:
        warn_of_texts_without_mask(num_without_mask, num_rows)

    def answer_part(part: Sequence[_Row]) -> list[dict[str, Any]]:
        answers = answer_rows(model, [texts for _, texts in part])
        return [
            _join(row, found)
            for (row, _), found in zip(part, answers, strict=True)
        ]

    rows = _read(config, *columns)
    write_answers(rows, num_rows, answer_part, config.output_file)


def _join(row: Row, found: Mapping[str, Any]) -> dict[str, Any]:
    """A row and its answer, which has names of its own."""
    named = {f"{_PREFIX}{name}": value for name, value in found.items()}
    known = [name for name in named if name in row]
    if known:
        raise UserError(
            "rows must not have columns with the names of answers",
            received=", ".join(known),
        )
    return {**row, **named}


def write_answers(
    rows: Iterator[_R],
    num_rows: int,
    answer_part: Callable[[list[_R]], Iterable[dict[str, Any]]],
    output_file: str,
) -> None:
    """Writes a JSON line for each row of a file, in bounded memory.

    Args:
        num_rows: Their number, for the progress bar.
        answer_part: Returns what to write for a part of the rows.
        output_file: Appears when it is complete; "" prints the lines.
    """

    def write_lines() -> Iterator[str]:
        with tqdm(total=num_rows, unit="row", mininterval=1.0) as progress:
            while part := list(itertools.islice(rows, _NUM_ROWS)):
                for answer in answer_part(part):
                    # Columns of Parquet may have dates and the like.
                    line = json.dumps(answer, ensure_ascii=False, default=str)
                    # An unpaired surrogate has no UTF-8, but JSON an escape.
                    encoded = line.encode(errors="backslashreplace")
                    yield f"{encoded.decode()}\n"
                progress.update(len(part))

    if output_file:
        with atomic_write(output_file) as file:
            file.writelines(map(str.encode, write_lines()))
    else:
        sys.stdout.writelines(write_lines())


def _read(
    config: PredictConfig, needs: Sequence[str], may_have: Sequence[str]
) -> Iterator[_Row]:
    """Reads the file; `needs` and `may_have` are the texts of the model."""
    path = config.input_file
    # Imports TensorFlow.
    from albert_tf.finetuning.examples import read_rows

    found: Iterable[tuple[str, Any]]
    if path.endswith(".txt"):
        found = read_plain(path)
    else:
        found = read_rows(path, "--input_file", wanted=["text"])
    defaults = rows_of(TextsConfig(("",), (), config.question, config.choice))
    for default in defaults:
        del default["text"]
    # Of the texts, in all rows as in the first one.
    names: list[str] = []
    num_choices = 0
    for where, values in found:
        fault = values if isinstance(values, str) else ""
        columns = {} if isinstance(values, str) else values
        # A row with a question of its own is asked only that one.
        for default in defaults[:1] if "question" in columns else defaults:
            row = {**default, **columns}
            given = [name for name in may_have if name in row]
            names = names or [*needs, *given]
            others = [name for name in given if name not in names]
            if others and not fault:
                fault = f"{', '.join(others)}, which the first row lacks"
            fault = fault or _find_fault(row, names)
            if "choice" in names and not fault:
                count = len(row["choice"])
                num_choices = num_choices or count
                if count != num_choices:
                    fault = f"{count} choices, and {num_choices} in the first"
            if fault:
                raise UserError(
                    f"{path} must have rows with {', '.join(names)}",
                    received=f"{where}: {fault}",
                    remedy="Name the columns like the flags, or mend the row.",
                )
            yield row, {name: row[name] for name in names}
    if not names:
        raise UserError(f"{path} must have rows", received="none")


def read_plain(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each line of a file that is not empty is, and its text."""
    # Imports TensorFlow.
    from albert_tf.finetuning.examples import read_lines

    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield f"line {number}", {"text": line.removesuffix("\r")}


def _find_fault(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Why a model cannot take a row; "" if it can."""
    for name in names:
        if name not in row:
            return f"no {name}"
        texts = row[name] if name == "choice" else [row[name]]
        if not isinstance(texts, list) or not all(
            isinstance(text, str) for text in texts
        ):
            return f"{name} is {row[name]!r:.40}"
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            return f"{name} has an unpaired surrogate"
    return ""


if __name__ == "__main__":
    flags.run(main, PredictConfig)
