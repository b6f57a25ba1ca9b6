"""Each setting that may change in a run that continues has an effect.

A run of three steps continues once for each setting, with another value. What
it then writes and says is compared with a run that continues without a change.
"""

import os
import pathlib
import re
import shutil

import keras
import pytest
import tensorflow as tf

from albert_tf.config import PretrainingConfig
from albert_tf.config.settings import settings_by_path
from albert_tf.errors import UserError
from albert_tf.finetuning.run import run as finetune
from albert_tf.runs.log import read_events
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train
from tests.helpers import tiny_run, tiny_task
from tests.helpers.run_processes import lines_without_timing, read_variables

# Tracing the programs of a run takes ten times as long as its few steps.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eager")]

# Settings whose effect these tests do not see, and why.
UNSEEN = {
    "results are equal with both values: training/test_same_training.py": (
        "runtime jit_compile remat"
    ),
    "for the model, which is another here: modeling/": "precision",
    "only if a worker is lost or hangs: cluster/": (
        "worker_timeout_s hang_timeout_s"
    ),
    "this names the run, or allows the others to change": (
        "output_dir allow_config_change"
    ),
    "no training: test_evaluate.py, test_preflight.py, test_run.py": (
        "mode dry_run checkpoint checkpoint_step eval_sentence_objective"
    ),
    "for packed records only: training/test_packing.py": "max_examples_per_row",
    "for dynamic masking only: input/test_record_format.py": (
        "masked_lm_prob ngram"
    ),
    "the features, which their SHA-256 names: finetuning/test_features.py": (
        "text_column text_pair_column label_column id_column train_file "
        "test_file data_dir"
    ),
    "for other kinds of tasks: finetuning/test_run.py": (
        "choice_columns answer_start_column doc_stride max_query_length "
        "max_qa_length max_answer_length n_best_size null_threshold"
    ),
}

# Values for the settings that have no other value of their type.
VALUES = {
    "input_file": lambda config: (config.data.input_file[0][:-9] + "-00001*",),
    "eval_input_file": lambda config: (),
    "max_seq_length": lambda config: 24,
    "global_batch_size": lambda config: 12,
    "eval_batch_size": lambda config: 4,
    "learning_rate": lambda config: 0.5,
    "weight_decay_rate": lambda config: 0.5,
    "beta_1": lambda config: 0.5,
    "beta_2": lambda config: 0.5,
    "epsilon": lambda config: 0.1,
    "clip_norm": lambda config: 0.01,
    "strategy": lambda config: "mirrored",
    "num_logical_cpus": lambda config: 2,
    "gradient_accumulation_steps": lambda config: 2,
    "keep_checkpoint_max": lambda config: 1,
    "save_checkpoints_minutes": lambda config: 1e-6,
    "divergence_loss_increase": lambda config: 1e-6,
    "profile_steps": lambda config: "4:5",
    "dropout_schedule": lambda config: "0:0.1,4:0.0",
    "dev_file": lambda config: shorter_file(config),
}
# Settings whose change ends the run, and a word of the error.
ENDS = {
    "max_seq_length": "max_seq_length",
    "max_predictions_per_seq": "max_predictions_per_seq",
    "packing": "packing",
    "input_lanes": "input_lanes",
    "divergence_loss_increase": "divergence_loss_increase",
}
# Settings whose change a line of the log explains, and words of it.
SAYS = {
    "global_batch_size": "settings of the input have changed",
    "shuffle_block_size": "settings of the input have changed",
    "seed": "settings of the input have changed",
    "eval_batch_size": "may be of other held-out examples",
    "max_eval_steps": "may be of other held-out examples",
    "dev_file": "may be of other held-out examples",
}


def shorter_file(config):
    """The first examples of a run, in another file."""
    source = pathlib.Path(config.task.train_file)
    path = pathlib.Path(config.training.output_dir).with_name("shorter.jsonl")
    path.write_text("".join(source.read_text().splitlines(True)[:9]))
    return str(path)


def other_value(config, field):
    """A value that a setting does not have."""
    name = field.name
    value = next(
        getattr(group, name)
        for group in vars(config).values()
        if hasattr(group, name)
    )
    if name in VALUES:
        return VALUES[name](config)
    if field.metadata["choices"]:
        return next(v for v in field.metadata["choices"] if v != value)
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int | float), f"give VALUES a value of {name}"
    return value + 1 if isinstance(value, int) else value + 0.3


