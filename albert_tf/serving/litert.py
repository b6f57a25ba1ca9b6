"""Models of LiteRT (TensorFlow Lite): convert, verify on real text, describe.

`--format=litert` of `albert_tf.export_saved_model` writes them. A model takes
the ids of one text at a time, and consists of operations that every runtime of
LiteRT has. docs/edge.md shows how an application calls it.
"""

import contextlib
import math
import posixpath
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import ExportConfig, TaskHeadConfig
from albert_tf.config.task import MULTIPLE_CHOICE
from albert_tf.errors import UserError, first_line
from albert_tf.io.files import new_directory, write_bytes, write_text
from albert_tf.modeling.heads import mean_of_tokens
from albert_tf.modeling.models import AlbertForTask
from albert_tf.runs.checkpoints import model_variables
from albert_tf.serving import predict
from albert_tf.serving.constant_weights import Int8Matrix, round_to_int8
from albert_tf.serving.export import (
    LoadedRun,
    answer_numbers,
    depth,
    load,
    write_assets,
)
from albert_tf.serving.text_tokenizer import PackedTexts
from albert_tf.serving.verification import (
    Arrays,
    Comparison,
    Sample,
    Text,
    compare,
    make_samples,
    run_all,
)

CARD_FILE = "README.md"

_MAX_CALIBRATION = 100  # texts that give the ranges of int8
_THREADS = (1, 2)

Program = Callable[..., Any]


class Row(NamedTuple):
    """A model in the table of a card.

    Attributes:
        size: Bytes of the file; 0 in TensorFlow.
        times_ms: Median wall time of a text, with one and with two threads; in
            TensorFlow, with those of the process.
        compared: With the model in TensorFlow.
        score: Masked-LM loss in nats, or accuracy; NaN without labels.
    """

    name: str
    layers: int
    size: int
    times_ms: list[float]
    compared: Comparison
    score: float


def export(config: ExportConfig, texts: Sequence[Text]) -> None:
    """Exports a run as models of LiteRT.

    `export_dir` appears only when all models are verified.

    Raises:
        UserError: As `export.export`. Also if the model needs an operation that
            LiteRT does not have, or if a converted model does not answer like
            the one in TensorFlow.
        ModuleNotFoundError: Without ai-edge-litert.
    """
    import ai_edge_litert  # noqa: F401  # fails before the conversion

    config = config.replace(text_signatures=True)  # the tokenizer is needed
    export_dir = config.export_dir.rstrip("/")
    rows: list[Row] = []
    with new_directory(export_dir, "export_dir") as partial:
        for index in range(max(1, len(config.num_layers))):
            changes = depth(config, index)
            run = load(config, precision="float32", **changes)
            if not index:
                if head := _head(run):
                    run.serving["labels"] = list(head.labels)
                write_assets(run, partial)
            for row, content in _convert_all(config, run, texts):
                rows.append(row)
                name = row.name
                if len(config.num_layers) > 1:
                    name += f"_{row.layers}_layers"
                if content:
                    path = posixpath.join(partial, f"{name}.tflite")
                    write_bytes(path, content)
        card = _card(config, rows, len(texts), _head(run) is None)
        write_text(posixpath.join(partial, CARD_FILE), card)
    logging.info("exported step %d to %s", run.step, export_dir)


def _head(run: LoadedRun) -> TaskHeadConfig | None:
    """The head of a fine-tuned model; None of a pretrained one."""
    model = run.model
    return model.head_config if isinstance(model, AlbertForTask) else None


def _convert_all(
    config: ExportConfig, run: LoadedRun, texts: Sequence[Text]
) -> Iterator[tuple[Row, bytes]]:
    """The model in TensorFlow, then the converted models, verified."""
    from ai_edge_litert.interpreter import Interpreter

    length = run.run.data.max_seq_length
    assert run.tokenizer is not None
    samples = make_samples(run.run, run.tokenizer, texts)
    fixed_length = length if config.fixed_length else None
    if fixed_length:
        lengths = dict.fromkeys((*PackedTexts._fields, "p_mask"), length)
        samples = [
            sample._replace(inputs=_pad(sample.inputs, lengths))
            for sample in samples
        ]
    program = _make_program(run, fixed_length)
    layers = run.run.model.num_hidden_layers
    expected, time_ms = run_all(lambda **ids: program(*ids.values()), samples)
    score = _score(expected, samples)
    same = Comparison(0.0, 1.0)
    yield Row("TensorFlow", layers, 0, [time_ms], same, score), b""
    for quantize in config.quantize:
        content = _convert(run, fixed_length, quantize, samples)
        times_ms = []
        for num_threads in _THREADS:
            interpreter = Interpreter(
                model_content=content, num_threads=num_threads
            )
            runner = interpreter.get_signature_runner()
            found, time_ms = run_all(runner, samples)
            times_ms.append(time_ms)
        compared = compare(
            f"the model of {layers} layers converted to {quantize}",
            samples,
            expected,
            found,
            is_exact=quantize == "none",
            remedy="Choose another --quantize; dynamic_int8 is more exact than "
            "int8, and float16 than both.",
        )
        score = _score(found, samples)
        row = Row(quantize, layers, len(content), times_ms, compared, score)
        logging.info("%s", row)
        yield row, content


