import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tests.helpers.served_model import answer_as_served


@pytest.mark.parametrize(
    "name",
    [
        "",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("classification", "multiple_choice", "plain", "beam")
        ),
    ],
)
def test_warm_up_calls_every_signature(name, request):
    """Of a pretrained model and of each kind of task except regression. The
    messages of tensorflow-serving-api parse the file."""
    if name:
        task = request.getfixturevalue("exported_task")(name)
        directory, served = task.saved_model_dir, task.client.model
    else:
        directory = request.getfixturevalue("export_dir")
        served = request.getfixturevalue("served")
    path = f"{directory}/assets.extra/tf_serving_warmup_requests"
    called = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        signature = request.model_spec.signature_name
        answer = answer_as_served(
            served,
            signature,
            {k: tf.make_ndarray(v) for k, v in request.inputs.items()},
        )
        assert all(np.size(value) for value in answer.values()), signature
        called.append(signature)
    assert sorted(called) == sorted(served.signatures)
