"""Buckets of Cloud Storage, as far as TensorFlow needs them."""

import functools

from albert_tf.io import faults


@functools.cache
def check_bucket(path: str) -> None:
    """Checks that the bucket of a path on gs:// exists.

    Raises:
        UserError: If it does not exist.
        tf.errors.OpError: If its metadata cannot be read, e.g. for lack of
            permission.
    """
    if not path.startswith("gs://"):
        return
    bucket = "/".join(path.split("/")[:3]) + "/"
    if path != bucket:
        check_bucket(bucket)  # asks once for each bucket
        return
    import tensorflow as tf

    try:
        tf.io.gfile.stat(bucket)
    except tf.errors.NotFoundError:
        raise faults.missing_bucket(bucket) from None
    except tf.errors.OpError as error:
        # For a bucket, TensorFlow does not say what it requested.
        request = f"\n\t when reading metadata of {bucket}"
        raise type(error)(None, None, error.message + request) from None
