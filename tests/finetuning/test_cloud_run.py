"""Fine-tuning with data and results on gs://, under faults."""

import pytest

from albert_tf.finetuning.run import run
from albert_tf.io import files
from albert_tf.runs.log import read_metrics
from albert_tf.training.progress import TIMING_METRICS
from tests.helpers import tiny_task
from tests.helpers.fake_gcs import Rule

pytestmark = pytest.mark.slow

KINDS = ("stat", "list", "read", "start", "put", "rewrite", "delete")


def lines_of(run_dir):
    return [
        {name: line[name] for name in line.keys() - TIMING_METRICS}
        for line in read_metrics(str(run_dir))
    ]


@pytest.mark.parametrize("kind", ["question_answering", "classification"])
def test_faults_change_neither_the_run_nor_its_predictions(
    kind, storage, tiny_tasks, tmp_path, monkeypatch
):
    """Half of the content in a read and, for one of the tasks, 503 for each
    kind of request."""
    monkeypatch.setattr(files, "REREAD_WAIT_S", 0)

    def finetune(tasks, run_dir):
        config = tiny_task.make_config(
            kind,
            tiny_tasks,
            run_dir,
            train_file=f"{tasks}/{kind}.jsonl",
            dev_file=f"{tasks}/{kind}.jsonl",
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
    rules = [Rule("read", "variables", action="half", times=1)]
    if kind == "question_answering":  # each 503 takes seconds
        rules += [Rule(each, status=503, times=1, skip=2) for each in KINDS]
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
