"""Turns errors of file systems into messages that say what to do.

Python raises OSError. TensorFlow raises its own errors, for local files and for
gs://, where its message names the object, the request and the HTTP status.
TensorFlow's errors are recognised by their text, since TensorFlow may not have
been imported.
"""

import errno
import os
import re

from albert_tf.errors import RetryError, UserError, first_line

_HTTP_STATUS = re.compile(r"HTTP response code (\d+)")
_REMOTE_PATH = re.compile(r"gs://[^\s'\",;]+")
_BUCKET_IS_MISSING = "bucket does not exist"

# What TensorFlow says when Cloud Storage does not answer in spite of retries,
# and when an answer is incomplete.
_NO_ANSWER = re.compile(
    r"retry attempts failed|libcurl code|HTTP response code (429|5\d\d)"
)
_INCOMPLETE_READ = "File contents are inconsistent"

# What TensorFlow puts around a message: the operation that failed.
_OPERATION = re.compile(r"^{{.*}} | \[Op:\w+\].*$")

# By the status of Cloud Storage.
_REMEDIES = {
    401: "There are no credentials, or they have expired: run `gcloud auth "
    "application-default login`, or attach a service account to the machine.",
    403: "The account of this machine needs, to read, storage.objects.get and "
    "storage.objects.list (roles/storage.objectViewer) and, to write, "
    "storage.objects.create, storage.objects.delete and storage.buckets.get "
    "(roles/storage.objectUser and roles/storage.legacyBucketReader).",
}

# Packages that only some commands need -> what pip installs for them.
_INSTALL = {
    "tensorflow": "'albert-tf[cpu]', or [gpu] or [tpu]",
    "tensorflow_datasets": "'albert-tf[tfds]'",
    "distributed": "'albert-tf[dask]'",
    "pyarrow": "'albert-tf[data]'",
    "ai_edge_litert": "'albert-tf[litert]'",
    "seqeval": "seqeval",
    "torch": "'albert-tf[interop]'",
    "transformers": "'albert-tf[interop]'",
}
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


def explain(error: BaseException) -> UserError | None:
    """The error to print instead of one of Python or TensorFlow.

    A `RetryError` if the same command may succeed without a change; None for
    an error without a known remedy.

    Example:
        >>> print(explain(PermissionError(13, "Permission denied", "run/log")))
        run/log must be accessible. Received: Permission denied.
    """
    if isinstance(error, UserError):
        return error
    if is_full_disk(error):
        reason = _OPERATION.sub("", str(error).splitlines()[0])
        return UserError(
            f"the disk is full: {reason}",
            remedy="Finished work is kept; free some space (df) or inodes "
            "(df -i), and run the same command again.",
        )
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in _INSTALL:
            return None
        return UserError(
            f"{package} must be installed",
            received=str(error),
            remedy=f"pip install {_INSTALL[package]}.",
        )
    if isinstance(error, OSError):
        return _explain_local(error.errno, error.filename, error.strerror)
    if isinstance(error, MemoryError):
        return UserError(
            "the machine must have enough memory",
            received=str(error) or "no memory left",
            remedy="Close other programs, or raise the limit ulimit -v.",
        )
    if not is_from_tensorflow(error):
        return None
    text = str(error)
    if _REMOTE_PATH.search(text):
        return _explain_remote(text, first_line(error))
    line = _OPERATION.sub("", first_line(error))
    path, found, reason = line.rpartition("; ")
    if found and reason in _NUMBERS:
        return _explain_local(_NUMBERS[reason], path, reason)
    return None


def explain_any(error: BaseException) -> UserError:
    """The error to log instead of one of Python or TensorFlow."""
    return explain(error) or UserError(first_line(error))


def is_from_tensorflow(error: BaseException) -> bool:
    """Whether an error is a `tf.errors.OpError`."""
    return any(c.__name__ == "OpError" for c in type(error).__mro__)


def is_full_disk(error: BaseException) -> bool:
    """Whether Python or TensorFlow raised an error because the disk is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    is_exhausted = type(error).__name__ == "ResourceExhaustedError"
    return is_exhausted and "No space left" in str(error)


def is_incomplete_read(error: BaseException) -> bool:
    """Whether gs:// returned fewer bytes than the object has."""
    return is_from_tensorflow(error) and _INCOMPLETE_READ in str(error)


def missing_bucket(path: str) -> UserError:
    """The error for a path on gs:// whose bucket does not exist."""
    bucket = "/".join(path.split("/")[:3])
    return UserError(
        f"the bucket of {path} must exist",
        received=f"no bucket {bucket} (HTTP 404)",
        remedy="Correct the name, or create the bucket: gcloud storage buckets "
        f"create {bucket}",
    )


def _explain_local(
    number: int | None, path: object, reason: str | None
) -> UserError | None:
    if number is None or path in (None, ""):
        return None
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    must = "exist" if number == errno.ENOENT else "be accessible"
    return UserError(f"{path} must {must}", received=reason)


def _explain_remote(text: str, line: str) -> UserError | None:
    path = _REMOTE_PATH.findall(text)[0].rstrip(".,:)")
    http = _HTTP_STATUS.search(text)
    status = int(http[1]) if http else 0
    if status == 404 and _BUCKET_IS_MISSING in text:
        return missing_bucket(path)
    if _INCOMPLETE_READ in text:
        return RetryError(
            f"{path} must be read completely",
            received="fewer bytes than the object has",
            remedy="Run the same command again.",
        )
    if _NO_ANSWER.search(text):
        return RetryError(
            f"Cloud Storage must answer requests for {path}",
            received=line[:200],
            remedy="It has failed in spite of retries, or is not reachable "
            "from this machine. Run the same command again later.",
        )
    if status:
        remedy = _REMEDIES.get(status, "")
        return UserError(f"{path} must be accessible", f"HTTP {status}", remedy)
    return None
