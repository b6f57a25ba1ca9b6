"""An exported model served: by C, over gRPC and REST, and warmed up."""

import concurrent.futures
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)
from tensorflow_serving.apis import (
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)

from albert_tf.config import ExportConfig, ServingClientConfig
from albert_tf.errors import UserError
from albert_tf.export_saved_model import export
from albert_tf.fill_mask import MaskFiller
from albert_tf.serving.client import connect, main
from tests.serving.test_export_saved_model import write_records_files, write_run

TEXTS = ("The [MASK] sat on[MASK].", "Rome is it", "[MASK]")


@pytest.fixture(scope="module")
def saved_model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("serving")
    write_run(directory / "run", steps=(20,))
    write_records_files(directory / "run")
    export(
        ExportConfig(
            run_dir=str(directory / "run"),
            export_dir=str(directory / "model"),
            top_k=3,
        )
    )
    return str(directory / "model")


@pytest.fixture(scope="module")
def model(saved_model_dir):
    return tf.saved_model.load(saved_model_dir)


def answer_as_served(model, signature, inputs):
    """What a server answers, by name: arrays."""
    if signature not in model.signatures:
        raise KeyError(f"Serving signature key not found: {signature}")
    answer = model.signatures[signature](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    return {name: value.numpy() for name, value in answer.items()}


@pytest.fixture
def grpc_server(model):
    """PredictionService, as TensorFlow Serving has it; yields its address."""

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

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Servicer(), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(0)


@pytest.fixture
def rest_server(model):
    """The predict method of the REST interface; yields its URL."""

    def listed(values):
        if isinstance(values, list):
            return [listed(value) for value in values]
        return values.decode() if isinstance(values, bytes) else values

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(size))
            if self.path != "/v1/models/albert:predict":
                self.reply(404, {"error": f"Malformed request: {self.path}"})
                return
            try:
                answer = answer_as_served(
                    model, request["signature_name"], request["inputs"]
                )
            except KeyError as error:
                self.reply(400, {"error": error.args[0]})
                return
            outputs = {k: listed(v.tolist()) for k, v in answer.items()}
            self.reply(200, {"outputs": outputs})

        def reply(self, status, body):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def lines_of(saved_model_dir, texts):
    """What `fill_mask` prints."""
    filler = MaskFiller(saved_model_dir)
    lines = []
    for text in texts:
        lines.append(text)
        for candidates in filler.fill(text) if "[MASK]" in text else []:
            pairs = (f"{c.piece} {c.probability:.1%}" for c in candidates)
            lines.append("    " + "  ".join(pairs))
    return lines


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_a_client_prints_what_the_model_answers(
    protocol, request, saved_model_dir, model, capsys
):
    """Texts of one request have different numbers of masks."""
    server = request.getfixturevalue(f"{protocol}_server")
    main(ServingClientConfig(server=server, text=TEXTS))
    assert capsys.readouterr().out.splitlines() == lines_of(
        saved_model_dir, TEXTS
    )

    main(
        ServingClientConfig(
            server=server, text=("The cat", "a dog"), text_pair="It sat."
        )
    )
    in_order = answer_as_served(
        model,
        "sentence_order_text_pair",
        {"text": ["The cat", "a dog"], "text_pair": ["It sat."] * 2},
    )["in_order"]
    assert abs(in_order[0] - in_order[1]) > 1e-3
    assert capsys.readouterr().out.splitlines() == [
        f"{in_order[0]:.1%} in order: The cat | It sat.",
        f"{in_order[1]:.1%} in order: a dog | It sat.",
    ]


def test_a_mask_that_was_cut_off_is_told(rest_server, capsys):
    """17 positions, two of them [CLS] and [SEP]."""
    main(ServingClientConfig(server=rest_server, text=("[MASK]" * 17,)))
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 15
    assert last == "    2 [MASK] behind the model's max_seq_length"


def test_numbers_come_as_they_are(grpc_server, rest_server, model):
    for server in grpc_server, rest_server:
        answer = connect(server, "albert").predict(
            "encode_text", {"text": TEXTS}
        )
        for name, value in answer_as_served(
            model, "encode_text", {"text": list(TEXTS)}
        ).items():
            np.testing.assert_allclose(answer[name], value, atol=1e-6)


def test_what_a_server_objects_to_is_told(grpc_server, rest_server):
    with pytest.raises(UserError, match="Servable not found: bert"):
        connect(grpc_server, "bert").predict("encode_text", {"text": ["a"]})
    with pytest.raises(UserError, match="signature key not found: ask"):
        connect(rest_server, "albert").predict("ask", {"text": ["a"]})
    for server in "grpc://127.0.0.1:1", "http://127.0.0.1:1":
        with pytest.raises(UserError, match=r"127.0.0.1:1.* must answer"):
            connect(server, "albert").predict("encode_text", {"text": ["a"]})
    for server in "localhost:8500", "grpc://", "ftp://localhost":
        with pytest.raises(UserError, match="server must begin with"):
            connect(server, "albert")


