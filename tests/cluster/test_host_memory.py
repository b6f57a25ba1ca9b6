import platform
import subprocess
import sys

import pytest

# Prints how many pages 50 arrays take from the kernel that are freed together.
PROGRAM = """
import resource
import numpy as np
from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import DistributionConfig

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones((3, 2**18), np.float32) for _ in range(50)]
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

page_faults()
by_default = page_faults()
make_strategy(DistributionConfig(num_logical_cpus=2))
page_faults()
print(by_default, page_faults())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs the GNU C library"
)
def test_runs_on_cpus_use_freed_memory_again():
    # A process of its own: the setting is that of a whole process.
    printed = subprocess.check_output([sys.executable, "-c", PROGRAM])
    by_default, kept = map(int, printed.split()[-2:])
    assert kept < by_default / 50
