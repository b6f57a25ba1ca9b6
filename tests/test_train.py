import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import tiny_run
from tensorflow.python.tpu import tpu

from albert_tf import distribution, input_pipeline, losses, train
from albert_tf.errors import UserError
from albert_tf.modeling.layers import Dropout
from albert_tf.run_log import read_metrics
from albert_tf.schedules import DropoutRates

REPOSITORY = pathlib.Path(__file__).parents[1]
NO_DROPOUT = DropoutRates(0.0, 0.0)
TIMING = ("steps_per_second", "tokens_per_second")


def run_steps(config, rates=NO_DROPOUT, num_steps=3):
    """Figures and weights after some steps, and the program."""
    strategy = distribution.make_strategy(config.distribution)
    records = input_pipeline.find_records(
        "input_file", config.data.input_file, config
    )
    with strategy.scope():
        state = train.make_state(config)
        train_steps = train.make_train_steps(strategy, state, config)
    batches = iter(
        strategy.distribute_datasets_from_function(
            input_pipeline.training_dataset(records, config.data, 7, 0)
        )
    )
    figures = train_steps(batches, tf.constant(num_steps), rates)
    return (
        {name: float(value) for name, value in figures.items()},
        {name: v.numpy() for name, v in state.variables().items()},
        train_steps.get_concrete_function(
            batches, tf.constant(num_steps), rates
        ),
    )


def assert_close(one, other, tolerance):
    for name, value in one.items():
        np.testing.assert_allclose(
            other[name], value, atol=tolerance, err_msg=name
        )


def largest_difference(one, other):
    return max(np.abs(one[name] - other[name]).max() for name in one)


def operations(program):
    """Names of all operations, those of called functions included."""
    graph = program.graph.as_graph_def()
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    return {node.op for node in nodes}


@pytest.mark.parametrize(
    ("clip_scope", "clip_norm"), [("global", 0.01), ("per_replica", 1000.0)]
)
def test_two_replicas_give_what_one_gives_on_the_joint_batch(
    tiny_records, tmp_path, clip_scope, clip_norm
):
    """Clipping by replica is loose here: it has no joint counterpart.

    AdamW without decay, since its updates show the gradients' size at once.
    """
    settings = {
        "clip_scope": clip_scope,
        "clip_norm": clip_norm,
        "optimizer": "adamw",
        "epsilon": 0.1,
    }
    config = tiny_run.make_config(tiny_records, tmp_path, **settings)
    mirrored = tiny_run.make_config(
        tiny_records,
        tmp_path,
        strategy="mirrored",
        num_logical_cpus=2,
        **settings,
    )
    figures, weights, _ = run_steps(config)
    figures_of_two, weights_of_two, _ = run_steps(mirrored)

    assert_close(figures, figures_of_two, 2e-5)
    assert_close(weights, weights_of_two, 2e-5)


def test_two_replicas_give_what_one_gives_where_masking_is_dynamic(
    tiny_dynamic_records, tmp_path
):
    """And masks of another rate give something else."""
    adamw = {"optimizer": "adamw", "epsilon": 0.1}
    one, two, other = (
        run_steps(
            tiny_run.make_config(
                tiny_dynamic_records, tmp_path, **adamw, **changes
            )
        )
        for changes in (
            {},
            {"strategy": "mirrored", "num_logical_cpus": 2},
            {"masked_lm_prob": 0.3},
        )
    )
    assert_close(one[0], two[0], 2e-5)
    assert_close(one[1], two[1], 2e-5)
    assert largest_difference(one[1], other[1]) > 1e-3


