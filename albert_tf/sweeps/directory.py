"""The directory of a sweep, which belongs to one sweep only."""

from typing import Any

from albert_tf.config import PretrainingConfig, flatten, settings_by_path
from albert_tf.errors import UserError, name_faults
from albert_tf.io.files import find, load_json_if_any, write_json
from albert_tf.sweeps.plan import Plan

SWEEP_FILE = "sweep.json"


def claim_directory(sweep_dir: str, plan: Plan) -> None:
    """Stores the settings of all runs in the `sweep.json` of the directory.

    Raises:
        UserError: If the directory belongs to another sweep, holds something
            else, or if the settings of a run have changed.
    """
    path = f"{sweep_dir.rstrip('/')}/{SWEEP_FILE}"
    stored = load_json_if_any(path)
    settings = {run.name: _result_settings(run.config) for run in plan.runs}
    if stored is None:
        others = find(f"{sweep_dir.rstrip('/')}/*")
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
    for name in set(stored) & set(settings):
        before = defaults | stored[name]
        changed = [
            f"{key} was {before[key]!r} and is {value!r}"
            for key, value in settings[name].items()
            if before[key] != value
        ]
        if changed:
            raise UserError(
                f"the sweep in {sweep_dir} must continue with its own settings",
                received=f"run {name}: {name_faults(changed)}",
                remedy="Restore them or choose another --output_dir.",
            )
    write_json(path, stored | settings)


def _result_settings(config: PretrainingConfig) -> dict[str, Any]:
    """The settings that affect the result, by dotted name."""
    settings = settings_by_path(PretrainingConfig)
    return {
        name: value
        for name, value in flatten(config.to_dict()).items()
        if settings[name].metadata["affects"] != "nothing"
    }
