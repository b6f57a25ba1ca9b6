"""Notices of Google Cloud that it is about to stop this machine.

On Google Cloud the metadata server of a machine announces preemption and
maintenance to this machine only:
https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys

    python -m albert_tf.cluster.notices PROGRAM ARG...

runs a Python program, and sends it SIGTERM at a notice. `tpu/on_host.sh` starts
the server of each host of a slice in this way, since a server passes SIGTERM on
to the process that trains (`cluster.preemption`). Before that,

    python -m albert_tf.cluster.notices --wait SECONDS

waits until no notice is there: a run that starts meanwhile would stop at once.
"""

import contextlib
import http.client
import os
import pathlib
import runpy
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

from absl import logging

# Paths on the metadata server, each with the value at which a run stops. At
# other values it goes on, for example while Google migrates the machine.
NOTICES = {
    "instance/preempted": "TRUE",
    "instance/maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE",
}
METADATA_HOST_VARIABLE = "GCE_METADATA_HOST"
METADATA_FLAVOR = {"Metadata-Flavor": "Google"}
WAIT_S = 60  # longest time that the server waits for a change
PAUSE_S = 2  # between requests; a notice may come only 30 s before the end


@contextlib.contextmanager
def watch_notices(on_notice: Callable[[str], None]) -> Iterator[None]:
    """Listens to notices in other threads while the block runs.

    Machines without a metadata server have no notices.

    Args:
        on_notice: Called in another thread, with the notice as a sentence; at
            most once for each of `NOTICES`.
    """
    host, ended = metadata_host(), threading.Event()
    for path in NOTICES if host else ():
        # A daemon, because it may be waiting for a response.
        threading.Thread(
            target=_watch_metadata,
            args=(host, path, on_notice, ended),
            daemon=True,
        ).start()
    try:
        yield
    finally:
        ended.set()


def metadata_host() -> str:
    """Host name of the metadata server; "" on machines without one.

    Returns GCE_METADATA_HOST if it is set, as Google's libraries do, or the
    default host name on a machine of Google Cloud.
    """
    if METADATA_HOST_VARIABLE in os.environ:
        return os.environ[METADATA_HOST_VARIABLE]
    product = pathlib.Path("/sys/class/dmi/id/product_name")
    try:
        is_google = "Google" in product.read_text()
    except OSError:
        is_google = False
    return "metadata.google.internal" if is_google else ""


def _ask(url: str) -> tuple[str, str]:
    """The answer of the metadata server, and its ETag.

    Raises:
        OSError, ValueError, HTTPException: If there is no answer from Google.
    """
    # A proxy would not reach the server of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    query = urllib.request.Request(url, headers=METADATA_FLAVOR)
    with opener.open(query, timeout=2 * WAIT_S) as response:
        if response.headers.get("Metadata-Flavor") != "Google":
            raise OSError(f"{url} is not a Google metadata server")
        etag = response.headers.get("ETag", "none")
        return response.read().decode().strip(), etag


def _watch_metadata(
    host: str,
    path: str,
    on_notice: Callable[[str], None],
    ended: threading.Event,
) -> None:
    etag = "0"  # matches no state, so that the server responds at once
    failed = False
    while not ended.wait(PAUSE_S if failed or etag != "0" else 0):
        url = (
            f"http://{host}/computeMetadata/v1/{path}?wait_for_change=true"
            f"&timeout_sec={WAIT_S}&last_etag={etag}"
        )
        try:
            value, etag = _ask(url)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not failed and not ended.is_set():
                logging.warning("%s does not answer: %s", url, error)
            failed = True
            continue
        failed = False
        if value == NOTICES[path] and not ended.is_set():
            on_notice(_describe(path))
            return


def _describe(path: str) -> str:
    """A notice of `NOTICES`, as a sentence."""
    key = path.removeprefix("instance/")
    return f"Google Cloud announces {key} {NOTICES[path]}"


def wait_until_gone(limit_s: float) -> None:
    """Waits, for at most `limit_s` seconds, until there is no notice."""
    deadline = time.monotonic() + limit_s
    while notice := _present_notice():
        if time.monotonic() >= deadline:
            logging.warning("%s, still after %.0f s", notice, limit_s)
            return
        time.sleep(PAUSE_S)


def _present_notice() -> str:
    """The notice that is there now, as a sentence; "" for none."""
    host = metadata_host()
    for path, value in NOTICES.items() if host else ():
        try:
            found, _ = _ask(f"http://{host}/computeMetadata/v1/{path}")
        except (OSError, ValueError, http.client.HTTPException):
            continue  # no answer
        if found == value:
            return _describe(path)
    return ""


def _end_this_process(notice: str) -> None:
    logging.warning("%s: sending SIGTERM to this process", notice)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Runs the program that the arguments name, or waits."""
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        print(__doc__)
        return
    if sys.argv[1] == "--wait":
        wait_until_gone(float(sys.argv[2]))
        return
    sys.argv = sys.argv[1:]
    with watch_notices(_end_this_process):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
