import math
import os
import random
import re
import shutil
import signal
import time

import numpy as np
import pytest

from albert_tf.config import TrainingConfig
from albert_tf.errors import UserError
from albert_tf.runs.checkpoints import list_checkpoints
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import find_divergence, train
from tests.helpers import tiny_run
from tests.helpers.run_processes import (
    RunProcesses,
    check_same_run,
    lines_without_timing,
    read_variables,
)


@pytest.mark.slow
@pytest.mark.long
def test_a_run_killed_at_random_moments_ends_like_an_uninterrupted_one(
    tiny_dynamic_packed_records, tmp_path
):
    """Two workers, SOAK_KILLS times: first by SIGTERM, then by SIGKILL.

    SIGTERM to one worker stops both, at the same step.

    Most checkpoints are saved within a loop. The run turns dropout off, not at
    a multiple of steps_per_loop. It reads packed rows of dynamic masking.
    `test_cloud_storage` kills one process.
    """
    kills = int(os.environ.get("SOAK_KILLS", "1"))

    def run(name):
        config = tiny_run.make_config(
            tiny_dynamic_packed_records,
            tmp_path / name,
            strategy="multi_worker",
            dropout_schedule="0:0.1,45:0.0",
            optimizer="adamw",
            num_train_steps=50 + 20 * kills,
            steps_per_loop=10,
            save_checkpoints_steps=7,
            save_checkpoints_minutes=0.001,
            eval_every_n_steps=35,
            **tiny_run.PACKING,
        )
        return RunProcesses(config, tmp_path, workers=2)

    alone = run("alone")
    assert set(alone.wait()) == {0}, alone.log()
    switches = [
        (event["event"], event["step"])
        for event in read_events(str(tmp_path / "alone"))
        if event["event"] == "dropout"
    ]
    assert switches == [("dropout", 45)]
    rates = {x["step"]: x.get("dropout") for x in read_metrics(alone.run_dir)}
    assert (rates[40], rates[45], rates[50]) == (0.1, 0.1, 0.0)

    rng = random.Random(2)
    for number in range(kills):
        killed = run("killed")
        lines = read_metrics(str(tmp_path / "killed"))
        # Waits for steps: a fast machine would finish in half a second.
        logged = lines[-1]["step"] if lines else 9
        killed.wait_for_step(logged + 1 + rng.randrange(25))
        time.sleep(0.05 * rng.random())
        if number == 0:
            killed.signal(signal.SIGTERM, worker=1)
            assert set(killed.wait()) == {143}, killed.log()
            stop = read_events(killed.run_dir)[-1]
            assert stop["reason"] == "another worker was asked to stop"
            stops = re.findall(r": stopped at step (\d+);", killed.log())
            assert {int(step) for step in stops} == {stop["step"]}
        else:
            killed.kill()
    last = run("killed")
    assert set(last.wait()) == {0}, last.log()
    assert len(read_events(str(tmp_path / "killed"))) > kills + 1
    check_same_run(tmp_path / "alone", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_two_workers_and_two_replicas_continue_the_run_of_one_process(
    source, tiny_records, tmp_path
):
    """Two workers start from its weights. Another process, with two replicas,
    resumes from its checkpoint. Dropout's masks would differ by replica."""

    def config(name, **changes):
        return tiny_run.make_config(
            tiny_records,
            tmp_path / name,
            init_checkpoint=str(source),
            dropout_schedule="0:0.0",
            num_train_steps=4,
            save_checkpoints_steps=2,
            **changes,
        )

    train(config("alone"))
    together = config(
        "together", strategy="multi_worker", gradient_accumulation_steps=2
    )
    run = RunProcesses(together, tmp_path, workers=2)
    assert run.wait() == [0, 0], run.log()
    shutil.copytree(tmp_path / "alone", tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved/checkpoints/step-00000004")
    train(config("moved", strategy="mirrored", num_logical_cpus=2))
    files, *others = (
        sorted(path.name for path in (tmp_path / name).iterdir())
        for name in ("alone", "together", "moved")
    )
    # The second worker writes no files of its own.
    assert others == [files] * 2

    def lines_of(name):
        lines = lines_without_timing(tmp_path / name)
        return [{**line, "split": line["split"] == "eval"} for line in lines]

    expected = lines_of("alone")
    weights = read_variables(tmp_path / "alone")
    for name in ("together", "moved"):
        lines = lines_of(name)
        assert len(lines) == len(expected) == 3
        for one, other in zip(expected, lines, strict=True):
            assert other == pytest.approx(one, rel=1e-4)
        found = read_variables(tmp_path / name)
        for path, value in weights.items():
            np.testing.assert_allclose(found[path], value, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_dir": ""}, "output_dir is required"),
        ({"input_file": ()}, "input_file must hold .* no record in no file"),
        # A Python caller would train instead.
        ({"dry_run": True}, "must be train, and dry_run off"),
        ({"mode": "eval"}, "must be train, and dry_run off"),
        (
            {
                "global_batch_size": 7,
                "strategy": "mirrored",
                "num_logical_cpus": 2,
            },
            r"\(2\)\. Received: 7\. Nearest: 6 and 8\.",
        ),
    ],
)
def test_settings_without_a_training_are_refused(
    tiny_records, tmp_path, changes, words
):
    config = tiny_run.make_config(tiny_records, tmp_path).replace(**changes)
    with pytest.raises(UserError, match=words):
        train(config)
    assert not list(tmp_path.iterdir())


def test_a_limit_that_masks_fewer_tokens_than_wanted_is_a_warning(
    tiny_dynamic_records, tmp_path, caplog
):
    """Of 32 tokens, 9.6; a fifth would be 6.4, about the limit of 6."""
    for fraction, warns in ((0.2, False), (0.3, True)):
        config = tiny_run.make_config(
            tiny_dynamic_records, tmp_path, masked_lm_prob=fraction
        )
        Pretraining(config).find_training_data()
        assert ("set --max_predictions_per_seq=10" in caplog.text) == warns


@pytest.mark.usefixtures("eager")
def test_a_nan_loss_stops_the_run(tiny_records, tmp_path):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        optimizer="adamw",
        learning_rate=1e30,
        num_train_steps=40,
        num_warmup_steps=20,
        save_checkpoints_steps=2,
        clip_norm=0.0,
    )
    with pytest.raises(
        UserError,
        match=r"stay finite.*loss nan and gradient norm.*lower --learning_rate"
        rf".*--init_checkpoint={tmp_path} ",
    ) as raised:
        train(config)
    assert raised.value.exit_status == 1
    assert read_events(str(tmp_path))[-1]["event"] == "diverged"
    newest = list_checkpoints(str(tmp_path / "checkpoints"))[-1]
    weights = read_variables(tmp_path)
    assert newest.step == weights["step"] < 20
    assert all(np.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize(
    ("loss", "norm", "lowest", "diverged"),
    [
        (3.0, 1.0, None, False),
        (99.0, 1.0, None, False),
        (5.01, 1.0, 3.0, True),
        (4.99, 1.0, 3.0, False),
        (math.nan, 1.0, None, True),
        (3.0, math.inf, 3.0, True),
    ],
)
def test_a_loss_two_nats_above_the_lowest_has_diverged(
    loss, norm, lowest, diverged
):
    means = {"loss": loss, "gradient_norm": norm}
    assert bool(find_divergence(means, lowest, TrainingConfig())) == diverged


def test_an_allowed_increase_of_0_detects_only_nan_and_infinity():
    config = TrainingConfig(divergence_loss_increase=0)
    means = {"loss": 99.0, "gradient_norm": 1.0}
    assert not find_divergence(means, 1.0, config)
    assert find_divergence({**means, "loss": math.nan}, 1.0, config)
