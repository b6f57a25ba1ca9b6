import contextlib
import multiprocessing
import os
import signal

import pytest

from albert_tf.errors import UserError
from albert_tf.io.artifact import lock

PATIENCE_S = 20


def hold(directory, ready):
    with lock(directory):
        ready.send(os.getpid())
        signal.pause()


@contextlib.contextmanager
def holder(directory):
    """A process that uses a directory; it never outlives the test."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe()
    process = fork.Process(target=hold, args=(str(directory), sender))
    process.start()
    try:
        assert receiver.poll(PATIENCE_S), "the first command does not start"
        yield process
    finally:
        # A stopped process ignores SIGTERM, and pytest would wait for it.
        process.kill()
        process.join(PATIENCE_S)


def test_a_second_command_is_refused_while_the_first_lives(tmp_path):
    """A killed command holds nothing; a stopped one does."""
    with holder(tmp_path) as first:
        os.kill(first.pid, signal.SIGSTOP)
        with (
            pytest.raises(UserError, match="one command at a time"),
            lock(str(tmp_path)),
        ):
            pass
    with lock(str(tmp_path)):
        assert not list(tmp_path.iterdir())  # it leaves no file


def test_an_error_gives_up_the_directory(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), lock(str(tmp_path)):
            raise KeyError
