"""Passes the metrics of a run on to Weights & Biases or MLflow.

Their environment variables choose server, account and project. A resumed run
continues the same run there. Of steps that are trained again, wandb keeps the
first values, MLflow all.
"""

import contextlib
import importlib.util
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging

from albert_tf.config import PretrainingConfig, flatten
from albert_tf.errors import UserError, first_line
from albert_tf.runs.log import RunLog, read_events

NONE = "none"

# The id of the run; logs metrics of a step; ends the run, well or not.
_Tracked = tuple[str, Callable[..., Any], Callable[[bool], Any]]


def check_installed(tracker: str) -> None:
    """Refuses a tracker whose library is missing."""
    if tracker != NONE and importlib.util.find_spec(tracker) is None:
        raise UserError(
            f"tracker={tracker} needs the package {tracker}",
            received="not installed",
            remedy=f"pip install 'albert-tf[{tracker}]'",
        )


@contextlib.contextmanager
def tracking(
    config: PretrainingConfig, run_log: RunLog | None, step: int
) -> Iterator[None]:
    """Passes on the metrics that are logged within the block.

    Raises:
        UserError: If the library opens no run. Later errors are logged only.
    """
    tracker, run_dir = config.training.tracker, config.training.output_dir
    if tracker == NONE or run_log is None:
        yield
        return
    events = read_events(run_dir)
    known = [e["id"] for e in events if e.get("tracker") == tracker]
    open_run = {"wandb": _open_wandb, "mlflow": _open_mlflow}[tracker]
    title = posixpath.basename(run_dir.rstrip("/"))
    try:
        run_id, log, close = open_run(
            title, config.to_dict(), known[-1] if known else None
        )
    except Exception as error:
        raise UserError(
            f"{tracker} must open a run",
            received=first_line(error),
            remedy=f"See the documentation of {tracker}.",
        ) from error
    if not known:
        run_log.write_event("tracker", step, tracker=tracker, id=run_id)

    def pass_on(split: str, step: int, metrics: Mapping[str, float]) -> None:
        try:
            log({f"{split}/{n}": float(v) for n, v in metrics.items()}, step)
        except Exception as error:
            logging.error("step %d NOT TRACKED: %s", step, first_line(error))

    run_log.listeners.append(pass_on)
    ended_well = False
    try:
        yield
        ended_well = True
    finally:
        close(ended_well)


def _open_wandb(title: str, settings: Any, run_id: str | None) -> _Tracked:
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "albert_tf"),
        name=title,
        id=run_id,
        resume="allow",
        config=settings,
        allow_val_change=True,
    )
    return run.id, run.log, lambda well: run.finish(0 if well else 1)


def _open_mlflow(title: str, settings: Any, run_id: str | None) -> _Tracked:
    import mlflow

    run = mlflow.start_run(run_id, run_name=title)
    if run_id is None:  # MLflow refuses changes
        mlflow.log_params(flatten(settings))
    return (
        run.info.run_id,
        mlflow.log_metrics,
        lambda well: mlflow.end_run("FINISHED" if well else "FAILED"),
    )
