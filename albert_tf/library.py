"""The interface for notebooks: recipes, training, masked words, embeddings.

import albert_tf

config = albert_tf.recipe("mini_en_16", output_dir="runs/mini")
result = albert_tf.train(config)
result.plot()
model, tokenizer = albert_tf.load("runs/mini")
albert_tf.fill_mask(model, tokenizer, "The [MASK] barked.")
"""

import contextlib
import html
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging as absl_logging
from tqdm.auto import tqdm

from albert_tf.config import (
    FinetuningConfig,
    PretrainingConfig,
    flags,
    settings_by_path,
)
from albert_tf.errors import UserError, did_you_mean
from albert_tf.io import shipped
from albert_tf.records.features import MASK_ID
from albert_tf.records.tokenization import MASK_PIECE, Tokenizer, encode
from albert_tf.runs.log import read_metrics

if TYPE_CHECKING:
    from albert_tf.modeling.models import AlbertForTask, AlbertPretrainer
    from albert_tf.training.objective import Objective

_PROGRESS = re.compile(r"step (\d+)/(\d+) \(.*?\) \| (loss .*?) \|.* steps/s")
_ROWS_SHOWN = 10
_BATCH_SIZE = 32


def recipe(name: str, **values: Any) -> PretrainingConfig | FinetuningConfig:
    """The settings of a recipe, with some changed.

    Args:
        name: A recipe of configs/, e.g. "base_v2_125k" or "mnli", or the path
            of a flag file.
        values: Settings by name, also those of the architecture.

    Raises:
        UserError: For an unknown recipe or setting, or an invalid value.
    """
    words = shipped.expand([f"--flagfile={name}"])
    is_task = any(word.startswith("--task=") for word in words)
    config_class = FinetuningConfig if is_task else PretrainingConfig
    config = flags.parse_line(config_class, words)
    try:
        return config.replace(**values)
    except TypeError:
        known = {path.split(".")[-1] for path in settings_by_path(config_class)}
        unknown = next(name for name in values if name not in known)
        raise UserError(
            "values must be settings",
            received=unknown,
            remedy=did_you_mean(unknown, known),
        ) from None


