"""Beam's own job service, with several workers for a job instead of one.

python -m tests.helpers.beam_job_service NUM_WORKERS --port=8099
"""

import sys

from apache_beam.runners.portability import local_job_service_main
from apache_beam.runners.portability.fn_api_runner import fn_runner


class _Runner(fn_runner.FnApiRunner):
    num_workers = 1

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self._num_workers = self.num_workers


if __name__ == "__main__":
    _Runner.num_workers = int(sys.argv[1])
    fn_runner.FnApiRunner = _Runner
    local_job_service_main.run(sys.argv[2:])
