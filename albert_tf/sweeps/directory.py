"""The directory of a sweep, which belongs to one sweep only."""

from collections.abc import Mapping
from typing import Any

from albert_tf.config import (
    DataConfig,
    PretrainingConfig,
    flatten,
    settings_by_path,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.io.files import list_files, load_json_if_any, write_json
from albert_tf.sweeps.plan import Plan

SWEEP_FILE = "sweep.json"

# Settings that do not affect the training, but the metrics of an evaluation.
_EVAL_FILES = "data.eval_input_file"
_EVAL_SETTINGS = ("checkpoint_step", "eval_sentence_objective")


def claim_directory(sweep_dir: str, plan: Plan) -> None:
    """Stores the settings of all runs in the `sweep.json` of the directory.

    Raises:
        UserError: If the directory belongs to another sweep, holds something
            else, or if the settings of a run, or of the evaluations that it
            does while it trains, have changed.
    """
    path = f"{sweep_dir.rstrip('/')}/{SWEEP_FILE}"
    stored = load_json_if_any(path)
    settings = {run.name: _result_settings(run.config) for run in plan.runs}
    if stored is None:
        others = list_files(sweep_dir, "*")
        if others:
            raise UserError(
                "output_dir must be new or hold this sweep",
                received=f"{sweep_dir}, which holds {name_faults(others)}",
            )
        stored = {}
    elif not set(stored) & set(settings):
        raise UserError(
            "output_dir must be new or hold this sweep",
            received=f"{sweep_dir}, a sweep with the runs "
            + name_faults(list(stored)),
            remedy="Choose another --output_dir.",
        )
    # A setting that is newer than the sweep had its default.
    defaults = _result_settings(PretrainingConfig())
    for run in plan.runs:
        if run.name not in stored:
            continue
        before = defaults | stored[run.name]
        now = settings[run.name]
        # The run has stored its settings; sweep.json has only those of the
        # training.
        started = load_json_if_any(f"{run.run_dir(sweep_dir)}/config.json")
        if started is not None:
            before |= _held_out_settings(DataConfig.from_dict(started["data"]))
            now = now | _held_out_settings(run.config.data)
        changed = [
            f"{key} was {before[key]!r} and is {value!r}"
            for key, value in now.items()
            if key in before and before[key] != value
        ]
        if changed:
            raise UserError(
                f"the sweep in {sweep_dir} must continue with its own settings",
                received=f"run {run.name}: {name_faults(changed)}",
                remedy="Restore them, rename the changed variants, or choose "
                "another --output_dir.",
            )
    write_json(path, stored | settings)


def evaluation_settings(config: PretrainingConfig) -> dict[str, Any]:
    """Returns the settings that affect a further evaluation, by dotted name.

    Args:
        config: All settings of the evaluation.

    Example:
        >>> settings = evaluation_settings(PretrainingConfig())
        >>> settings["training.eval_sentence_objective"]
        'same'
        >>> "training.steps_per_loop" in settings
        False
    """
    return {
        **_result_settings(config),
        **_held_out_settings(config.data),
        **{
            f"training.{name}": getattr(config.training, name)
            for name in _EVAL_SETTINGS
        },
    }


def has_evaluation_settings(
    stored: Mapping[str, Any], config: PretrainingConfig
) -> bool:
    """Whether stored `evaluation_settings` are those of `config`."""
    # A setting that is newer than the evaluation had its default.
    defaults = evaluation_settings(PretrainingConfig())
    return defaults | dict(stored) == evaluation_settings(config)


def _held_out_settings(data: DataConfig) -> dict[str, Any]:
    """The settings that choose the examples of an evaluation, by dotted name.

    Their values are those of JSON.
    """
    limits = data.evaluation_limits() if data.eval_input_file else {}
    return {
        _EVAL_FILES: list(data.eval_input_file),
        **{f"data.{name}": value for name, value in limits.items()},
    }


def _result_settings(config: PretrainingConfig) -> dict[str, Any]:
    """The settings that affect the result, by dotted name."""
    settings = settings_by_path(PretrainingConfig)
    return {
        name: value
        for name, value in flatten(config.to_dict()).items()
        if settings[name].metadata["affects"] != "nothing"
    }
