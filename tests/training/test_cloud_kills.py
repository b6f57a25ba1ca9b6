"""A trainer on gs:// that is killed at its requests, and started again."""

import os
import random
from collections import Counter

import pytest

from tests.helpers import tiny_run
from tests.helpers.fake_gcs import Rule
from tests.helpers.run_processes import RunProcesses, check_same_run

pytestmark = pytest.mark.slow

RUN = "gs://bucket/run"

# Approximate number of requests of a resumed run, by kind.
REQUESTS = {
    "stat": 60,
    "list": 40,
    "read": 40,
    "start": 16,
    "put": 16,
    "delete": 6,
    "rewrite": 3,
    "mkdir": 1,
}
KILLS_OF_A_RUN = 5


@pytest.mark.long
def test_a_run_killed_at_its_requests_ends_like_an_undisturbed_one(
    storage, source, tiny_records, tmp_path
):
    """At least CLOUD_KILLS kills; the request of a kill takes effect or not.

    A run is killed up to five times, then it finishes and is compared.
    """
    kills = int(os.environ.get("CLOUD_KILLS", "12"))
    rng = random.Random(18)
    storage.put_files(tiny_records, "records")
    config = tiny_run.make_config("gs://bucket/records", RUN)
    killed: Counter[tuple[str, str]] = Counter()
    points = []
    while killed.total() < kills:
        storage.remove("run/")
        for _ in range(KILLS_OF_A_RUN):
            kind = list(REQUESTS)[len(points) % len(REQUESTS)]
            action = rng.choice(["reset", "reset_after"])
            skip = int(REQUESTS[kind] * rng.random())
            points.append((kind, skip, action))
            trainer = RunProcesses(config, tmp_path)
            pid = trainer.processes[0].pid
            rule = Rule(kind, skip=skip, times=1, action=action, signalled=pid)
            storage.set_rules([rule])
            [status] = trainer.wait()
            if status == 0:
                break
            assert status == -9 and storage.num_faults(), trainer.log()
            killed[kind, action] += 1
        storage.set_rules([])
        trainer = RunProcesses(config, tmp_path)
        assert trainer.wait() == [0], (points, trainer.log())
        check_same_run(RUN, source)
        assert "Traceback" not in trainer.log()
        print(dict(killed), flush=True)
