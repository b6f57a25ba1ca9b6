"""A local server with the protocol of Google Cloud's metadata server."""

import contextlib
import http.server
import threading


class MetadataServer(http.server.ThreadingHTTPServer):
    """Answers as https://cloud.google.com/compute/docs/metadata specifies.

    Attributes:
        values: The values by key below `instance/`.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("localhost", 0), MetadataHandler)
        self.values = {}

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


class MetadataHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        key = self.path.removeprefix("/computeMetadata/v1/instance/")
        if self.headers.get("Metadata-Flavor") != "Google":
            self.send_error(403)
        elif key not in self.server.values:
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.values[key].encode())

    def log_message(self, *arguments):
        pass
