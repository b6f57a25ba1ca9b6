"""Runs that continue, or are evaluated, with other settings."""

import functools
import json
import logging
import shutil

import pytest

from albert_tf.config import PretrainingConfig, settings_by_path
from albert_tf.errors import UserError
from albert_tf.input.record_sets import find_held_out, find_training_data
from albert_tf.runs import directory as run_directory
from albert_tf.runs.rollback import Rollback, Rollbacks
from albert_tf.training.evaluate import evaluate_run
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.changed_runs import check

# Values that differ from those of `tiny_run.make_config`: some for each value
# of `affects`, see `config/settings.py`.
NEVER = {
    "model.hidden_size": 32,  # other shapes
    "model.parameter_sharing": "none",  # other variables
    "model.num_hidden_layers": 3,  # the same variables, for one layer more
    "training.sentence_objective": "none",
}
IF_ALLOWED = {
    "data.max_seq_length": 24,
    "data.data_schedule": "0:some",
    "optimizer.learning_rate": 0.5,
    "distribution.precision": "mixed_bfloat16",
    "initialization.init_checkpoint": "another",
    "training.num_train_steps": 20,
}
FREE = {
    "data.eval_input_file": (),
    "distribution.strategy": "mirrored",
    "training.steps_per_loop": 1,
}


def with_setting(run, name, value, **others):
    """Settings with one value changed; `name` includes its group."""
    if name == "data.data_schedule":  # replaces input_file
        others |= {"input_file": (), "dataset": ("some=elsewhere/*",)}
    return run(**{name.split(".")[1]: value}, **others)


def in_words(value):
    return repr(list(value) if isinstance(value, tuple) else value)


def change_in_words(run, name, value):
    group, _, setting = name.partition(".")
    before = getattr(getattr(run(), group), setting)
    assert before != value
    return f"{name} was {in_words(before)} and is {in_words(value)}"


@pytest.mark.parametrize(("name", "value"), NEVER.items())
@pytest.mark.parametrize("allow", [False, True])
def test_a_changed_model_is_always_refused(run, name, value, allow):
    data = find_training_data(run())
    other = with_setting(run, name, value, allow_config_change=allow)
    with pytest.raises(UserError, match="own settings") as error:
        run_directory.check(other, data)
    change = change_in_words(run, name, value)
    assert f"Received: {change}. Choose another" in str(error.value)
    assert "allow_config_change" not in error.value.remedy


@pytest.mark.parametrize(("name", "value"), IF_ALLOWED.items())
def test_a_changed_result_is_refused_unless_allowed(run, name, value, caplog):
    data = find_training_data(run())
    change = change_in_words(run, name, value)
    with pytest.raises(UserError, match="own settings") as error:
        run_directory.check(with_setting(run, name, value), data)
    assert f"Received: {change}. Restore" in str(error.value)
    assert "--allow_config_change" in error.value.remedy
    assert not caplog.records

    other = with_setting(run, name, value, allow_config_change=True)
    run_directory.check(other, data)
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.getMessage().endswith(f"as allowed: {change}")


@pytest.mark.parametrize(("name", "value"), FREE.items())
def test_changes_without_effect_on_the_result_are_accepted_and_logged(
    run, name, value, caplog
):
    caplog.set_level(logging.INFO, "absl")
    run_directory.check(
        with_setting(run, name, value), find_training_data(run())
    )
    (line,) = caplog.records
    assert line.levelno == logging.INFO
    assert change_in_words(run, name, value) in line.getMessage()


def test_the_last_step_may_not_be_before_the_newest_checkpoint(run, tmp_path):
    """The checkpoint of the run has step 2; a discarded one does not count."""
    shorter = run(
        num_train_steps=1, num_warmup_steps=1, allow_config_change=True
    )
    with pytest.raises(
        UserError, match=r"num_train_steps must be at least 2, .*Received: 1\."
    ):
        check(shorter)
    check(run(num_train_steps=2, allow_config_change=True))
    Rollbacks.read(f"{tmp_path}/run").add(Rollback(3, 1, 2, 1.0, "nan"))
    check(shorter)


def test_one_error_names_all_changes(run):
    with pytest.raises(UserError) as error:
        check(run(ngram=1, seed=7, clip_norm=2.0, steps_per_loop=1))
    assert (
        "Received: data.ngram was 3 and is 1; optimizer.clip_norm was 1.0 and "
        "is 2.0; training.seed was 12345 and is 7."
    ) in str(error.value)


