"""A local server that TensorFlow uses as Cloud Storage for gs:// paths.

It serves the requests of TensorFlow's client over TLS, behind an HTTP proxy. A
process uses it if its environment has the variables of
`FakeStorage.environment`: libcurl, which TensorFlow contains, reads the proxy
and the certificate authority from there, and TensorFlow the token. Nothing else
of the machine changes. The certificate is made with the `openssl` command.

    with serve(directory) as storage:
        subprocess.run(command, env={**os.environ, **storage.environment()})
        storage.set_rules([Rule("put", status=503, times=1)])

It is a process of its own: TensorFlow holds Python's lock while it closes a
file whose upload has failed.
"""

import contextlib
import dataclasses
import functools
import http.server
import json
import multiprocessing
import multiprocessing.managers
import os
import pathlib
import random
import re
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
TOKEN = "token"
OF_OBJECTS = ("stat", "read", "delete", "rewrite")


@dataclasses.dataclass
class Rule:
    """A fault of some requests.

    Attributes:
        kind: Regular expression of the kind of a request: stat, list, read,
            start (of an upload), put, status (of an upload), delete, rewrite
            (a copy), mkdir, bucket or layout (of a bucket).
        name: Regular expression that is searched in the name of the object.
        skip: Number of matching requests before the first fault.
        times: Number of faults; -1 is no limit.
        at: Place in the content for "half" and "flip", as a fraction.
        status: HTTP status of the answer; 0 gives the right answer, except for
            `action` and `killed`.
        action: "reset": resets the connection before the effect;
            "reset_after": after it; "half": after the content up to `at`;
            "flip": flips a bit at `at`; "stale": lists the objects at the time
            of `set_rules`; "limit": 429 if the object was written less than
            `seconds` ago.
        seconds: Time before the answer, if `action` is not "limit".
        killed: Process that is killed before the request has an effect.
    """

    kind: str = ".*"
    name: str = ""
    skip: int = 0
    times: int = -1
    at: float = 0.5
    status: int = 0
    action: str = ""
    seconds: float = 0.0
    killed: int = 0
    num_faults: int = 0

    def applies(self, kind: str, name: str) -> bool:
        """Whether the next request fails; counts it."""
        if not re.fullmatch(self.kind, kind) or not re.search(self.name, name):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.num_faults == self.times:
            return False
        self.num_faults += 1
        return True


