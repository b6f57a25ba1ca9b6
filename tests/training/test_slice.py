"""Training on a slice of two hosts, whose cores are CPUs; failures of hosts."""

import re
import subprocess
import time

import pytest

from albert_tf.errors import RETRY_STATUS
from albert_tf.runs.checkpoints import list_checkpoints
from albert_tf.runs.log import read_metrics
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.run_processes import check_same_weights
from tests.helpers.slice_processes import Slice

# No test waits for the end of such a loop, which takes minutes.
LONG_LOOP = 20_000

# A run must stop in this time. On a busy machine, it may take as much longer as
# its start took, since both slow down alike. This is still much less than the
# rest of the loop.
STOP_S = 5.0


@pytest.mark.slow
@pytest.mark.long
def test_a_slice_trains_and_each_failure_has_a_line_and_a_status(
    tiny_records, tmp_path
):
    """A scheduler ends at status 0, and starts again at 143 and 75."""

    def config(run_dir="run", **changes):
        return tiny_run.make_config(
            tiny_records,
            tmp_path / run_dir,
            num_hidden_layers=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            optimizer="adamw",
            allow_config_change=True,
            # The rate is constant, so that runs of other lengths are equal.
            num_decay_steps=1,
            **changes,
        )

    def long_run(run_dir="run", **changes):
        # A checkpoint would end a call of the program.
        long = dict.fromkeys(
            ("steps_per_loop", "save_checkpoints_steps"), LONG_LOOP
        )
        return config(run_dir, num_train_steps=10**6, **{**long, **changes})

    def newest_step():
        return list_checkpoints(str(tmp_path / "run/checkpoints"))[-1].step

    first = {"num_train_steps": 4, "eval_every_n_steps": 4}
    with Slice() as hosts:
        run = hosts.train(
            config(save_checkpoints_steps=2, **first),
            tmp_path / "first",
        )
        assert run.wait() == [0], run.log()
        assert "Traceback" not in run.log()
        assert "strategy tpu: 2 replicas" in run.log()
        lines = read_metrics(str(tmp_path / "run"))
        assert [(line["split"], line["step"]) for line in lines] == [
            ("train", 2),
            ("train", 4),
            ("eval", 4),
        ]
        # All replicas start with the weights that one device starts with.
        assert train(config("one_device", **first)) == 0
        alone = read_metrics(str(tmp_path / "one_device"))
        assert [line["loss"] for line in lines] == pytest.approx(
            [line["loss"] for line in alone], rel=1e-5
        )
        assert newest_step() == 4
        (best,) = list_checkpoints(str(tmp_path / "run/best"))
        assert best.step == 4

        # SIGTERM to the last host, within a long loop.
        began = time.monotonic()
        run = hosts.train(long_run(), tmp_path / "stopped")
        run.wait_for_log("compiled and trained step 5 ")
        hosts.wait_for_work()
        start_s = time.monotonic() - began
        hosts.terminate()
        try:
            statuses = run.wait(STOP_S + start_s)
        except subprocess.TimeoutExpired:
            run.kill()
            pytest.fail(f"started in {start_s:.1f} s, has not stopped")
        assert statuses == [143], run.log()
        stopped = newest_step()
        assert 5 < stopped < LONG_LOOP / 4
        assert (
            f"worker 1 at {hosts.addresses[1]} received SIGTERM: stopped at "
            f"step {stopped}"
        ) in run.log()
        # The old servers would stop the next run.
        for host in range(2):
            hosts.serve(host)

        # A run without an interruption until its server ends: then TensorFlow
        # reports an error.
        run = hosts.train(
            long_run("uninterrupted", save_checkpoints_steps=stopped),
            tmp_path / "killed",
        )
        run.wait_for_checkpoint(stopped)
        hosts.kill()
        assert run.wait() == [RETRY_STATUS], run.log()
        # It has the weights of the run that was stopped.
        check_same_weights(
            str(tmp_path / "run"), str(tmp_path / "uninterrupted"), stopped
        )
        # TensorFlow may log its own errors after this one.
        (error,) = re.findall("^error: .*", run.log(), re.MULTILINE)
        assert error.startswith("error: all workers of the run must answer")
        assert f"no answer from worker 1 at {hosts.addresses[1]}" in error

        # A host that is silent: TensorFlow waits for it for ever.
        hosts.serve(1)
        run = hosts.train(long_run(steps_per_loop=10), tmp_path / "silent")
        run.wait_for_step(stopped + 30)
        assert f"step-{stopped:08d} at step {stopped} of" in run.log()
        hosts.silence()
        assert run.wait() == [RETRY_STATUS], run.log()
        assert "THE RUN HANGS: the device loop of" in run.log()