def test_replicas_with_unequal_numbers_of_masked_pieces_weigh_each_alike(
    tiny_records, tmp_path
):
    """The mean of replicas' means would be another gradient."""
    config = tiny_run.make_config(tiny_records, tmp_path, optimizer="adamw")
    records = input_pipeline.find_records(
        "input_file", config.data.input_file, config
    )
    make = input_pipeline.training_dataset(records, config.data, 7, 0)
    (batch,) = make(tf.distribute.InputContext()).take(1)
    weights = batch["masked_lm_weights"].numpy().sum(axis=1)
    assert weights[:4].sum() != weights[4:].sum(), "the case must be there"

    figures, alone, _ = run_steps(config, num_steps=1)
    mirrored = tiny_run.make_config(
        tiny_records,
        tmp_path,
        optimizer="adamw",
        strategy="mirrored",
        num_logical_cpus=2,
    )
    figures_of_two, together, _ = run_steps(mirrored, num_steps=1)
    np.testing.assert_allclose(
        figures_of_two["masked_lm_loss"], figures["masked_lm_loss"], rtol=1e-6
    )
    # The first moment after one update is a tenth of the gradient.
    name = "albert/masked_lm/output_bias/m"
    np.testing.assert_allclose(
        together[name], alone[name], rtol=1e-3, atol=1e-7
    )


def test_the_step_can_be_traced_as_tpu_strategy_does(tiny_records, tmp_path):
    """`tpu.replicate` makes tensors of all arguments of a replica's function.

    Dropout rates must stay Python numbers there, and shapes be static.
    """
    config = tiny_run.make_config(tiny_records, tmp_path)
    records = input_pipeline.find_records(
        "input_file", config.data.input_file, config
    )
    make = input_pipeline.training_dataset(records, config.data, 7, 0)
    (batch,) = make(tf.distribute.InputContext()).take(1)
    state = train.make_state(config)
    seen = {}

    class TracedError(Exception):
        """Ends the tracing where compiling for a TPU would begin."""

    class TpuLike:
        """Runs a replica's function as TPUStrategy does, and no further."""

        def run(self, function, args):
            def replica(*flat):
                ids = dict(zip(batch, flat, strict=True))
                assert all(v.shape.is_fully_defined() for v in flat)
                seen.update(function(ids))
                raise TracedError

            tpu.replicate(replica, [list(args[0].values())])

        def experimental_local_results(self, value):
            raise AssertionError("not reached")

    steps = train.make_train_steps(TpuLike(), state, config)
    for rates in (NO_DROPOUT, DropoutRates(0.1, 0.1)):
        with pytest.raises(TracedError):
            steps(itertools.repeat(dict(batch)), tf.constant(1), rates)
        assert "loss" in seen
        seen.clear()


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_bfloat16_trains_close_to_float32(tiny_records, tmp_path, strategy):
    devices = {
        "strategy": strategy,
        "num_logical_cpus": 2 if strategy == "mirrored" else 1,
    }
    exact, weights, _ = run_steps(
        tiny_run.make_config(tiny_records, tmp_path, **devices)
    )
    rounded, rounded_weights, _ = run_steps(
        tiny_run.make_config(
            tiny_records, tmp_path, precision="mixed_bfloat16", **devices
        )
    )
    assert rounded["loss"] == pytest.approx(exact["loss"], rel=0.01)
    assert rounded["loss"] != exact["loss"]
    assert {v.dtype for v in rounded_weights.values()} == {
        v.dtype for v in weights.values()
    }


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_gradient_accumulation_does_not_change_the_update(
    tiny_records, tmp_path, strategy
):
    devices = {
        "strategy": strategy,
        "num_logical_cpus": 2 if strategy == "mirrored" else 1,
    }
    whole = tiny_run.make_config(tiny_records, tmp_path, **devices)
    parts = tiny_run.make_config(
        tiny_records, tmp_path, gradient_accumulation_steps=4, **devices
    )
    figures, weights, _ = run_steps(whole)
    figures_of_parts, weights_of_parts, program = run_steps(parts)

    assert_close(figures, figures_of_parts, 2e-5)
    assert_close(weights, weights_of_parts, 2e-5)
    assert "StatelessWhile" in operations(program) or "While" in operations(
        program
    )


