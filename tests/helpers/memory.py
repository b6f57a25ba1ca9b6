"""The memory of test processes: freed after tests, and limited."""

import gc
import resource
import sys
from multiprocessing import forkserver

GIB = 2**30
# No process of a test run may need more.
LIMIT = 4 * GIB


# A program of a training step registers about 20 gradients for each replica.
MANY_GRADIENTS = 50


def free_programs() -> None:
    """Frees the TensorFlow programs that nothing uses any more.

    TensorFlow registers the gradient function of each traced call of
    `tf.custom_gradient`, and never removes it. The function refers to its
    program and to the model: 20 to 70 MB for each program of a training step.
    This removes the functions once there are many. Programs that are still
    in use run as before, but new gradients through them are an error.
    """
    ops = sys.modules.get("tensorflow.python.framework.ops")
    if ops is None:
        return
    registered = ops.gradient_registry._registry
    names = [name for name in registered if name.startswith("CustomGradient-")]
    if len(names) > MANY_GRADIENTS:
        for name in names:
            del registered[name]
        gc.collect()


def peak() -> int:
    """The most memory, in bytes, of this process or any that it started.

    Until a child process starts its program, it counts as large as this one.
    Ends the fork server of `forked_program`: its processes count from then on.
    """
    forkserver._forkserver._stop()
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
