"""Commands of albert_tf in processes that start in a tenth of a second.

TensorFlow takes several CPU seconds to import, which is more than most commands
of the tests take. Here, the fork server of `multiprocessing` imports it once.
Each command is then a process of its own, forked from there: with its own
devices, programs, signals and exit status. Only the shutdown of the interpreter
is shorter than that of `python -m`.
"""

import gc
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

# A variable of processes that run TensorFlow's functions without tracing them.
EAGER = "TESTS_RUN_EAGERLY"

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tensorflow", "albert_tf.training.train"])


class _Forked:
    """A process that was forked from the fork server."""

    def __init__(self, target, *arguments) -> None:
        self._process = _CONTEXT.Process(target=target, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It runs for longer than `timeout_s`.
        """
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout_s)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)


class ForkedProgram(_Forked):
    """A module that runs as `python -m` would run it.

    Args:
        module: Its name.
        arguments: Of its command line.
        environment: All environment variables that it sees.
        log_file: Where its standard error is appended.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log_file: pathlib.Path,
    ) -> None:
        log_file.touch()
        super().__init__(
            _run_module, module, [*arguments], {**environment}, str(log_file)
        )


class ForkedCode(_Forked):
    """Python code that runs as `python -c` would run it; a context manager.

    Args:
        code: The code.
        arguments: Of its command line.
        environment: All environment variables that it sees; by default those
            of this process.

    Attributes:
        stdout, stderr: Its outputs, as files to read text from.
    """

    def __init__(
        self,
        code: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(2)]
        super().__init__(
            _run_code,
            code,
            [*arguments],
            {**(os.environ if environment is None else environment)},
            *(writer for _, writer in pipes),
        )
        for _, writer in pipes:
            writer.close()
        self.stdout, self.stderr = (
            os.fdopen(os.dup(reader.fileno())) for reader, _ in pipes
        )

    def __enter__(self) -> "ForkedCode":
        return self

    def __exit__(self, *_) -> None:
        self.kill()
        self.wait()
        self.stdout.close()
        self.stderr.close()


def _run_module(
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    log_file: str,
) -> None:
    with open(log_file, "a") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    _prepare([module, *arguments], environment)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run_code(
    code: str,
    arguments: list[str],
    environment: dict[str, str],
    stdout: multiprocessing.connection.Connection,
    stderr: multiprocessing.connection.Connection,
) -> None:
    os.dup2(stdout.fileno(), sys.stdout.fileno())
    os.dup2(stderr.fileno(), sys.stderr.fileno())
    _prepare(["-c", *arguments], environment)
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _prepare(argv: list[str], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv
    if EAGER in os.environ:
        import tensorflow as tf

        tf.config.run_functions_eagerly(True)
    gc.freeze()  # excludes all imported objects from garbage collection
