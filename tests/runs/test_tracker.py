"""Metrics passed on to the libraries of MLflow and Weights & Biases."""

import importlib.util
import struct
import sys
from unittest import mock

import pytest

from albert_tf.errors import UserError
from albert_tf.runs.log import RunLog, read_events, read_metrics
from albert_tf.runs.tracker import tracking
from albert_tf.training.train import train
from tests.helpers import tiny_run


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_a_missing_library_is_refused_with_the_command(
    tracker, tmp_path, monkeypatch
):
    """Before anything is written."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run_dir = tmp_path / "run"
    config = tiny_run.make_synthetic_config(run_dir, tracker=tracker)
    command = rf"pip install 'albert-tf\[{tracker}\]'"
    with pytest.raises(UserError, match=command):
        train(config)
    assert not run_dir.exists()


@pytest.mark.tracker
@pytest.mark.slow
def test_mlflow_has_the_metrics_of_both_parts_of_a_run(tmp_path, monkeypatch):
    """In its file store: one run, whose settings are those of the start."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    run_dir = str(tmp_path / "run")
    config = tiny_run.make_synthetic_config(
        run_dir, tracker="mlflow", num_train_steps=2, allow_config_change=True
    )
    for num_steps in (2, 4):
        train(config.replace(num_train_steps=num_steps))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["training.num_train_steps"] == "2"
    found = client.get_metric_history(run.info.run_id, "train/loss")
    logged = [(line["step"], line["loss"]) for line in read_metrics(run_dir)]
    assert [step for step, _ in logged] == [2, 4]
    assert [(metric.step, metric.value) for metric in found] == logged


def test_errors_of_the_library_are_logged_and_those_of_the_run_passed_on(
    tmp_path, monkeypatch, caplog
):
    """A stand-in. The next process opens the run of the first by its id."""
    library = mock.Mock()
    library.start_run.return_value.info.run_id = "id-7"
    library.log_metrics.side_effect = [OSError("no answer"), None]
    monkeypatch.setitem(sys.modules, "mlflow", library)
    config = tiny_run.make_synthetic_config(tmp_path / "run", tracker="mlflow")
    log = RunLog(config.training.output_dir, step=0)
    with pytest.raises(OSError, match="lost"), tracking(config, log, 0):
        log.write("train", 2, {"loss": 6.5})
        log.write("eval", 2, {"loss": 6.25})
        raise OSError("lost")
    assert "step 2 NOT TRACKED: no answer" in caplog.text
    library.log_metrics.assert_called_with({"eval/loss": 6.25}, 2)
    library.end_run.assert_called_once_with("FAILED")
    with tracking(config, log, 2):
        pass
    assert [call.args[0] for call in library.start_run.mock_calls] == [
        None,
        "id-7",
    ]
    library.log_params.assert_called_once()
    library.start_run.side_effect = ValueError("no account")
    fault = r"mlflow must open a run.*no account"
    with pytest.raises(UserError, match=fault), tracking(config, log, 2):
        pass


@pytest.mark.tracker
@pytest.mark.slow
def test_wandb_continues_its_run_offline(tmp_path, monkeypatch):
    """`wandb sync` joins the parts, which have the same id."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    config = tiny_run.make_synthetic_config(tmp_path / "run", tracker="wandb")
    run_dir = config.training.output_dir
    for step in (0, 2):
        log = RunLog(run_dir, step=step)
        with tracking(config, log, step):
            log.write("train", step + 2, {"loss": 6.5 - step})
    (event,) = read_events(run_dir)
    assert event["event"] == "tracker"
    parts = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert {part.name for part in parts} == {f"run-{event['id']}.wandb"}
    history = [read_history(part.read_bytes()) for part in parts]
    assert history == [[(2, 6.5)], [(4, 4.5)]]


def read_history(content):
    """Steps and losses in a short file of wandb, a log of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    found, position = [], len(":W&B") + 3
    while position < len(content):
        _, size, _ = struct.unpack_from("<IHB", content, position)
        begin, position = position + 7, position + 7 + size
        record = wandb_internal_pb2.Record.FromString(content[begin:position])
        if record.HasField("history"):
            line = {
                item.nested_key[0]: float(item.value_json)
                for item in record.history.item
            }
            found.append((line["_step"], line["train/loss"]))
    return found