class Metrics(dict[str, list[Any]]):
    """A table of metrics: a list of values for each name, None where missing.

    `pandas.DataFrame(metrics)` makes a data frame. The columns "split" and
    "step" tell the lines of training ("train") and evaluation ("eval") apart.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = list(rows)
        names = dict.fromkeys(name for row in rows for name in row)
        super().__init__({n: [row.get(n) for row in rows] for n in names})

    def of(self, split: str) -> "Metrics":
        """The lines of "train" or "eval"."""
        return Metrics([row for row in self.rows if row["split"] == split])

    def __repr__(self) -> str:
        return f"{len(self.rows)} lines of {', '.join(self)}"

    def _repr_html_(self) -> str:
        def line(tag: str, cells: Sequence[Any]) -> str:
            texts = (
                f"{cell:.4g}" if isinstance(cell, float) else str(cell)
                for cell in cells
            )
            return "".join(f"<{tag}>{html.escape(t)}</{tag}>" for t in texts)

        lines = [line("th", [*self])]
        lines += [
            line("td", [row.get(name, "") for name in self])
            for row in self.rows[-_ROWS_SHOWN:]
        ]
        return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>"


class Picture(bytes):
    """A PNG that a notebook shows; write it with `open(path, "wb")`."""

    def _repr_png_(self) -> bytes:
        return bytes(self)


class TrainingResult:
    """The end of a training.

    Attributes:
        run_dir: The run directory, which `load` reads.
        status: 0 after the last step; see `training.train.train`.
        metrics: What the run has logged, as a table.
    """

    def __init__(self, run_dir: str, status: int) -> None:
        self.run_dir, self.status = run_dir, status
        self.metrics = Metrics(read_metrics(run_dir))

    def plot(self, *names: str) -> Picture:
        """Draws some metrics, or all, as `python -m albert_tf.report` does."""
        from albert_tf.report import curves, runs

        return Picture(curves.picture(runs.read_runs([self.run_dir]), names))

    def __repr__(self) -> str:
        last = self.metrics.rows[-1] if self.metrics.rows else {}
        loss = f", loss {last['loss']:.3f}" if "loss" in last else ""
        return f"{self.run_dir}: step {last.get('step', 0)}{loss}"


def train(
    config: PretrainingConfig | FinetuningConfig,
    objective: "Objective | None" = None,
) -> TrainingResult:
    """Trains, or resumes training, and shows the progress.

    Args:
        config: Settings of pretraining, or of fine-tuning on a task.
        objective: An objective of your own; see `training.objective`.

    Raises:
        UserError: For settings, records or checkpoints that do not fit, and for
            a run that diverges.
    """
    began = time.time()
    with _progress_bar(config.training.num_train_steps):
        if isinstance(config, FinetuningConfig):
            from albert_tf.finetuning.run import run

            config.require("task", "output_dir")
            status = run(config, began)
        else:
            from albert_tf.training.train import train as train_run

            status = train_run(config, objective, began=began)
    return TrainingResult(config.training.output_dir, status)


@contextlib.contextmanager
def _progress_bar(num_steps: int) -> Iterator[None]:
    """Shows the lines of progress as a bar, and warnings as they are."""
    logger, verbosity = logging.getLogger("absl"), absl_logging.get_verbosity()
    with tqdm(total=num_steps, unit="step", postfix="starting") as bar:

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                found = _PROGRESS.match(record.getMessage())
                if found:
                    bar.set_postfix_str(found[3], refresh=False)
                    bar.total = int(found[2])
                    bar.update(int(found[1]) - bar.n)
                elif record.levelno > logging.INFO:
                    bar.write(record.getMessage())

        handlers, propagate = logger.handlers, logger.propagate
        logger.handlers, logger.propagate = [Handler()], False
        absl_logging.set_verbosity(absl_logging.INFO)
        try:
            yield
        finally:
            logger.handlers, logger.propagate = handlers, propagate
            absl_logging.set_verbosity(verbosity)


def _check_texts(texts: Any) -> list[str]:
    """Refuses what is no text, such as an empty cell or half of an emoji."""
    if not isinstance(texts, Iterable):
        raise UserError("texts must be strings", received=repr(texts))
    found = [texts] if isinstance(texts, str) else list(texts)
    for text in found:
        if not isinstance(text, str):
            raise UserError("each text must be a string", received=repr(text))
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                "texts must not have unpaired surrogates",
                received=f"{text[error.start]!r} at character {error.start}",
            ) from None
    return found


def fill_mask(
    model: "AlbertPretrainer",
    tokenizer: Tokenizer,
    text: str | Sequence[str],
    top_k: int = 5,
) -> list[Any]:
    """Predicts the masked words of a text.

    Args:
        model, tokenizer: From `load`.
        text: A text with at least one [MASK], or several such texts.
        top_k: Number of predictions for a mask.

    Returns:
        For each mask, the probabilities of the most probable pieces, in order,
        as a dictionary; for several texts, a list of such lists.

    Raises:
        UserError: If the model is fine-tuned, or if the text has no [MASK] or
            one beyond the longest sequence of the training.
    """
    if not hasattr(model, "masked_lm"):
        raise UserError("the model must fill masks", "a fine-tuned model")
    texts = _check_texts(text)
    if not isinstance(text, str):
        return [fill_mask(model, tokenizer, each, top_k) for each in texts]
    if MASK_PIECE not in text:
        raise UserError("the text must contain [MASK]", received=text)
    length = model.max_seq_length
    tokenizer.warn_of_cut([[text]], length)
    inputs = encode(tokenizer, text, max_seq_length=length)
    positions = np.flatnonzero(inputs.input_ids[0] == MASK_ID)
    if len(positions) < text.count(MASK_PIECE):
        raise UserError(
            f"each [MASK] must be within {length} tokens",
            received=f"{text.count(MASK_PIECE) - len(positions)} beyond them",
            remedy="Shorten the text.",
        )
    batch = {**inputs._asdict(), "masked_lm_positions": positions[np.newaxis]}
    logits = np.asarray(model(batch)["mlm_logits"])[0]
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return [
        {
            tokenizer.id_to_piece(int(i)): float(row[i])
            for i in np.argsort(-row, kind="stable")[:top_k]
        }
        for row in shares
    ]


def embed(
    model: "AlbertPretrainer | AlbertForTask",
    tokenizer: Tokenizer,
    texts: str | Sequence[str],
    normalize: bool = False,
) -> np.ndarray:
    """Embeddings of texts: the mean of the last hidden states of their tokens.

    Of a pretrained model, they compare texts better than `pooled_output`, which
    is trained to tell the order of passages.

    Args:
        normalize: Whether to divide each embedding by its length, so that a
            product of two is the cosine of their angle.

    Returns:
        float32, `(texts, H)`.

    Raises:
        UserError: If a text is no string.
    """
    texts = _check_texts(texts)
    length = model.max_seq_length
    tokenizer.warn_of_cut(([text] for text in texts), length)
    found = [np.zeros([0, model.config.hidden_size], np.float32)]
    for first in range(0, len(texts), _BATCH_SIZE):
        part = texts[first : first + _BATCH_SIZE]
        inputs = encode(tokenizer, part, max_seq_length=length)
        hidden, _ = model.backbone(*inputs)
        mask = inputs.input_mask[..., np.newaxis].astype(np.float32)
        hidden = np.asarray(hidden, np.float32) * mask
        found.append(hidden.sum(1) / mask.sum(1))
    embeddings = np.concatenate(found)
    if normalize:
        embeddings /= np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings
