"""Requests with which TensorFlow Serving warms up a model.

The server reads `assets.extra/tf_serving_warmup_requests`: TFRecords of the
protocol buffer `PredictionLog`. This module declares the few fields in use, so
that an export does not need the package that defines the message,
tensorflow-serving-api.

Reference:
    [SavedModel
    warmup](https://www.tensorflow.org/tfx/serving/saved_model_warmup).
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from albert_tf.records.features import CLS_ID, MASK_ID, SEP_ID

# Values of the last dimension of each input of any signature. Other dimensions
# are 1 if they are free.
EXAMPLES: Mapping[str, Any] = {
    "text": "The city is the [MASK] of the country.",
    "text_pair": "It lies on a river.",
    "question": "Where does it lie?",
    "context": "The city lies on a river.",
    "choices": "On a river.",
    "input_ids": [CLS_ID, MASK_ID, SEP_ID],
    "input_mask": [1, 1, 1],
    "segment_ids": [0, 0, 0],
    "p_mask": [0, 1, 1],
    "masked_lm_positions": [1],
}

# Message -> its fields: name, number and type. A repeated message with key and
# value has the encoding of a map, and bytes have that of an embedded message.
_FIELDS: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "PredictionLog": (("predict_log", 6, "PredictLog"),),
    "PredictLog": (("request", 1, "PredictRequest"),),
    "PredictRequest": (
        ("model_spec", 1, "ModelSpec"),
        ("inputs", 2, "repeated Input"),
    ),
    "ModelSpec": (("signature_name", 3, "string"),),
    "Input": (("key", 1, "string"), ("value", 2, "bytes")),
}


def write_warmup_requests(
    path: str, signatures: Mapping[str, Iterable[tf.TensorSpec]]
) -> None:
    """Writes one request for each signature.

    Args:
        path: The file, local or gs://.
        signatures: The inputs of each signature by its name.
    """
    with tf.io.TFRecordWriter(path) as writer:
        for name, inputs in signatures.items():
            log = _prediction_log_class()()
            request = log.predict_log.request
            request.model_spec.signature_name = name
            for spec in inputs:
                tensor = tf.make_tensor_proto(_example(spec), spec.dtype)
                request.inputs.add(
                    key=spec.name, value=tensor.SerializeToString()
                )
            writer.write(log.SerializeToString())


def _example(spec: tf.TensorSpec) -> np.ndarray:
    """A value for an input: a batch of one."""
    value = np.array(EXAMPLES[spec.name])
    shape = [size or 1 for size in spec.shape]
    shape[len(shape) - value.ndim :] = value.shape
    return np.broadcast_to(value, shape)


@functools.cache
def _prediction_log_class() -> Any:
    """The message class of `PredictionLog`, with the fields above."""
    package = "albert_tf.serving"
    field_proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="warmup_requests.proto", package=package
    )
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, number, type_name in fields:
            field = message.field.add(name=name, number=number)
            field.label = field_proto.LABEL_OPTIONAL
            if type_name.startswith("repeated "):
                type_name = type_name.removeprefix("repeated ")
                field.label = field_proto.LABEL_REPEATED
            if type_name in _FIELDS:
                field.type_name = f".{package}.{type_name}"
                field.type = field_proto.TYPE_MESSAGE
            else:
                field.type = field_proto.Type.Value(f"TYPE_{type_name.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{package}.PredictionLog")
    )
