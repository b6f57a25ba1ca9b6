"""Requests that TensorFlow Serving runs before a model's first real one.

It reads them from `assets.extra/tf_serving_warmup_requests`, records of the
protocol buffer `PredictionLog`. Those messages come with
tensorflow-serving-api, which an export does not need: what is used of them is
a few nested fields, written here byte by byte.

Reference:
    [SavedModel
    warmup](https://www.tensorflow.org/tfx/serving/saved_model_warmup).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from albert_tf.records.features import CLS_ID, MASK_ID, SEP_ID

WARMUP_FILE = "tf_serving_warmup_requests"

# A value for each input that a signature may have, each of one example.
EXAMPLES: Mapping[str, Any] = {
    "text": ["The city is the [MASK] of the country."],
    "text_pair": ["It lies on a river."],
    "input_ids": [[CLS_ID, MASK_ID, SEP_ID]],
    "input_mask": [[1, 1, 1]],
    "segment_ids": [[0, 0, 0]],
    "masked_lm_positions": [[1]],
}

# Numbers of fields: PredictionLog.predict_log and PredictLog.request, then
# PredictRequest and ModelSpec; 1 and 2 are the key and value of any map.
_PREDICT_LOG, _REQUEST = 6, 1
_MODEL_SPEC, _INPUTS = 1, 2
_SIGNATURE_NAME = 3
_KEY, _VALUE = 1, 2

_LENGTH_DELIMITED = 2  # the wire type of strings and messages


def write_warmup_requests(
    path: str, signatures: Mapping[str, Iterable[tf.TensorSpec]]
) -> None:
    """Writes a request for each signature.

    Args:
        path: The file, local or gs://.
        signatures: The inputs of each signature by its name.
    """
    with tf.io.TFRecordWriter(path) as writer:
        for name, inputs in signatures.items():
            request = _field(
                _MODEL_SPEC, _field(_SIGNATURE_NAME, name.encode())
            )
            for spec in inputs:
                tensor = tf.make_tensor_proto(EXAMPLES[spec.name], spec.dtype)
                request += _field(
                    _INPUTS,
                    _field(_KEY, spec.name.encode())
                    + _field(_VALUE, tensor.SerializeToString()),
                )
            writer.write(_field(_PREDICT_LOG, _field(_REQUEST, request)))


def _field(number: int, content: bytes) -> bytes:
    """A string or message as protocol buffers have it: tag, length, bytes."""
    length, size = len(content), bytearray()
    while length >= 128:
        size.append(length % 128 + 128)
        length //= 128
    size.append(length)
    return bytes([number * 8 + _LENGTH_DELIMITED]) + bytes(size) + content