def observe(run, config, caplog):
    """All that a run writes and says, without times and without settings."""
    caplog.clear()
    try:
        run(config)
    except UserError as error:
        return str(error)
    said = [
        re.sub(r"[\d.]+ s\b", "", record.getMessage())
        for record in caplog.records
        if record.name == "absl"
    ]
    run_dir = config.training.output_dir
    events = [(event["event"], event["step"]) for event in read_events(run_dir)]
    weights = read_variables(run_dir)
    return {
        "weights": {name: v.tobytes() for name, v in weights.items()},
        "log": lines_without_timing(run_dir),
        "checkpoints": sorted(os.listdir(f"{run_dir}/checkpoints")),
        "events": events,
        "said": [
            line
            for line in said
            if not line.startswith(
                ("step ", "changed since", "configuration: ")
            )
        ],
    }


def find_settings_without_effect(run, config, skipped, caplog, tmp_path):
    """The settings of a run whose change nothing shows."""
    caplog.set_level("INFO", "absl")
    run(config)
    begun = tmp_path / "begun"
    shutil.move(config.training.output_dir, begun)
    steps = config.training.num_train_steps + 3
    config = config.replace(num_train_steps=steps, allow_config_change=True)

    def continued(**change):
        shutil.rmtree(config.training.output_dir, ignore_errors=True)
        shutil.copytree(begun, config.training.output_dir)
        try:
            changed = config.replace(**change)
        except UserError as error:
            return str(error)
        return observe(run, changed, caplog)

    unchanged = continued()
    assert isinstance(unchanged, dict), unchanged
    assert continued() == unchanged, "the comparison must be exact"
    skipped = {*skipped, *" ".join(UNSEEN.values()).split()}
    found = []
    for path, field in settings_by_path(type(config)).items():
        name, affects = field.name, field.metadata["affects"]
        if (
            not field.metadata["has_flag"]
            or affects in ("model", "start")
            or path in skipped
            or name in skipped
        ):
            continue
        seen = continued(**{name: other_value(config, field)})
        wanted = ENDS.get(name)
        if isinstance(seen, str) != bool(wanted) or seen == unchanged:
            found.append(name if isinstance(seen, dict) else (name, seen))
        elif wanted and wanted not in seen:
            found.append((name, seen))
        elif name in SAYS and SAYS[name] not in "".join(seen["said"]):
            found.append((name, seen["said"]))
    return found


class WordsOnly(keras.layers.Layer):
    """Predicts masked tokens from nothing; traced in a tenth of a second."""

    def build(self):
        self.table = self.add_weight(shape=(400, 4), name="table")

    def call(self, batch, dropout, target):
        tokens = tf.gather(self.table.value, batch["input_ids"])
        tokens = dropout.hidden_masks(0, target).apply(tokens)
        tokens = dropout.attention_masks(1, target).apply(tokens)
        masked = tf.gather(tokens, batch["masked_lm_positions"], batch_dims=1)
        return {"mlm_logits": masked @ tf.transpose(self.table.value)}


class PretrainingOfWords(Pretraining):
    def make_model(self):
        model = WordsOnly(name="words")
        model.build()
        return model


def test_a_continued_pretraining_shows_each_changed_setting(
    tiny_records, tmp_path, caplog
):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "run",
        num_train_steps=3,
        steps_per_loop=1,
        strategy="auto",
        sentence_objective="none",
    )
    found = find_settings_without_effect(
        lambda config: train(config, PretrainingOfWords(config)),
        *(config, (), caplog, tmp_path),
    )
    assert found == []


def test_a_continued_finetuning_shows_each_changed_setting_of_its_own(
    tiny_tasks, tmp_path, caplog
):
    """The others have the code of pretraining."""
    config = tiny_task.make_config(
        *("classification", tiny_tasks, tmp_path / "run"),
        **tiny_task.SHORT | {"num_train_steps": 3},
    )
    shared = set(settings_by_path(PretrainingConfig))
    found = find_settings_without_effect(
        finetune, config, shared, caplog, tmp_path
    )
    assert found == []
