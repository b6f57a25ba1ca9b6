"""A local server with the protocol of Google Cloud's metadata server."""

import contextlib
import http.server
import threading
import time
import urllib.parse

from albert_tf.cluster import notices
from tests.helpers.run_processes import PATIENCE_S


class MetadataServer(http.server.ThreadingHTTPServer):
    """Answers as https://cloud.google.com/compute/docs/metadata specifies.

    Attributes:
        values: The values by key below `instance/`.
        flavor: The header Metadata-Flavor of the answers.
        asked: The requested paths.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("localhost", 0), MetadataHandler)
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.flavor = "Google"
        self.asked = []
        self.changed = threading.Condition()

    @property
    def host(self):
        return f"{self.server_address[0]}:{self.server_port}"

    @classmethod
    @contextlib.contextmanager
    def serve(cls):
        """A server that answers while the block runs."""
        with cls() as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield server
            server.shutdown()

    def wait_until_asked(self):
        paths = {f"/computeMetadata/v1/{path}" for path in notices.NOTICES}
        deadline = time.monotonic() + PATIENCE_S
        while not paths <= set(self.asked) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert paths == set(self.asked)

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()


class MetadataHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Metadata-Flavor") != "Google":
            self.send_error(403)
            return
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        self.server.asked.append(url.path)
        key = url.path.removeprefix("/computeMetadata/v1/instance/")

        if key not in self.server.values:
            self.send_error(404)
            return
        with self.server.changed:
            if query.get("wait_for_change") == "true":
                self.server.changed.wait_for(
                    lambda: (
                        etag_of(self.server.values[key])
                        != query.get("last_etag")
                    ),
                    float(query["timeout_sec"]),
                )
            value = self.server.values[key]
        self.send_response(200)
        self.send_header("Metadata-Flavor", self.server.flavor)
        self.send_header("ETag", etag_of(value))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(value.encode())

    def log_message(self, *arguments):
        pass


def etag_of(value):
    return value.encode().hex()
