"""A substitute for Google Cloud, for the tests of `tpu/launch.sh`."""

import contextlib
import http.server
import os
import signal
import threading

import pytest

from tests.helpers.fake_cloud import Cloud, Metadata, copy_repository


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    directory = tmp_path_factory.mktemp("repository")
    copy_repository(directory)
    return directory


@pytest.fixture
def cloud(tmp_path, repository):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        Metadata.preempted = "FALSE"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = Cloud(tmp_path, server.server_address[1], repository)
        yield made
        server.shutdown()
        for path in made.path.glob("host-*/albert_tf_state/*.pid"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(os.getpgid(int(path.read_text())), signal.SIGKILL)
