r"""Asks a model that TensorFlow Serving serves, over gRPC or REST.

Fills in masks, and with --text_pair tells how likely that text is to follow:

    python -m albert_tf.serving.client --server=http://localhost:8501 \
      --text='Paris is the [MASK] of France.' --text='It is [MASK].'

    python -m albert_tf.serving.client --server=grpc://localhost:8500 \
      --text='She opened the door.' --text_pair='It was dark inside.'

REST needs Python alone; gRPC needs `pip install -e '.[serving]'`. Copy what
you need: `RestClient` and `GrpcClient` are the messages, and no more.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from albert_tf.config import ServingClientConfig, flags
from albert_tf.errors import UserError, first_line

TIMEOUT_S = 60  # the first request to a cold model may wait for its loading


class Client(Protocol):
    """Whatever asks a served model."""

    def predict(
        self, signature: str, inputs: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """Answers of a signature that takes text.

        Args:
            signature: Its name.
            inputs: By the name of each input, its strings, `(batch,)`.

        Returns:
            By the name of each output, nested lists of numbers and strings.

        Raises:
            UserError: With what the server has to say.
        """


class RestClient:
    """TensorFlow Serving's REST interface.

    Args:
        url: Of the server, e.g. `http://localhost:8501`.
        model_name: The name under which the server has the model.

    Reference:
        [RESTful API](https://www.tensorflow.org/tfx/serving/api_rest).
    """

    def __init__(self, url: str, model_name: str) -> None:
        self._url = f"{url.rstrip('/')}/v1/models/{model_name}:predict"

    def predict(
        self, signature: str, inputs: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """As `Client` has it."""
        body = {
            "signature_name": signature,
            "inputs": {name: list(texts) for name, texts in inputs.items()},
        }
        request = urllib.request.Request(
            self._url,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return json.load(response)["outputs"]
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace").strip()
            raise _refused(self._url, reason or first_line(error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _refused(self._url, first_line(error)) from None
        except (ValueError, TypeError, LookupError):
            raise _refused(
                self._url, "no answer of TensorFlow Serving's REST interface"
            ) from None


class GrpcClient:
    """TensorFlow Serving's PredictionService.

    Args:
        address: Of the server, e.g. `localhost:8500`.
        model_name: The name under which the server has the model.

    Raises:
        UserError: If tensorflow-serving-api is missing.
    """

    def __init__(self, address: str, model_name: str) -> None:
        try:
            import grpc
            from tensorflow_serving.apis import prediction_service_pb2_grpc
        except ImportError as error:
            raise UserError(
                "tensorflow-serving-api must be installed for gRPC",
                received=first_line(error),
                remedy="pip install -e '.[serving]', or ask over http://.",
            ) from None
        self._address, self._model_name = address, model_name
        # As large as an answer of `encode_text` may be.
        unlimited = [("grpc.max_receive_message_length", -1)]
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(
            grpc.insecure_channel(address, unlimited)
        )

    def predict(
        self, signature: str, inputs: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """As `Client` has it."""
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._model_name
        request.model_spec.signature_name = signature
        for name, texts in inputs.items():
            request.inputs[name].CopyFrom(
                tf.make_tensor_proto(list(texts), tf.string)
            )
        try:
            response = self._stub.Predict(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise _refused(self._address, error.details()) from None
        return {
            name: _decode(tf.make_ndarray(tensor).tolist())
            for name, tensor in response.outputs.items()
        }


def connect(server: str, model_name: str) -> Client:
    """A client of `grpc://HOST:PORT` or `http://HOST:PORT`.

    Raises:
        UserError: If it is neither.
    """
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


def _decode(values: Any) -> Any:
    """Nested lists of UTF-8 as strings; of numbers, as they are."""
    if isinstance(values, list):
        return [_decode(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values


def _refused(server: str, reason: str) -> UserError:
    return UserError(f"{server} must answer", received=reason)


def main(config: ServingClientConfig) -> None:
    """Prints the likeliest pieces of each mask, or the order of two texts."""
    config.require("text")
    client = connect(config.server, config.model_name)
    if config.text_pair:
        answer = client.predict(
            "sentence_order_text_pair",
            {
                "text": config.text,
                "text_pair": [config.text_pair] * len(config.text),
            },
        )
        for text, probability in zip(
            config.text, answer["in_order"], strict=True
        ):
            print(f"{probability:.1%} in order: {text} | {config.text_pair}")
        return
    answer = client.predict("fill_mask_text", {"text": config.text})
    for text, *rows in zip(
        config.text,
        answer["top_pieces"],
        answer["top_probabilities"],
        strict=True,
    ):
        print(text)
        # Rows of 0 pad a text with fewer masks than others.
        found = [row for row in zip(*rows, strict=True) if row[1][0]]
        for row in found:
            pairs = zip(*row, strict=True)
            print("   ", "  ".join(f"{p} {q:.1%}" for p, q in pairs))
        if lost := text.count("[MASK]") - len(found):
            print(f"    {lost} [MASK] behind the model's max_seq_length")


if __name__ == "__main__":
    flags.run(main, ServingClientConfig)
