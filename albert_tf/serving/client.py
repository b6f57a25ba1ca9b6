r"""Query a model on TensorFlow Serving, over gRPC or REST.

For a pretrained model, the client fills masks. With --text_pair, it prints the
probability that the second text follows the first:

    python -m albert_tf.serving.client --server=http://localhost:8501 \
      --text='Paris is the [MASK] of France.' --text='It is [MASK].'

    python -m albert_tf.serving.client --server=grpc://localhost:8500 \
      --text='She opened the door.' --text_pair='It was dark inside.'

For a fine-tuned model, it prints a JSON object for each text and question, as
`python -m albert_tf.predict` does. A model for question answering scores
tokens: the client finds the answer in the scores, with the vocabulary and the
settings of a copy of the export:

    python -m albert_tf.serving.client --server=http://localhost:8501 \
      --saved_model_dir=export/squad/1 \
      --text='Basel lies on the Rhine.' --question='Where is Basel?'

REST needs only Python; gRPC needs `pip install 'albert-tf[serving]'`.
`RestClient` and `GrpcClient` implement only the protocol: copy them into your
own code.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from albert_tf.config import ServingClientConfig, flags
from albert_tf.errors import UserError, first_line
from albert_tf.serving.predict import Client, Inputs, decode, print_responses

TIMEOUT_S = 60  # the first request may wait until the model is loaded


class RestClient:
    """A client of TensorFlow Serving's REST interface, at http://HOST:PORT."""

    def __init__(self, url: str, model_name: str) -> None:
        self.url = f"{url.rstrip('/')}/v1/models/{model_name}"

    def list_signatures(self) -> list[str]:
        metadata = self._request("/metadata", None, "metadata")
        return sorted(metadata["signature_def"]["signature_def"])

    def predict(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        body = {
            "signature_name": signature,
            "inputs": {name: list(values) for name, values in inputs.items()},
        }
        outputs = self._request(":predict", body, "outputs")
        # The server omits the name of a single output.
        return outputs if isinstance(outputs, dict) else {"": outputs}

    def _request(
        self, method: str, body: Mapping[str, Any] | None, key: str
    ) -> Any:
        """The value of `key` in the response to a POST, or GET without body."""
        request = urllib.request.Request(
            self.url + method,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return json.load(response)[key]
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace").strip()
            raise _refused(self.url, reason or first_line(error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _refused(self.url, first_line(error)) from None
        except (ValueError, TypeError, LookupError):
            reason = "a response that is not of TensorFlow Serving"
            raise _refused(self.url, reason) from None


class GrpcClient:
    """A client of TensorFlow Serving's PredictionService, at HOST:PORT."""

    def __init__(self, address: str, model_name: str) -> None:
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        self._address, self._model_name = address, model_name
        # Responses of `encode_text` can exceed gRPC's limit of 4 MB.
        unlimited = [("grpc.max_receive_message_length", -1)]
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(
            grpc.insecure_channel(address, unlimited)
        )

    def list_signatures(self) -> list[str]:
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(
            metadata_field=["signature_def"]
        )
        request.model_spec.name = self._model_name
        response = self._call(self._stub.GetModelMetadata, request)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return sorted(signatures.signature_def)

    def predict(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._model_name
        request.model_spec.signature_name = signature
        for name, values in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(list(values)))
        response = self._call(self._stub.Predict, request)
        return {
            name: decode(tf.make_ndarray(tensor).tolist())
            for name, tensor in response.outputs.items()
        }

    def _call(self, method: Any, request: Any) -> Any:
        import grpc

        try:
            return method(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise _refused(self._address, error.details()) from None


def connect(server: str, model_name: str) -> Client:
    """Returns a client of `grpc://HOST:PORT` or `http://HOST:PORT`."""
    scheme, _, address = server.partition("://")
    if scheme == "grpc" and address:
        return GrpcClient(address, model_name)
    if scheme in ("http", "https") and address:
        return RestClient(server, model_name)
    raise UserError(
        "server must begin with grpc://, http:// or https://",
        received=server,
        remedy="Examples: grpc://localhost:8500, http://localhost:8501.",
    )


def _refused(server: str, reason: str) -> UserError:
    return UserError(f"{server} must answer the request", received=reason)


def main(config: ServingClientConfig) -> None:
    """Prints the model's predictions for the texts of the flags."""
    config.require("text")
    client = connect(config.server, config.model_name)
    print_responses(client, config, config.saved_model_dir)


if __name__ == "__main__":
    flags.run(main, ServingClientConfig)