def gradients_by_share(config, num_shares):
    """Gradients of each share's part of the joint loss, and their norms."""
    records = input_pipeline.find_records(
        "input_file", config.data.input_file, config
    )
    make = input_pipeline.training_dataset(records, config.data, 7, 0)
    (batch,) = make(tf.distribute.InputContext()).take(1)
    mlm_weight = tf.reduce_sum(batch["masked_lm_weights"])
    pretrainer = train.make_state(config).pretrainer
    size = config.data.global_batch_size // num_shares
    shares = []
    for first in range(0, config.data.global_batch_size, size):
        share = {k: v[first : first + size] for k, v in batch.items()}
        with tf.GradientTape() as tape:
            sums = losses.pretraining_sums(pretrainer(share), share)
            loss = sums["mlm_loss_sum"] / mlm_weight
            loss += sums["sentence_loss_sum"] / config.data.global_batch_size
        variables = pretrainer.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        shares.append(
            {
                v.path: tf.convert_to_tensor(g).numpy().astype(np.float64)
                for v, g in zip(variables, gradients, strict=True)
            }
        )
    return shares


def clip(gradients, norm):
    """Scaled down to a global norm, where they exceed it."""
    length = np.sqrt(sum(np.square(g).sum() for g in gradients.values()))
    return {k: g * min(1, norm / length) for k, g in gradients.items()}


def mean(shares):
    return {k: sum(s[k] for s in shares) / len(shares) for k in shares[0]}


@pytest.mark.parametrize("clip_scope", ["global", "per_replica"])
def test_clipping_is_the_formula_s(tiny_records, tmp_path, clip_scope):
    """On two replicas, against NumPy.

    Global: the joint gradient, clipped. As published: each replica's mean
    gradient, twice its part of the joint one, clipped; then their mean.
    """
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        optimizer="adamw",
        # Above the norm of a replica's part, below that of its mean.
        clip_norm=0.6,
        clip_scope=clip_scope,
        strategy="mirrored",
        num_logical_cpus=2,
    )
    own_means = [
        {k: 2 * g for k, g in share.items()}
        for share in gradients_by_share(config, 2)
    ]
    expected = {
        "global": clip(mean(own_means), 0.6),
        "per_replica": mean([clip(own, 0.6) for own in own_means]),
    }
    other = {"global": "per_replica", "per_replica": "global"}[clip_scope]
    _, weights, _ = run_steps(config, num_steps=1)

    differs = 0.0
    for path, gradient in expected[clip_scope].items():
        # The first moment after one update is a tenth of the gradient.
        moment = weights[f"{path}/m"]
        np.testing.assert_allclose(
            moment, 0.1 * gradient, rtol=1e-3, atol=1e-7, err_msg=path
        )
        differs = max(differs, np.abs(expected[other][path] - gradient).max())
    assert differs > 1e-4, "the two ways must differ here"


def test_the_norm_is_logged_as_it_was_before_clipping(tiny_records, tmp_path):
    norms = [
        run_steps(
            tiny_run.make_config(tiny_records, tmp_path, clip_norm=clip_norm),
            num_steps=1,
        )[0]["gradient_norm"]
        for clip_norm in (0.0, 0.01)
    ]
    assert norms[0] > 0.1
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-6)


def test_rate_0_puts_no_random_operation_into_the_program(
    tiny_records, tmp_path
):
    config = tiny_run.make_config(tiny_records, tmp_path)
    _, _, without = run_steps(config)
    _, _, with_dropout = run_steps(config, DropoutRates(0.1, 0.1))

    def draws(program):
        return {op for op in operations(program) if "RandomUniformV2" in op}

    assert draws(with_dropout)
    assert not draws(without)


