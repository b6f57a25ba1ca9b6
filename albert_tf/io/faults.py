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
_REQUEST = re.compile(r"\bwhen ([a-z ]+?) (gs://[^\s'\";]+)")
_REMOTE_PATH = re.compile(r"gs://[^\s'\",;]+")
_BUCKET_IS_MISSING = "bucket does not exist"

# What TensorFlow says when Cloud Storage does not answer in spite of retries,
# and when an answer is incomplete.
_NO_ANSWER = re.compile(
    r"retry attempts failed|libcurl code|HTTP response code (429|5\d\d)"
)
_NO_SCHEME = re.compile(
    r"File system scheme '(.*)' not implemented \(file: '(.*)'"
)
_INCOMPLETE_READ = "File contents are inconsistent"

# What TensorFlow puts around a message: the operation that failed.
_OPERATION = re.compile(r"^{{.*}} | \[Op:\w+\].*$")

_AGAIN = "Finished work is kept: run the same command again"

# By the status of Cloud Storage: what the path must do, and what to do.
_HTTP_FAULTS = {
    401: (
        "accept the credentials of this machine",
        "There are none, or they have expired: run `gcloud auth "
        "application-default login`, or attach a service account to the "
        f"machine. {_AGAIN}.",
    ),
    403: (
        "be accessible to the account of this machine",
        "To read, it needs storage.objects.get and storage.objects.list, e.g. "
        "by the role roles/storage.objectViewer on the bucket. To write, it "
        "needs storage.objects.create, storage.objects.delete and, since "
        "TensorFlow asks for the bucket itself, storage.buckets.get: "
        "roles/storage.objectUser and roles/storage.legacyBucketReader. "
        f"{_AGAIN}.",
    ),
    404: (
        "exist",
        "Check the path; another program may have removed it.",
    ),
}

# What to do about the errors of a local file system.
_REMEDIES = {
    errno.EACCES: "Change its permissions, or choose another path.",
    errno.EPERM: "Change its permissions, or choose another path.",
    errno.EROFS: "Choose a path on a file system that can be written to.",
    errno.ENOTDIR: "Correct the path: one of its parents is a file.",
    errno.EISDIR: "Give the path of a file.",
    errno.EMFILE: "Raise the limit of open files, e.g. ulimit -n 4096.",
    errno.EFBIG: f"Raise the limit of the size of files, ulimit -f. {_AGAIN}.",
    errno.EIO: f"Check the disk. {_AGAIN}.",
    errno.ESTALE: f"Check the network file system. {_AGAIN}.",
}
# Packages that only some commands need -> the extra that installs them, if any.
_EXTRAS = {
    "tensorflow": "cpu",  # or gpu, tpu
    "tensorflow_datasets": "tfds",
    "distributed": "dask",
    "pyarrow": "data",
    "ai_edge_litert": "litert",
    "seqeval": "",
    "torch": "interop",
    "transformers": "interop",
}
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


def explain(error: BaseException) -> UserError | None:
    """The error to print instead of one of Python or TensorFlow.

    A `RetryError` if the same command may succeed without a change; None for
    an error without a known remedy.

    Example:
        >>> print(explain(PermissionError(13, "Permission denied", "run/log")))
        run/log must be accessible. Received: Permission denied. Change its
        permissions, or choose another path.
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
        if package not in _EXTRAS:
            return None
        extra = _EXTRAS[package]
        remedy = f"pip install 'albert-tf[{extra}]'"
        if not extra:
            remedy = f"pip install {package}"
        if package == "tensorflow":
            remedy += ", or [gpu] or [tpu]"
        return UserError(
            f"{package} must be installed",
            received=str(error),
            remedy=f"{remedy}.",
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
    if unknown := _NO_SCHEME.search(text):
        scheme, path = unknown.groups()
        remedy = "Mount it, or copy it to a local directory or to gs://."
        if scheme == "gs":
            remedy = "pip install 'tensorflow[gcs-filesystem]'."
        return UserError(
            f"{path} must be local or on a file system that TensorFlow reads",
            received=f"{scheme}://",
            remedy=remedy,
        )
    if _REMOTE_PATH.search(text):
        return _explain_remote(text, first_line(error))
    line = _OPERATION.sub("", first_line(error))
    path, found, reason = line.rpartition("; ")
    if found and reason in _NUMBERS:
        return _explain_local(_NUMBERS[reason], path, reason)
    return None


def describe(error: BaseException) -> str:
    """Describes an error in one line, for a log; with the remedy if known."""
    return str(explain(error) or first_line(error))


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
    remedy = _REMEDIES.get(number, "Check the path.")
    return UserError(f"{path} must {must}", received=reason, remedy=remedy)


def _explain_remote(text: str, line: str) -> UserError | None:
    request = _REQUEST.search(text)
    path = request[2] if request else _REMOTE_PATH.findall(text)[0]
    path = path.rstrip(".,:)")
    http = _HTTP_STATUS.search(text)
    status = int(http[1]) if http else 0
    if status == 404 and _BUCKET_IS_MISSING in text:
        return missing_bucket(path)
    received = f"HTTP {status}" + (f" when {request[1]} it" if request else "")
    if status in _HTTP_FAULTS:
        must, remedy = _HTTP_FAULTS[status]
        return UserError(f"{path} must {must}", received, remedy)
    if _INCOMPLETE_READ in text:
        return RetryError(
            f"{path} must be read completely",
            received="fewer bytes than the object has",
            remedy=f"{_AGAIN}.",
        )
    if _NO_ANSWER.search(text):
        return RetryError(
            f"Cloud Storage must answer requests for {path}",
            received=received if status else line[:200],
            remedy="Cloud Storage has failed in spite of retries, or is not "
            f"reachable from this machine. {_AGAIN} later.",
        )
    return None