def _score(found: Sequence[Arrays], samples: Sequence[Sample]) -> float:
    """The masked-LM loss of a pretrained model, the accuracy of others."""
    values: list[float] = []
    for outputs, (inputs, labels) in zip(found, samples, strict=True):
        if "masked_lm_positions" in inputs:
            rows = np.arange(labels.size)
            values += list(-outputs["log_probabilities"][0, rows, labels[0]])
        elif labels.size:
            best = outputs["probabilities"].argmax()
            values.append(float(best == labels[0, 0]))
    return float(np.mean(values)) if values else math.nan


def _pad(inputs: Arrays, lengths: Mapping[str, int]) -> Arrays:
    """Pads sequences with 0, and `p_mask` with 1: no answer has padding."""
    padded = {}
    for name, values in inputs.items():
        missing = lengths.get(name, values.shape[-1]) - values.shape[-1]
        edges = [(0, 0)] * (values.ndim - 1) + [(0, missing)]
        padding = int(name == "p_mask")
        padded[name] = np.pad(values, edges, constant_values=padding)
    return padded


# --- conversion --------------------------------------------------------------


def _make_program(run: LoadedRun, length: int | None) -> Program:
    """The function that is converted: ids of one text, arrays.

    Args:
        length: Number of tokens of all texts; None for any number.
    """
    head = _head(run)
    shape = [1, length]
    if head and head.kind == MULTIPLE_CHOICE:
        shape = [1, head.num_choices, length]
    shapes = dict.fromkeys(PackedTexts._fields, shape)
    if not head:
        shapes["masked_lm_positions"] = [1, None]
    elif head.is_beam:
        shapes["p_mask"] = shape

    def answer(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = dict(zip(shapes, values, strict=True))
        if head is None:
            return _answer_pretrained(run.model, inputs)
        if head.kind == MULTIPLE_CHOICE:
            inputs = {k: tf.reshape(v, [1, -1]) for k, v in inputs.items()}
        return answer_numbers(head, run.model(inputs))

    specs = [tf.TensorSpec(v, tf.int32, name=k) for k, v in shapes.items()]
    return tf.function(answer, input_signature=specs, autograph=False)


def _answer_pretrained(
    model: Any, inputs: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    outputs = model.encode(inputs)
    hidden = outputs["sequence_output"]
    outputs["embedding"] = mean_of_tokens(hidden, inputs["input_mask"])
    logits = outputs.pop("sentence_logits", None)
    if logits is not None:
        names = predict.SENTENCE_SIGNATURES[model.sentence_objective].outputs
        columns = tf.unstack(tf.nn.softmax(logits), axis=-1)
        outputs |= dict(zip(names, columns, strict=True))
    positions = inputs["masked_lm_positions"]
    logits = model.mlm_logits(tf.gather(hidden, positions, batch_dims=1))
    return outputs | {"log_probabilities": tf.nn.log_softmax(logits)}


@contextlib.contextmanager
def _convertible(model: Any, is_int8: bool) -> Iterator[None]:
    """Lets the converter store each weight of a model once.

    It would multiply the scale of a LayerNorm into the kernels that follow, and
    so store the kernels of a layer, and the word embeddings, a second time. Of
    the tables of embeddings, as int8, it would store a copy with one scale;
    with a scale for each row, the word embeddings are the same bytes as the
    kernel of the masked-LM head.
    """
    backbone = model.backbone
    norms = {b.layer_norm for block in backbone.encoder.blocks for b in block}
    if not isinstance(model, AlbertForTask):
        norms.add(model.masked_lm.layer_norm)
    replaced = [(norm, "call", _not_folded(norm)) for norm in norms]
    originals = []
    if is_int8:
        layer = backbone.embeddings
        tables = layer.word_embeddings, layer.position_embeddings
        originals = [(table, table.numpy()) for table in tables]
        rounded = [Int8Matrix(*round_to_int8(v, 1)) for _, v in originals]
        for table, matrix in zip(tables, rounded, strict=True):
            table.assign(matrix.rounded * matrix.scales)
        words, positions = rounded
        replaced.append((layer, "look_up", words.rows))
        replaced.append((layer, "first_positions", positions.first_rows))
    for layer, name, function in replaced:
        setattr(layer, name, function)
    try:
        yield
    finally:
        for layer, name, _ in replaced:
            delattr(layer, name)
        for table, values in originals:
            table.assign(values)


def _not_folded(norm: Any) -> Program:
    """The call of a LayerNorm, with an end that the converter keeps."""
    call = norm.call

    def bounded(*values: Any, **arguments: Any) -> tf.Tensor:
        return tf.minimum(call(*values, **arguments), tf.float32.max)

    return bounded


def _convert(
    run: LoadedRun,
    length: int | None,
    quantize: str,
    samples: Sequence[Sample],
) -> bytes:
    """The file of a model of LiteRT; `length` as in `_make_program`."""
    module = tf.Module()
    module.model_variables = model_variables(run.model)
    with (
        tempfile.TemporaryDirectory() as directory,
        _convertible(run.model, "int8" in quantize),
    ):
        # From a SavedModel, the converter freezes the variables. Given the
        # function, it does not, and all outputs are NaN.
        tf.saved_model.save(
            module,
            directory,
            signatures=_make_program(run, length),
            options=tf.saved_model.SaveOptions(
                experimental_custom_gradients=False
            ),
        )
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        if quantize != "none":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            if quantize == "int8":
                content = _round_products(converter, samples)
            else:
                content = converter.convert()
        except Exception as error:  # the type is private
            raise UserError(
                f"the model must be one that LiteRT can convert to {quantize}, "
                "by built-in operations only",
                received=first_line(error),
                remedy="Export a SavedModel, or convert to --quantize=none.",
            ) from error
    return _share_buffers(content)


def _round_products(converter: Any, samples: Sequence[Sample]) -> bytes:
    """Converts to int8 with fixed ranges, but only the matrix products.

    Softmax and LayerNorm have numbers of too different sizes: with all in int8,
    albert_mini_en filled 8 % of the masks as before.
    """
    longest = {
        name: max(sample.inputs[name].shape[-1] for sample in samples)
        for name in samples[0].inputs
    }
    # The ranges are found with inputs of one shape.
    converter.representative_dataset = lambda: (
        _pad(sample.inputs, longest) for sample in samples[:_MAX_CALIBRATION]
    )
    from ai_edge_litert.schema_py_generated import BuiltinOperator

    options = tf.lite.experimental.QuantizationDebugOptions(
        denylisted_ops=[
            name
            for name in vars(BuiltinOperator)
            if name.isupper() and name != "FULLY_CONNECTED"
        ]
    )
    debugger = tf.lite.experimental.QuantizationDebugger(
        converter=converter,
        debug_dataset=converter.representative_dataset,
        debug_options=options,
    )
    return debugger.get_nondebug_quantized_model()


def _share_buffers(content: bytes) -> bytes:
    """Stores equal weights once.

    The converter stores a copy of a weight for each way in which it is read.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    first: dict[bytes, int] = {}
    same = {}
    for number, buffer in enumerate(model.buffers):
        if buffer.data is not None and len(buffer.data):
            same[number] = first.setdefault(bytes(buffer.data), number)
    for number, other in same.items():
        if number != other:
            model.buffers[number].data = None
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.buffer = same.get(tensor.buffer, tensor.buffer)
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


# --- the card ----------------------------------------------------------------


def _card(
    config: ExportConfig, rows: Sequence[Row], num_texts: int, has_loss: bool
) -> str:
    score = "masked-LM loss" if has_loss else "accuracy"
    lines = [
        "# Models of LiteRT",
        "",
        f"albert_tf made them from {config.run_dir} and compared them with the "
        f"model in TensorFlow on {num_texts} texts of {config.text_file}, one "
        "at a time. Times are medians of this machine. `docs/edge.md` of "
        "albert_tf shows how to ask them.",
        "",
        "| weights | layers | bytes | ms a text, one thread | two threads | "
        f"largest difference | equal answers | {score} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = [f"{ms:.1f}" for ms in row.times_ms] + [""]
        difference, equal = row.compared
        cells = [
            *(row.name, str(row.layers), f"{row.size:,}" if row.size else ""),
            *times[:2],
            f"{difference:.2g}",
            "" if equal is None else f"{equal:.1%}",
            f"{row.score:.3f}" if has_loss else f"{row.score:.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("nan%", ""))
    return "\n".join(lines) + "\n"