def test_dropout_differs_by_step_and_replica_and_not_by_run(tiny_records):
    del tiny_records

    def mask(seed, step, replica):
        keys = train._replica_seed(seed, tf.constant(step), replica)
        return Dropout(0.5, 0.5, keys).hidden(tf.ones([40]), 0).numpy()

    original = mask(1, 2, 3)
    np.testing.assert_array_equal(mask(1, 2, 3), original)
    for other in (mask(2, 2, 3), mask(1, 3, 3), mask(1, 2, 4)):
        assert (other != original).any()


def test_dropout_is_removed_where_the_schedule_says(tiny_records, tmp_path):
    """The boundary, 5, is no multiple of steps_per_loop, 2."""
    config = tiny_run.make_config(
        tiny_records, tmp_path, dropout_schedule="0:0.1,5:0.0"
    )
    train.train(config)
    dropout = {
        line["step"]: line["dropout"]
        for line in read_metrics(str(tmp_path))
        if line["split"] == "train"
    }
    assert dropout == {
        2: 0.1, 4: 0.1, 5: 0.1, 6: 0.0, 8: 0.0, 10: 0.0, 12: 0.0
    }  # fmt: skip


def test_training_learns(tiny_records, tmp_path):
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=40, steps_per_loop=4
    )
    train.train(config)
    losses = [
        line["masked_lm_loss"]
        for line in read_metrics(str(tmp_path))
        if line["split"] == "train"
    ]
    # A model of uniform guesses stands at ln 400 = 5.99.
    assert losses[0] == pytest.approx(np.log(400), abs=0.15)
    assert losses[-1] < losses[0] - 0.3


def lines_without_timing(run_dir):
    return [
        {name: value for name, value in line.items() if name not in TIMING}
        for line in read_metrics(str(run_dir))
    ]


def weights_of(run_dir):
    newest = tf.train.latest_checkpoint(run_dir / "checkpoints")
    reader = tf.train.load_checkpoint(newest)
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name.startswith("variables/")
    }


def start(config, tmp_path, **environment):
    flags = tiny_run.as_flags(config, tmp_path / "model.json")
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        **environment,
    }
    # A file, since nobody empties a pipe.
    with open(tmp_path / "log", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "albert_tf.run_pretraining", *flags],
            env=environment,
            stderr=log,
        )


def log_of(tmp_path):
    return (tmp_path / "log").read_text()[-5000:]


def wait_for_log(tmp_path, text):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if text in log_of(tmp_path):
            return
        time.sleep(0.05)
    raise AssertionError(f"no {text!r} within 120 s")


def wait_for_step(run_dir, step):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = read_metrics(str(run_dir))
        if lines and lines[-1]["step"] >= step:
            return
        time.sleep(0.02)
    raise AssertionError(f"no step {step} within 120 s")


def test_a_killed_or_stopped_run_ends_as_one_left_alone(tiny_records, tmp_path):
    """Weights, moments and logged figures are the same to the last bit."""

    def settings(name):
        return tiny_run.make_config(
            tiny_records,
            tmp_path / name,
            num_train_steps=400,
            save_checkpoints_steps=50,
            steps_per_loop=10,
            eval_every_n_steps=100,
            dropout_schedule="0:0.1,200:0.0",
        )

    alone = start(settings("alone"), tmp_path)
    assert alone.wait() == 0, log_of(tmp_path)

    killed = start(settings("stopped"), tmp_path)
    wait_for_step(tmp_path / "stopped", 80)
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    stopped = start(settings("stopped"), tmp_path)
    wait_for_step(tmp_path / "stopped", 160)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait() == 128 + signal.SIGTERM, log_of(tmp_path)

    ended_at = read_metrics(str(tmp_path / "stopped"))[-1]["step"]
    assert 160 <= ended_at < 400, "the signals must have cut the run short"
    final = start(settings("stopped"), tmp_path)
    assert final.wait() == 0, log_of(tmp_path)

    assert lines_without_timing(tmp_path / "stopped") == lines_without_timing(
        tmp_path / "alone"
    )
    expected = weights_of(tmp_path / "alone")
    resumed = weights_of(tmp_path / "stopped")
    assert expected.keys() == resumed.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


