"""Fine-tuning with data and results on gs://, under faults."""

import pytest

from albert_tf.finetuning.run import run
from albert_tf.io import files
from albert_tf.runs.log import read_metrics
from albert_tf.training.progress import TIMING_METRICS
from tests.helpers import tiny_task
from tests.helpers.fake_gcs import Rule


def lines_of(run_dir):
    return [
        {name: line[name] for name in line.keys() - TIMING_METRICS}
        for line in read_metrics(str(run_dir))
    ]


@pytest.mark.slow
def test_faults_change_neither_the_run_nor_its_predictions(
    storage, tiny_tasks, tmp_path, monkeypatch
):
    """Half of the content in a read, and 503 for a listing and an upload."""
    monkeypatch.setattr(files, "REREAD_WAIT_S", 0)

    def finetune(tasks, run_dir):
        config = tiny_task.make_config(
            "question_answering",
            tiny_tasks,
            run_dir,
            train_file=f"{tasks}/question_answering.jsonl",
            dev_file=f"{tasks}/question_answering.jsonl",
            init_checkpoint=f"{tasks}/model",
            mode="train_and_predict",
            num_train_steps=6,
            steps_per_loop=2,
            save_checkpoints_steps=2,
            num_warmup_steps=1,
        )
        assert run(config) == 0

    finetune(tiny_tasks, tmp_path / "run")
    storage.put_files(tiny_tasks, "tasks")
    rules = [
        Rule("read", "variables", action="half", times=1),
        Rule("list", status=503, times=1, skip=2),
        Rule("put", status=503, times=1, skip=2),
    ]
    storage.set_rules(rules)
    finetune("gs://bucket/tasks", "gs://bucket/run")
    assert storage.num_faults() == len(rules)
    storage.set_rules([])
    assert lines_of("gs://bucket/run") == lines_of(tmp_path / "run")
    written = storage.read("run/")
    local = {
        str(path.relative_to(tmp_path / "run")): path.read_bytes()
        for path in (tmp_path / "run/predictions").rglob("*")
        if path.is_file()
    }
    assert local
    for name, content in local.items():
        assert written[name] == content, name
