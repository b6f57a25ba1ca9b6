import multiprocessing
import os
import signal

import pytest

from albert_tf.errors import UserError
from albert_tf.io.ownership import own


def hold(directory, ready):
    with own(directory):
        ready.send(os.getpid())
        signal.pause()


def test_a_second_command_is_refused_while_the_first_lives(tmp_path):
    """A killed command holds nothing; a stopped one does."""
    spawn = multiprocessing.get_context("fork")
    receiver, sender = spawn.Pipe()
    first = spawn.Process(target=hold, args=(str(tmp_path), sender))
    first.start()
    receiver.recv()
    os.kill(first.pid, signal.SIGSTOP)
    with (
        pytest.raises(UserError, match="one command at a time"),
        own(str(tmp_path)),
    ):
        pass
    first.kill()
    first.join()
    with own(str(tmp_path)):
        assert not list(tmp_path.iterdir())  # it leaves no file


def test_an_error_gives_up_the_directory(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), own(str(tmp_path)):
            raise KeyError