def test_a_second_signal_does_not_wait_for_the_loop(tiny_records, tmp_path):
    """A loop that takes minutes ends by the second, with its signal."""
    run = start(
        tiny_run.make_config(
            tiny_records,
            tmp_path / "run",
            num_train_steps=10**6,
            steps_per_loop=10**6,
            save_checkpoints_steps=10**6,
            eval_input_file=(),
        ),
        tmp_path,
    )
    wait_for_log(tmp_path, "tracing the step")
    run.send_signal(signal.SIGTERM)
    wait_for_log(tmp_path, "signal 15: stopping")
    time.sleep(1)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=20) == 128 + signal.SIGINT


def test_two_workers_give_what_one_process_gives(tiny_records, tmp_path):
    # Dropout's masks differ by replica, as they must.
    settings = {"dropout_schedule": "0:0.0"}
    config = tiny_run.make_config(
        tiny_records, tmp_path / "alone", num_train_steps=4, **settings
    )
    train.train(config)
    ports = []
    for _ in range(2):
        with socket.socket() as listener:
            listener.bind(("localhost", 0))
            ports.append(listener.getsockname()[1])
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    workers = [
        start(
            tiny_run.make_config(
                tiny_records,
                tmp_path / "together",
                num_train_steps=4,
                strategy="multi_worker",
                **settings,
            ),
            tmp_path,
            TF_CONFIG=json.dumps(
                {"cluster": cluster, "task": {"type": "worker", "index": i}}
            ),
        )
        for i in range(2)
    ]
    for worker in workers:
        assert worker.wait(timeout=300) == 0, log_of(tmp_path)

    alone = lines_without_timing(tmp_path / "alone")
    together = lines_without_timing(tmp_path / "together")
    assert len(alone) == len(together) == 3
    for expected, line in zip(alone, together, strict=True):
        assert line.pop("split") == expected.pop("split")
        assert line == pytest.approx(expected, rel=1e-4)
    # The second worker leaves nothing of its own behind.
    assert sorted(p.name for p in (tmp_path / "together").iterdir()) == sorted(
        p.name for p in (tmp_path / "alone").iterdir()
    )


def test_a_finished_run_started_again_trains_no_more(tiny_records, tmp_path):
    config = tiny_run.make_config(tiny_records, tmp_path)
    train.train(config)
    before = (tmp_path / "metrics.jsonl").read_text()

    assert train.train(config) == 0
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_a_batch_that_does_not_divide_names_the_nearest(tiny_records, tmp_path):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        global_batch_size=7,
        strategy="mirrored",
        num_logical_cpus=2,
    )
    with pytest.raises(UserError, match=r"7 and 2\. Nearest: 6, 8\."):
        train.train(config)
    assert not list(tmp_path.iterdir()), "refused before anything is written"


def test_the_run_of_another_architecture_is_refused_by_name(
    tiny_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=2, eval_input_file=()
    )
    train.train(config)
    before = (tmp_path / "config.json").read_text()
    other = tiny_run.make_config(tiny_records, tmp_path, intermediate_size=28)

    with pytest.raises(UserError, match="intermediate_size was 24 and"):
        train.train(other)
    assert (tmp_path / "config.json").read_text() == before


def test_a_diverged_run_stops_and_keeps_its_checkpoints(tiny_records, tmp_path):
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
    with pytest.raises(UserError, match="loss and gradients must be finite"):
        train.train(config)
    assert tf.train.latest_checkpoint(tmp_path / "checkpoints")


def test_the_resolved_configuration_lies_beside_the_checkpoints(
    tiny_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=2, eval_input_file=()
    )
    train.train(config)

    assert json.loads((tmp_path / "config.json").read_text()) == (
        config.to_dict()
    )
    vocabulary = (tiny_records / "train" / "spiece.model").read_bytes()
    assert (tmp_path / "spiece.model").read_bytes() == vocabulary
