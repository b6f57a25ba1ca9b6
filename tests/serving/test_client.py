"""Clients against servers of gRPC and REST that hold real exports."""

import concurrent.futures
import contextlib
import http.server
import json
import subprocess
import sys
import threading

import grpc
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from albert_tf import predict
from albert_tf.config import PredictConfig, ServingClientConfig
from albert_tf.errors import UserError
from albert_tf.serving.client import connect, main
from albert_tf.serving.predict import decode
from tests.helpers.exports import answer_as_served, filled_lines

TEXTS = ("The [MASK] sat on[MASK].", "Rome is it", "[MASK]")


@contextlib.contextmanager
def serve_grpc(model):
    """PredictionService, as of TensorFlow Serving; yields its address."""

    class Servicer(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):  # noqa: N802
            if request.model_spec.name != "albert":
                context.abort(
                    grpc.StatusCode.NOT_FOUND,
                    f"Servable not found: {request.model_spec.name}",
                )
            answer = answer_as_served(
                model,
                request.model_spec.signature_name,
                {k: tf.make_ndarray(v) for k, v in request.inputs.items()},
            )
            response = predict_pb2.PredictResponse()
            for name, value in answer.items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
            return response

        def GetModelMetadata(self, request, context):  # noqa: N802
            assert list(request.metadata_field) == ["signature_def"]
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for name in model.signatures:
                signatures.signature_def[name].CopyFrom(
                    meta_graph_pb2.SignatureDef()
                )
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.metadata["signature_def"].Pack(signatures)
            return response

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Servicer(), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(0)


@contextlib.contextmanager
def serve_http(respond):
    """A web server of a function: path and body -> status and JSON."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            size = int(self.headers.get("Content-Length", 0))
            status, body = respond(self.path, self.rfile.read(size))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def serve_rest(model):
    """The methods predict and metadata of the REST API."""

    def respond(path, body):
        if path == "/v1/models/albert/metadata":
            # As printed in the documentation of the REST API.
            signatures = {"signature_def": {k: {} for k in model.signatures}}
            return 200, {"metadata": {"signature_def": signatures}}
        if path != "/v1/models/albert:predict":
            return 404, {"error": f"Malformed request: {path}"}
        request = json.loads(body)
        try:
            answer = answer_as_served(
                model, request["signature_name"], request["inputs"]
            )
        except KeyError as error:
            return 400, {"error": error.args[0]}
        outputs = {k: decode(v.tolist()) for k, v in answer.items()}
        if len(outputs) == 1:  # as documented: "we omit the name"
            (outputs,) = outputs.values()
        return 200, {"outputs": outputs}

    return serve_http(respond)


SERVE = {"grpc": serve_grpc, "rest": serve_rest}


@pytest.fixture(params=SERVE)
def server(request, served):
    with SERVE[request.param](served) as address:
        yield address


def test_a_client_prints_the_answers_of_the_model(server, served, capsys):
    """Texts of one request have different numbers of masks."""
    main(ServingClientConfig(server=server, text=TEXTS))
    assert capsys.readouterr().out.splitlines() == filled_lines(served, TEXTS)


TEXTS_OF = {
    "classification": {
        "text": ("It rained.", "The Café"),
        "text_pair": ("So?",),
    },
    "regression": {"text": ("It rained.", "The Café")},
    "multiple_choice": {
        "text": ("Tom fell into the river.",),
        "question": ("He is _.", "How is he?"),
        "choice": ("wet", "dry", "naïve"),
    },
    "plain": {
        "text": ("Basel lies on the Rhine.", "The Café is in Zürich."),
        "question": ("Where is Basel?", "Where is it?"),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS_OF)
def test_a_client_prints_what_predict_prints(name, exported_task, capsys):
    """For each kind of fine-tuned model, a line for each text and question."""
    task, texts = exported_task(name), TEXTS_OF[name]
    settings = {"saved_model_dir": task.saved_model_dir, **texts}
    predict.main(PredictConfig(**settings))
    expected = capsys.readouterr().out
    answers = [json.loads(line) for line in expected.splitlines()]
    assert len(answers) == len(texts["text"]) * len(texts.get("question", "1"))
    assert len({str(answer) for answer in answers}) == len(answers)
    for serve in SERVE.values():
        with serve(task.client.model) as server:
            main(ServingClientConfig(server=server, **settings))
        assert capsys.readouterr().out == expected


def test_a_refusal_carries_the_message_of_the_server(server):
    model, message = "albert", "signature key not found: ask"
    if server.startswith("grpc"):
        model, message = "bert", "Servable not found: bert"
    with pytest.raises(UserError, match=message):
        connect(server, model).predict("ask", {"text": ["a"]})


def test_a_server_that_does_not_answer_is_named(served):
    """A closed port, the gRPC port, a web server, a URL without a number."""
    with (
        serve_http(lambda *_: (200, "Welcome")) as web_server,
        serve_grpc(served) as server,
    ):
        for url in (
            "grpc://127.0.0.1:1",
            "http://127.0.0.1:1",
            server.replace("grpc://", "http://"),
            web_server,
            "http://127.0.0.1:port",
        ):
            with pytest.raises(UserError, match=r"127.* must answer"):
                connect(url, "albert").predict("encode_text", {"text": ["a"]})
    for url in "localhost:8500", "grpc://", "ftp://localhost":
        with pytest.raises(UserError, match="server must begin with"):
            connect(url, "albert")


def test_rest_needs_no_tensorflow():
    code = (
        "import sys; from albert_tf.serving.client import connect\n"
        "connect('http://localhost:8501', 'albert')\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
