"""What an export takes from the settings of a fine-tuned run."""

import dataclasses

import pytest

from albert_tf.config import ExportConfig, FinetuningConfig, TaskConfig
from albert_tf.errors import UserError
from albert_tf.runs.directory import load_config, write_config
from albert_tf.serving.export import load, sign
from tests.helpers.exportable_task import NULL_THRESHOLD, write_task_run


@pytest.mark.parametrize(
    ("doc_stride", "requested", "length"),
    [(128, 0, 96), (20, 0, 64 + 3 + 20), (128, 70, 70)],
)
def test_a_run_on_short_texts_is_exported_with_room_for_a_context(
    doc_stride, requested, length, tmp_path
):
    """64 tokens are too few for a question of 64. The length is at most that
    of the model, 96."""
    write_task_run("plain", tmp_path / "run")
    run_dir = str(tmp_path / "run")
    config = load_config(run_dir, FinetuningConfig).replace(max_seq_length=64)
    task = TaskConfig(doc_stride=doc_stride)
    write_config(run_dir, dataclasses.replace(config, task=task))

    run = load(ExportConfig(run_dir=run_dir, max_seq_length=requested))

    assert run.config.data.max_seq_length == length


def test_a_null_threshold_is_a_setting_of_question_answering(tmp_path):
    write_task_run("regression", tmp_path / "run")
    config = ExportConfig(run_dir=str(tmp_path / "run"), null_threshold="1.5")
    with pytest.raises(UserError, match=r"1.5 and a run of regression"):
        load(config)
    for value in ("high", "nan", "inf"):
        with pytest.raises(
            UserError, match=f"finite number. Received: {value}"
        ):
            ExportConfig(null_threshold=value)


def test_another_null_threshold_is_exported(tmp_path, monkeypatch):
    write_task_run("plain", tmp_path / "run")
    monkeypatch.setattr(
        "albert_tf.serving.export.make_task_signatures",
        lambda model, rules, tokenizer: rules,
    )

    def threshold(**settings):
        config = ExportConfig(
            run_dir=str(tmp_path / "run"), text_signatures=False, **settings
        )
        return sign(load(config), config)[1].null_threshold

    assert threshold() == NULL_THRESHOLD["plain"]
    assert threshold(null_threshold="0") == 0
    assert threshold(null_threshold="-1e3") == -1000


@pytest.mark.parametrize(
    ("task", "signatures"),
    [
        ("rte", {"classify_text_pair"}),
        ("sst2", {"classify_text"}),
        ("", {"classify_text", "classify_text_pair"}),
    ],
)
def test_a_run_of_pairs_takes_pairs_only(task, signatures, tmp_path):
    """And a run of single texts only these. The texts of a converted run are
    unknown."""
    write_task_run("classification", tmp_path / "run")
    run_dir = str(tmp_path / "run")
    stored = load_config(run_dir, FinetuningConfig)
    write_config(
        run_dir, dataclasses.replace(stored, task=TaskConfig(task=task))
    )
    config = ExportConfig(run_dir=run_dir)

    _, found = sign(load(config), config)

    assert set(found) == {"classify", "serving_default", *signatures}


def test_the_directory_of_several_runs_is_refused(tmp_path):
    for number in (1, 2):
        write_task_run("plain", tmp_path / f"run-{number}")
    with pytest.raises(UserError, match=r"has several runs .*/run-1\. "):
        load(ExportConfig(run_dir=str(tmp_path)))
