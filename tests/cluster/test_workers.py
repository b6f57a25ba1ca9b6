"""Two real workers find that their steps differ."""

import json
import os
import time

import pytest

from tests.helpers import disagreeing_worker
from tests.helpers.forked_program import ForkedProgram
from tests.helpers.run_processes import PATIENCE_S, free_ports


@pytest.mark.slow
def test_different_steps_are_errors(tmp_path):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    workers = []
    for index, arguments in enumerate((["4"], ["6"])):
        task = {"type": "worker", "index": index}
        variable = json.dumps({"cluster": cluster, "task": task})
        worker = ForkedProgram(
            disagreeing_worker.__name__,
            arguments,
            {**os.environ, "TF_CONFIG": variable},
            tmp_path / f"log-{index}",
        )
        workers.append(worker)
    deadline = time.monotonic() + PATIENCE_S
    try:
        for index, step in enumerate((4, 6)):
            log = tmp_path / f"log-{index}"
            while "the mean of all is" not in (said := log.read_text()):
                assert workers[index].poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.02)
            assert "all workers must read the same --output_dir" in said
            assert f"is at step {step}, the mean of all is 5" in said
    finally:
        for worker in workers:
            worker.kill()
