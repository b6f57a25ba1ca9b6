"""Every setting of a run that is continued takes effect."""

import collections
import shutil
import sys

import pytest

from albert_tf.config import FinetuningConfig, PretrainingConfig
from albert_tf.config.settings import Config, settings_by_path
from albert_tf.finetuning.run import run as finetune
from albert_tf.runs.directory import load_config
from albert_tf.training.train import train
from tests.helpers import tiny_run, tiny_task

# Settings that a continued run of these tests does not read, and why.
UNREAD = {
    "the start of a run; a change is refused": (
        "init_checkpoint init_vocabulary init_optimizer_state from_scratch"
    ),
    "read by a method of the settings": "dropout_schedule profile_steps",
    "other devices": "worker_timeout_s hang_timeout_s",
    "other modes": "checkpoint checkpoint_step test_file",
    "the architecture, by a method; a change is refused": "num_hidden_groups",
    "other records": (
        "masked_lm_prob ngram max_examples_per_row eval_sentence_objective"
    ),
    "other kinds of tasks": (
        "squad_head tokens_column tags_column question_column choice_columns "
        "answer_column answer_start_column max_answer_length n_best_size"
    ),
}


@pytest.fixture
def reads(monkeypatch):
    """The settings that albert_tf reads, outside of its settings, by class."""
    found = collections.defaultdict(set)

    def read(config, name):
        caller = sys._getframe(1).f_code.co_filename
        if "/albert_tf/" in caller and "/albert_tf/config/" not in caller:
            found[type(config)].add(name)
        return object.__getattribute__(config, name)

    monkeypatch.setattr(Config, "__getattribute__", read)
    return found


def find_unread(config_class, reads):
    defaults, unread = config_class(), []
    for path, field in settings_by_path(config_class).items():
        group, name = path.split(".")
        read = reads[type(getattr(defaults, group))]
        if field.metadata["has_flag"] and name not in read:
            unread.append(name)
    return set(unread) - set(" ".join(UNREAD.values()).split())


@pytest.mark.slow
def test_a_continued_pretraining_reads_each_setting(
    source, tiny_records, tmp_path, reads
):
    """`runs.directory` refuses a change of others, or logs it."""
    run_dir = shutil.copytree(source, tmp_path / "run")
    config = tiny_run.make_config(
        tiny_records, run_dir, num_train_steps=13, allow_config_change=True
    )
    assert train(config) == 0
    assert find_unread(PretrainingConfig, reads) == set()


@pytest.mark.slow
def test_a_continued_finetuning_reads_each_setting(tiny_tasks, tmp_path, reads):
    config = tiny_task.make_config(
        *("classification", tiny_tasks, tmp_path),
        **tiny_task.SHORT | {"num_train_steps": 2},
    )
    assert finetune(config) == 0
    reads.clear()
    changes = {"num_train_steps": 3, "dropout": 0.3}
    config = config.replace(**changes, allow_config_change=True)
    assert finetune(config) == 0
    assert find_unread(FinetuningConfig, reads) == set()
    model = load_config(str(tmp_path)).model
    rates = model.hidden_dropout_prob, model.attention_probs_dropout_prob
    assert rates == (0.3, 0.3)
