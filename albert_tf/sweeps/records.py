"""The records of all runs of a sweep, checked before the first run."""

import dataclasses
import json

from albert_tf.errors import UserError, name_faults
from albert_tf.input import record_sets
from albert_tf.io.files import find
from albert_tf.sweeps.plan import Plan


def check_records(plan: Plan) -> None:
    """Checks the records of all runs and evaluations against their settings.

    Raises:
        UserError: Naming a run without training records, an evaluation without
            held-out records, the patterns without a file, or records that do
            not fit a run.
    """
    patterns: dict[str, None] = {}
    for run in plan.runs:
        for name, config in {"": run.config, **run.evaluations}.items():
            data = config.data
            if name and not data.eval_input_file:
                raise UserError(
                    f"evaluation {name} of run {run.name} must have held-out "
                    "records",
                    received="no --eval_input_file",
                    remedy="Set it in --base_flags or in --evaluation.",
                )
            if not name:
                if not (
                    data.input_file
                    or data.data_schedule
                    or data.synthetic_input
                ):
                    raise UserError(
                        f"run {run.name} must have training records",
                        received="no --input_file",
                        remedy="Set --input_file in --base_flags or in its "
                        "--variant, e.g. "
                        "--base_flags='--input_file=records/train/*.tfrecord'.",
                    )
                patterns |= dict.fromkeys(data.input_file)
                for files in data.datasets().values():
                    patterns |= dict.fromkeys(files)
            patterns |= dict.fromkeys(data.eval_input_file)
    missing = [p for p in patterns if not find(p, remote_directories=True)]
    if missing:
        raise UserError(
            "all records of a sweep must exist before it starts",
            received="no file matches " + name_faults(missing),
            remedy="Check --records_dir.",
        )
    _check_settings_of_records(plan)


def _check_settings_of_records(plan: Plan) -> None:
    """Checks that the records of each run can be read with its settings."""
    checked = set()
    for run in plan.runs:
        for name, config in {"": run.config, **run.evaluations}.items():
            # Runs often differ in other settings only.
            key = json.dumps(
                [
                    bool(name),
                    dataclasses.asdict(config.data),
                    config.model.vocab_size,
                    config.training.sentence_objective,
                    config.training.eval_sentence_objective,
                ]
            )
            if key in checked:
                continue
            checked.add(key)
            source = f"evaluation {name} of run" if name else "run"
            try:
                if not (name or config.data.synthetic_input):
                    record_sets.find_training_data(config)
                if config.data.eval_input_file:
                    record_sets.find_held_out(config)
            except UserError as error:
                raise UserError(f"{source} {run.name}: {error}") from None
