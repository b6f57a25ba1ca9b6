"""Run directories written line by line, for tests of the report."""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from albert_tf.report.runs import RunHistory


def write_lines(path: pathlib.Path, lines: Iterable[Mapping]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(
    directory: pathlib.Path,
    losses: Sequence[float],
    events: Sequence[Mapping] = (),
    settings: Mapping | None = None,
    **metrics: Sequence[float],
) -> str:
    """Writes two lines per step, of training with `metrics` and evaluation."""
    directory.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for step, loss in enumerate(losses):
        line = {
            "step": step,
            "masked_lm_loss": loss,
            "masked_lm_accuracy": 0.25,
            "sentence_order_loss": 0.7,
            "sentence_order_accuracy": 0.5,
        }
        rates = {"learning_rate": 0.001, "dropout": 0.1}
        timed = {name: values[step] for name, values in metrics.items()}
        evaluation = {"loss": loss + 0.7}
        if "evaluation_seconds" in timed:
            evaluation["evaluation_seconds"] = timed.pop("evaluation_seconds")
        lines.append({"split": "train", **line, **rates, **timed})
        lines.append({"split": "eval", **evaluation, **line})
    write_lines(directory / "metrics.jsonl", lines)
    if events:
        write_lines(directory / "events.jsonl", events)
    if settings is not None:
        (directory / "config.json").write_text(json.dumps(settings))
    metadata = {"unigram_entropy_nats": 6.5}
    (directory / "records_metadata.json").write_text(json.dumps(metadata))
    return str(directory)


def read_run(*args: Any, **kwargs: Any) -> RunHistory:
    """Writes a run as `write_run` and reads it."""
    run_dir = write_run(*args, **kwargs)
    return RunHistory(run_dir, pathlib.Path(run_dir).name)


SETTINGS = {
    "data": {"global_batch_size": 8, "max_seq_length": 32},
    "training": {"sentence_objective": "sop", "num_train_steps": 400},
}