class SomethingElse(http.server.BaseHTTPRequestHandler):
    """A web server that serves no model."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Welcome</html>")

    def log_message(self, *_):
        pass


def test_what_is_no_rest_interface_is_told(grpc_server):
    """The port of the other protocol, another server, and no port at all."""
    server = http.server.HTTPServer(("127.0.0.1", 0), SomethingElse)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for url in (
        grpc_server.replace("grpc://", "http://"),
        f"http://127.0.0.1:{server.server_port}",
        "http://127.0.0.1:port",
    ):
        with pytest.raises(UserError, match=r"http://127.* must answer"):
            connect(url, "albert").predict("encode_text", {"text": ["a"]})
    server.shutdown()
    server.server_close()
    thread.join()


def test_rest_needs_no_tensorflow():
    code = (
        "import sys; from albert_tf.serving.client import connect\n"
        "connect('http://localhost:8501', 'albert')\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_its_package_grpc_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)
    with pytest.raises(UserError, match="tensorflow-serving-api must be"):
        connect("grpc://localhost:8500", "albert")


# --- C -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def c_program(tmp_path_factory):
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    program = tmp_path_factory.mktemp("c") / "fill_mask"
    library_dir = tf.sysconfig.get_lib()
    subprocess.run(
        [
            "gcc",
            *("-std=c11", "-Wall", "-Wextra", "-Werror", "-o", program),
            "albert_tf/serving/fill_mask.c",
            f"-I{tf.sysconfig.get_include()}",
            f"-L{library_dir}",
            "-l:libtensorflow_cc.so.2",
            "-l:libtensorflow_framework.so.2",
            f"-Wl,-rpath,{library_dir}",
        ],
        check=True,
    )
    return program


def run_c(program, saved_model_dir, text):
    """Without Python's variables, and with the operations that it names."""
    ops = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"
    return subprocess.run(
        [
            program,
            saved_model_dir,
            text,
            ops / "_sentencepiece_tokenizer.so",
            ops / "_normalize_ops.so",
        ],
        capture_output=True,
        check=False,
        text=True,
        env={"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def test_a_c_program_fills_masks_as_python_does(c_program, saved_model_dir):
    text = "The [MASK] sat on[MASK]."
    run = run_c(c_program, saved_model_dir, text)
    assert run.returncode == 0, run.stderr
    _, *wanted = lines_of(saved_model_dir, [text])
    assert run.stdout.splitlines() == [line.strip() for line in wanted]
    assert len(wanted) == 2


def test_a_c_program_is_told_what_is_missing(
    c_program, saved_model_dir, tmp_path
):
    missing = run_c(c_program, str(tmp_path), "a [MASK]")
    assert missing.returncode == 1
    assert "Could not find SavedModel" in missing.stderr
    export(
        ExportConfig(
            run_dir=str(pathlib.Path(saved_model_dir).parent / "run"),
            export_dir=str(tmp_path / "model"),
            text_signatures=False,
        )
    )
    without_text = run_c(c_program, str(tmp_path / "model"), "a [MASK]")
    assert without_text.returncode == 1
    assert "was it exported for text" in without_text.stderr


# --- what TensorFlow Serving reads -------------------------------------------


def test_warm_up_calls_every_signature(saved_model_dir, model):
    """The file is read by the messages of tensorflow-serving-api."""
    path = f"{saved_model_dir}/assets.extra/tf_serving_warmup_requests"
    called = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        signature = request.model_spec.signature_name
        answer = answer_as_served(
            model,
            signature,
            {k: tf.make_ndarray(v) for k, v in request.inputs.items()},
        )
        assert all(np.size(value) for value in answer.values()), signature
        called.append(signature)
    assert sorted(called) == sorted(model.signatures)


def test_the_batching_config_has_the_fields_of_tensorflow_serving():
    """`BatchingParameters` of its session_bundle_config.proto."""
    file = descriptor_pb2.FileDescriptorProto(
        name="batching.proto",
        package="check",
        dependency=["google/protobuf/wrappers.proto"],
    )
    message = file.message_type.add(name="BatchingParameters")
    int64 = ".google.protobuf.Int64Value"
    for number, name in enumerate(
        [
            "max_batch_size",
            "batch_timeout_micros",
            "max_enqueued_batches",
            "num_batch_threads",
        ],
        start=1,
    ):
        message.field.add(
            name=name, number=number, type=11, label=1, type_name=int64
        )
    message.field.add(
        name="pad_variable_length_inputs", number=7, type=8, label=1
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    parameters = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("check.BatchingParameters")
    )()
    text = pathlib.Path("albert_tf/serving/batching.config").read_text()
    text_format.Parse(text, parameters)
    assert parameters.max_batch_size.value == 32
    assert not parameters.pad_variable_length_inputs