class FakeStorage:
    """Buckets of objects in memory; gs://bucket exists and is empty.

    Args:
        directory: For the certificates.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.buckets: dict[str, dict[str, tuple[bytes, int]]] = {"bucket": {}}
        self.rules: list[Rule] = []
        self.stale: dict[str, list[str]] = {}  # names at `set_rules`
        self.written: dict[str, float] = {}  # times of the last writes
        self.uploads: dict[str, dict[str, Any]] = {}
        self.lock = threading.RLock()
        self._generation = 1
        _make_certificates(directory)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(directory / "cert.pem", directory / "key.pem")
        handler = functools.partial(_Handler, storage=self, tls=tls)
        server = _Server(("127.0.0.1", 0), handler)
        self._environment = {
            "https_proxy": f"http://127.0.0.1:{server.server_address[1]}",
            "CURL_CA_BUNDLE": str(directory / "ca.pem"),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": TOKEN,
            "NO_GCE_CHECK": "true",
        }
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Variables of the processes that use the storage."""
        return self._environment

    def set_rules(self, rules: list[Rule]) -> None:
        """Sets the faults; the first that applies to a request counts."""
        with self.lock:
            self.rules = rules
            self.stale = {b: list(names) for b, names in self.buckets.items()}

    def num_faults(self) -> int:
        """Number of faults of the current rules."""
        with self.lock:
            return sum(rule.num_faults for rule in self.rules)

    def put(self, name: str, content: bytes, bucket: str = "bucket") -> None:
        """Writes an object."""
        with self.lock:
            self._generation += 1
            self.written[name] = time.monotonic()
            self.buckets[bucket][name] = content, self._generation

    def put_files(self, directory: pathlib.Path, prefix: str) -> None:
        """Writes the files of a directory to `bucket` under a prefix."""
        for path in directory.rglob("*"):
            if path.is_file():
                name = f"{prefix}/{path.relative_to(directory)}"
                self.put(name, path.read_bytes())

    def read(self, prefix: str = "") -> dict[str, bytes]:
        """The content of the objects in `bucket` under a prefix, by name."""
        with self.lock:
            return {
                name.removeprefix(prefix): content
                for name, (content, _) in sorted(self.buckets["bucket"].items())
                if name.startswith(prefix) and not name.endswith("/")
            }

    def remove(self, prefix: str) -> None:
        """Removes the objects in `bucket` under a prefix."""
        with self.lock:
            for name in list(self.buckets["bucket"]):
                if name.startswith(prefix):
                    del self.buckets["bucket"][name]

    def find_fault(self, kind: str, name: str) -> Rule | None:
        """The first rule that applies to a request, or None."""
        with self.lock:
            return next((r for r in self.rules if r.applies(kind, name)), None)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves one connection: CONNECT, then requests over TLS."""

    protocol_version = "HTTP/1.1"
    rule = Rule()  # that applies to the request; its action is `fault`
    fault = ""

    def __init__(
        self, *arguments: Any, storage: FakeStorage, tls: ssl.SSLContext
    ) -> None:
        self.storage = storage
        self.tls = tls
        self.host = ""
        super().__init__(*arguments)

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        # Clients may be killed, and rules reset connections.
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def do_CONNECT(self) -> None:
        self.host = self.path.partition(":")[0]
        if self.host not in HOSTS:
            self.send_error(502, f"{self.host} is not served here")
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = self.tls.wrap_socket(
            self.connection, server_side=True
        )
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb")
        self.close_connection = False
        while not self.close_connection:
            self.handle_one_request()
        self.connection.close()

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return True

    def do_any(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = {
            name: values[0]
            for name, values in urllib.parse.parse_qs(url.query).items()
        }
        kind, bucket, name = self._classify(url.path, query)
        self.rule = rule = self.storage.find_fault(kind, name) or Rule()
        self.fault = rule.action
        # A request that takes effect has arrived completely before the kill.
        content = b"" if self.fault == "reset" else self._content()
        if rule.killed:
            os.kill(rule.killed, signal.SIGKILL)
        if self.fault == "reset":
            self._reset()
        age_s = time.monotonic() - self.storage.written.get(name, 0.0)
        if self.fault != "limit":
            time.sleep(rule.seconds)
        if self.fault == "limit" and age_s < rule.seconds:
            self._fail(429, "The rate of changes of the object is too high.")
        elif rule.status:
            self._fail(rule.status, "a fault of the test")
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._fail(401, "Invalid Credentials")
        elif bucket not in self.storage.buckets:
            self._fail(404, "The specified bucket does not exist.")
        else:
            with self.storage.lock:
                self.objects = self.storage.buckets[bucket]
                if kind in OF_OBJECTS and name not in self.objects:
                    self._fail(404, f"No such object: {bucket}/{name}")
                else:
                    getattr(self, f"_{kind}")(bucket, name, query, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815

    def _classify(
        self, path: str, query: dict[str, str]
    ) -> tuple[str, str, str]:
        """Returns the kind of a request, the bucket and the object."""
        if self.host == "storage.googleapis.com" and not path.startswith(
            ("/storage/v1", "/upload/")
        ):
            _, bucket, name = urllib.parse.unquote(path).split("/", 2)
            return "read", bucket, name
        if match := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            if "upload_id" in query:
                upload = self.storage.uploads.get(query["upload_id"], {})
                # An empty object is uploaded without this header.
                content_range = self.headers.get("Content-Range", "")
                asks = content_range.startswith("bytes */")
                kind = "status" if asks else "put"
                return kind, match[1], upload.get("name", "")
            kind = "start" if query["uploadType"] == "resumable" else "mkdir"
            return kind, match[1], query["name"]
        match = re.fullmatch(r"/storage/v1/b/([^/]+)(?:/(.*))?", path)
        assert match, path
        bucket, rest = match[1], match[2]
        if not rest:
            return "bucket", bucket, ""
        if rest == "storageLayout":
            return "layout", bucket, ""
        if rest == "o":
            return "list", bucket, query.get("prefix", "")
        name = urllib.parse.unquote(rest.split("/")[1])
        if "/rewriteTo/" in rest:
            return "rewrite", bucket, name
        return "delete" if self.command == "DELETE" else "stat", bucket, name

    def _content(self) -> bytes:
        """The content of the request, which libcurl may send in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self._receive(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self._receive_line().split(b";")[0], 16):
            chunks.append(self._receive(size))
            self._receive_line()
        while self._receive_line().strip():
            pass
        return b"".join(chunks)

    def _receive(self, size: int) -> bytes:
        """Reads `size` bytes; resets the connection if the client has ended.

        The request then has no effect.
        """
        content = self.rfile.read(size)
        if len(content) < size:
            self._reset()
        return content

    def _receive_line(self) -> bytes:
        line = self.rfile.readline()
        if not line.endswith(b"\n"):
            self._reset()
        return line

    def _reset(self) -> None:
        self.close_connection = True
        # Closing sends RST instead of FIN.
        self.connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.connection.close()
        raise ConnectionResetError

    def _answer(
        self, status: int, content: bytes = b"", **headers: object
    ) -> None:
        if self.fault == "reset_after":
            self._reset()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}"]
        lines += [f"{n.replace('_', '-')}: {v}" for n, v in headers.items()]
        self.wfile.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        if self.fault == "half":
            self.wfile.write(content[: int(len(content) * self.rule.at)])
            self.wfile.flush()
            self._reset()
        self.wfile.write(content)
        self.wfile.flush()

    def _json(self, status: int = 200, **values: object) -> None:
        self._answer(status, json.dumps(values).encode())

    def _fail(self, status: int, message: str) -> None:
        self._json(status, error={"code": status, "message": message})

    # --- the kinds of requests: bucket, object, query, content ---------------

    def _bucket(self, bucket: str, *_: Any) -> None:
        self._json(name=bucket, location="US")

    def _layout(self, bucket: str, *_: Any) -> None:
        self._json(bucket=bucket, hierarchicalNamespace={"enabled": False})

    def _stat(self, bucket: str, name: str, *_: Any) -> None:
        content, generation = self.objects[name]
        self._json(
            name=name,
            size=str(len(content)),
            generation=str(generation),
            updated="2026-01-01T00:00:00.000Z",
        )

    def _list(
        self, bucket: str, prefix: str, query: dict[str, str], _: bytes
    ) -> None:
        delimiter = query.get("delimiter", "")
        is_stale = self.fault == "stale"
        names = (self.storage.stale if is_stale else self.storage.buckets)[
            bucket
        ]
        entries = {}  # whether each is a directory
        for name in sorted(n for n in names if n.startswith(prefix)):
            head, found, _ = name[len(prefix) :].partition(delimiter or "\0")
            entries[f"{prefix}{head}{found}"] = bool(found)
        # Without the next pages: TensorFlow limits only a search for one.
        listed = list(entries)[: int(query.get("maxResults", 1000))]
        self._json(
            prefixes=[entry for entry in listed if entries[entry]],
            items=[{"name": entry} for entry in listed if not entries[entry]],
        )

    def _read(self, bucket: str, name: str, *_: Any) -> None:
        content, status = self.objects[name][0], 200
        asked = re.fullmatch(
            r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")
        )
        if asked:
            first, status = int(asked[1]), 206
            if first >= len(content):
                self._fail(416, "InvalidRange")
                return
            end = int(asked[2]) + 1 if asked[2] else len(content)
            content = content[first:end]
        if self.fault == "flip":
            place = int(len(content) * self.rule.at)
            flipped = bytes([content[place] ^ 4])
            content = content[:place] + flipped + content[place + 1 :]
        self._answer(status, content)

    def _mkdir(
        self, bucket: str, name: str, query: dict[str, str], _: bytes
    ) -> None:
        if query.get("ifGenerationMatch") == "0" and name in self.objects:
            self._fail(412, "Precondition Failed")
            return
        self.storage.put(name, b"", bucket)
        self._json(name=name)

    def _start(self, bucket: str, name: str, *_: Any) -> None:
        upload = f"{random.getrandbits(64):x}"
        self.storage.uploads[upload] = {"name": name, "done": False}
        self._answer(
            200,
            Location=f"https://www.googleapis.com/upload/storage/v1/b/{bucket}/o"
            f"?uploadType=resumable&upload_id={upload}",
        )

    def _status(
        self, bucket: str, name: str, query: dict[str, str], _: bytes
    ) -> None:
        if self.storage.uploads[query["upload_id"]]["done"]:
            self._json(name=name)
        else:
            self._answer(308)

    def _put(
        self, bucket: str, name: str, query: dict[str, str], content: bytes
    ) -> None:
        self.storage.uploads[query["upload_id"]]["done"] = True
        self.storage.put(name, content, bucket)
        self._json(name=name)

    def _delete(self, bucket: str, name: str, *_: Any) -> None:
        del self.objects[name]
        self._answer(204)

    def _rewrite(self, bucket: str, name: str, *_: Any) -> None:
        path = urllib.parse.urlsplit(self.path).path
        target_bucket, target = path.partition("/rewriteTo/b/")[2].split("/o/")
        content, _ = self.objects[name]
        self.storage.put(urllib.parse.unquote(target), content, target_bucket)
        self._json(done=True, resource={"name": target})


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass


class _Manager(multiprocessing.managers.BaseManager):
    pass


_Manager.register("storage", FakeStorage)


@contextlib.contextmanager
def serve(directory: pathlib.Path) -> Iterator[FakeStorage]:
    """Serves a storage from a process of its own.

    Args:
        directory: For the certificates.

    Yields:
        A proxy, which has the methods of the storage but not its attributes.
    """
    with _Manager(ctx=multiprocessing.get_context("spawn")) as manager:
        yield manager.storage(directory)  # type: ignore[attr-defined]


def _make_certificates(directory: pathlib.Path) -> None:
    """Makes ca.pem, and cert.pem with key.pem for the hosts."""

    def openssl(arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments.split()],
            check=True,
            capture_output=True,
            cwd=directory,
        )

    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    openssl(f"req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca")
    openssl(f"req {key} -keyout key.pem -out request.pem -subj /CN={HOSTS[0]}")
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    (directory / "extensions").write_text(f"subjectAltName={names}\n")
    openssl(
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial "
        "-out cert.pem -days 2 -extfile extensions"
    )