def test_a_changed_undeclared_setting_is_refused_unless_allowed(
    run, monkeypatch
):
    setting = settings_by_path(PretrainingConfig)["training.profile_steps"]
    undeclared = {**setting.metadata, "affects": None}
    monkeypatch.setattr(setting, "metadata", undeclared)
    with pytest.raises(UserError, match="profile_steps was '' and is '1:2'"):
        check(run(profile_steps="1:2"))
    check(run(profile_steps="1:2", allow_config_change=True))


def test_the_same_settings_are_accepted_silently(run, caplog):
    caplog.set_level(logging.INFO, "absl")
    check(run())
    assert not caplog.records


def test_a_moved_run_resumes(run, tmp_path, caplog):
    moved = str(tmp_path / "moved")
    (tmp_path / "run").rename(moved)
    check(run(output_dir=moved))
    assert not caplog.records
    with pytest.raises(UserError, match="learning_rate was"):
        check(run(output_dir=moved, learning_rate=0.5))


def test_without_a_checkpoint_every_setting_may_change(run, tmp_path):
    """A checkpoint without its `checkpoint.json` does not count."""
    (narrowed,) = run().data.input_file
    other = run(
        learning_rate=0.5,
        hidden_size=32,
        input_file=(narrowed.replace("*", "*-00001-*"),),
    )
    with pytest.raises(UserError):
        check(other)
    (committed,) = tmp_path.glob("run/checkpoints/*/checkpoint.json")
    committed.unlink()
    check(other)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    check(other)
    shutil.rmtree(tmp_path / "run")
    check(other)


@pytest.mark.parametrize(("name", "value"), NEVER.items())
def test_evaluation_with_a_changed_model_is_refused(run, name, value, tmp_path):
    held_out = find_held_out(run())
    other = with_setting(run, name, value, allow_config_change=True)
    with pytest.raises(UserError, match="its own architecture") as error:
        run_directory.check_evaluation(other, held_out)
    assert change_in_words(run, name, value) in str(error.value)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    run_directory.check_evaluation(other, held_out)


def test_evaluation_accepts_every_other_change(run, caplog):
    held_out = find_held_out(run())
    for name, value in {**IF_ALLOWED, **FREE}.items():
        other = with_setting(run, name, value)
        run_directory.check_evaluation(other, held_out)
    run_directory.check_evaluation(run(input_file=("gone/*",)), held_out)
    assert not caplog.records


def test_settings_of_another_release_are_read_by_name(run, tmp_path):
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    del stored["optimizer"]["clip_scope"]  # the default then applies
    path.write_text(json.dumps(stored))
    check(run())
    with pytest.raises(UserError, match="clip_scope was 'global' and is"):
        check(run(clip_scope="per_replica"))
    stored["optimizer"]["of_a_later_release"] = 1
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=r"config\.json: .*of_a_later_release"):
        check(run())


def test_checkpoints_without_their_settings_are_refused(run, tmp_path):
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(UserError, match=r"run/config\.json must exist"):
        check(run())


@pytest.mark.slow
def test_a_refused_change_leaves_the_run_and_an_allowed_one_resumes(
    tiny_records, tmp_path, capsys
):
    def content():
        return {
            path: path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file()
        }

    run = functools.partial(
        tiny_run.make_config,
        tiny_records,
        tmp_path,
        num_train_steps=2,
        eval_input_file=(),
    )
    assert train(run()) == 0
    before = content()
    with pytest.raises(UserError, match="num_train_steps was 2 and is 4"):
        train(run(num_train_steps=4))
    held_out = (f"{tiny_records}/eval/*.tfrecord",)
    capsys.readouterr()
    evaluate_run(run(num_train_steps=4, eval_input_file=held_out))
    assert json.loads(capsys.readouterr().out)["step"] == 2
    # Its variables would fit this model.
    with pytest.raises(UserError, match="num_hidden_layers was 2 and is 3"):
        evaluate_run(run(num_hidden_layers=3, eval_input_file=held_out))
    assert content() == before

    assert train(run(num_train_steps=4, allow_config_change=True)) == 0
    stored = run_directory.load_config(str(tmp_path))
    assert stored == run(num_train_steps=4, allow_config_change=True)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 4
    # Now these are the settings of the run; the former ones are refused.
    check(run(num_train_steps=4))
    with pytest.raises(UserError, match="num_train_steps must be at least 4"):
        check(run())
