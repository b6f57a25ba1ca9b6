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
NO_ANSWER = (OSError, ValueError, http.client.HTTPException)
PAUSE_S = 2  # between requests; a notice may come only 30 s before the end


@contextlib.contextmanager
def watch_notices(on_notice: Callable[[str], None]) -> Iterator[None]:
    """Listens to notices in other threads while the block runs.

    Machines without a metadata server have no notices.

    Args:
        on_notice: Called in another thread, with the notice as a sentence; at
            most once for each of `NOTICES`.
    """
    ended = threading.Event()
    for path in NOTICES if _metadata_host() else ():
        # A daemon, because it may be waiting for a response.
        threading.Thread(
            target=_watch, args=(path, on_notice, ended), daemon=True
        ).start()
    try:
        yield
    finally:
        ended.set()


def _metadata_host() -> str:
    """Host name of the metadata server; "" on machines without one.

    GCE_METADATA_HOST, as in Google's libraries, or the default host name on a
    machine of Google Cloud.
    """
    if METADATA_HOST_VARIABLE in os.environ:
        return os.environ[METADATA_HOST_VARIABLE]
    try:
        product = pathlib.Path("/sys/class/dmi/id/product_name").read_text()
    except OSError:
        product = ""
    return "metadata.google.internal" if "Google" in product else ""


def _ask(path: str, query: str = "") -> tuple[str, str]:
    """The notice at a path as a sentence, or "", and the ETag of the answer.

    Raises:
        OSError, ValueError, HTTPException: If there is no answer from Google.
    """
    url = f"http://{_metadata_host()}/computeMetadata/v1/{path}{query}"
    # A proxy would not reach the server of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers=METADATA_FLAVOR)
    with opener.open(request, timeout=2 * WAIT_S) as response:
        if response.headers.get("Metadata-Flavor") != "Google":
            raise OSError(f"{url} is not a Google metadata server")
        etag = response.headers.get("ETag", "none")
        value = response.read().decode().strip()
    is_notice = value == NOTICES[path]
    key = path.removeprefix("instance/")
    return f"Google Cloud announces {key} {value}" if is_notice else "", etag


def _watch(
    path: str, on_notice: Callable[[str], None], ended: threading.Event
) -> None:
    etag = "0"  # matches no state, so that the server responds at once
    failed = False
    while not ended.wait(PAUSE_S if failed or etag != "0" else 0):
        query = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={etag}"
        try:
            notice, etag = _ask(path, query)
        except NO_ANSWER as error:
            if not failed and not ended.is_set():
                logging.warning("no notices of %s: %s", path, error)
            failed = True
            continue
        failed = False
        if notice and not ended.is_set():
            on_notice(notice)
            return


def wait_until_gone(limit_s: float) -> None:
    """Waits, for at most `limit_s` seconds, until there is no notice."""
    deadline = time.monotonic() + limit_s
    for path in NOTICES if _metadata_host() else ():
        with contextlib.suppress(*NO_ANSWER):
            while notice := _ask(path)[0]:
                if time.monotonic() >= deadline:
                    logging.warning("%s, still after %.0f s", notice, limit_s)
                    return
                time.sleep(PAUSE_S)


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
