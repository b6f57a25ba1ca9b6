"""Models of LiteRT (TensorFlow Lite): convert and verify on real text.

`--format=litert` of `albert_tf.export_saved_model` writes them. A model takes
the ids of one text at a time, and consists of operations that every runtime of
LiteRT has. docs/edge.md shows how an application calls it.
"""

import contextlib
import math
import posixpath
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flatbuffers
import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import (
    ExportConfig,
    FinetuningConfig,
    PretrainingConfig,
    TaskHeadConfig,
)
from albert_tf.errors import UserError
from albert_tf.io.files import new_directory, write_bytes
from albert_tf.modeling.heads import mean_of_tokens
from albert_tf.modeling.models import AlbertForTask
from albert_tf.records.features import CLS_ID, MASK_ID, PAD_ID, SEP_ID
from albert_tf.records.questions import make_p_mask
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.checkpoints import model_variables
from albert_tf.serving.export import (
    LoadedRun,
    load,
    sentence_probabilities,
    write_assets,
)
from albert_tf.serving.kinds import KINDS, input_names
from albert_tf.serving.text_tokenizer import PackedTexts

Program = Callable[..., Any]
Arrays = dict[str, np.ndarray]

_MASKED = 0.15  # of the tokens of a text, as in pretraining
_MAX_MASKS = 8  # of a text; each has as many outputs as there are pieces

# The largest difference of an output of exact numbers, relative to the largest
# value. Of others, the smallest fraction of equal answers.
_TOLERANCE = 1e-3
_LEAST_AGREEMENT = 0.5

# Outputs whose largest entry is an answer.
_SCORES = ("log_probabilities", "probabilities", "start_logits", "end_logits")


def export(config: ExportConfig, texts: Sequence[str]) -> None:
    """Exports a run as a model of LiteRT.

    `export_dir` appears only when the model is verified.

    Raises:
        UserError: As `export.export`. Also if the converted model does not
            answer like the one in TensorFlow.
        ModuleNotFoundError: Without ai-edge-litert.
    """
    import ai_edge_litert  # noqa: F401  # fails before the conversion

    config = config.replace(text_signatures=True)  # the tokenizer is needed
    export_dir = config.export_dir.rstrip("/")
    with new_directory(export_dir, "export_dir") as partial:
        run = load(config, precision="float32")
        if head := _head(run):
            run.serving["labels"] = list(head.labels)
        write_assets(run, partial)
        content = _convert_and_verify(config, run, texts)
        write_bytes(
            posixpath.join(partial, f"{config.quantize}.tflite"), content
        )
    logging.info("exported step %d to %s", run.step, export_dir)


def _head(run: LoadedRun) -> TaskHeadConfig | None:
    """The head of a fine-tuned model; None of a pretrained one."""
    model = run.model
    return model.head_config if isinstance(model, AlbertForTask) else None


def _convert_and_verify(
    config: ExportConfig, run: LoadedRun, texts: Sequence[str]
) -> bytes:
    """The converted model, which answers texts as the one in TensorFlow."""
    from ai_edge_litert.interpreter import Interpreter

    assert run.tokenizer is not None
    samples = [
        _make_sample(run.run, run.tokenizer, texts, number)
        for number in range(len(texts))
    ]
    program = _make_program(run)
    expected = run_all(lambda **ids: program(*ids.values()), samples)
    content = _convert(run, config.quantize)
    runner = Interpreter(model_content=content).get_signature_runner()
    compared = _compare(
        samples, expected, run_all(runner, samples), config.quantize
    )
    logging.info(
        "%d bytes; on %d texts: %s", len(content), len(texts), compared
    )
    return content


def _make_sample(
    run: PretrainingConfig,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    number: int,
) -> Arrays:
    """The inputs of the model for a text: int32 arrays by name.

    The choices of a text, or the second text of a pair, are the texts after it.
    A text has masks for a pretrained model.
    """
    length = run.data.max_seq_length
    if not isinstance(run, FinetuningConfig):
        inputs = tokenizer.encode(texts[number], None, length)._asdict()
        return _mask(inputs, np.random.default_rng(number))
    head, kind = run.head, KINDS[run.head.kind]
    choices = kind.choices(head)
    (count,) = choices or (1,)
    second: list[str] | None = None
    if choices or kind.has_question or run.task.has_pairs:
        following = range(number + 1, number + 1 + count)
        second = [texts[index % len(texts)] for index in following]
    first = [texts[number]] * count
    inputs = tokenizer.encode(first, second, length)._asdict()
    if choices:
        inputs = {name: rows[np.newaxis] for name, rows in inputs.items()}
    if head.is_beam:
        inputs["p_mask"] = make_p_mask(inputs["segment_ids"])
    return inputs


def _mask(inputs: Arrays, rng: np.random.Generator) -> Arrays:
    """Masks tokens of a text."""
    ids = inputs["input_ids"][0]
    ordinary = np.flatnonzero(~np.isin(ids, (PAD_ID, CLS_ID, SEP_ID)))
    if not len(ordinary):
        ordinary = np.array([0])
    count = min(max(1, round(_MASKED * len(ordinary))), _MAX_MASKS)
    positions = np.sort(rng.choice(ordinary, count, replace=False))
    ids[positions] = MASK_ID
    return inputs | {"masked_lm_positions": np.array([positions], np.int32)}


def run_all(
    call: Callable[..., Any], samples: Sequence[Arrays]
) -> list[Arrays]:
    """The outputs of all samples."""
    return [
        {name: np.array(values) for name, values in call(**inputs).items()}
        for inputs in samples
    ]


def _compare(
    samples: Sequence[Arrays],
    expected: Sequence[Arrays],
    found: Sequence[Arrays],
    quantize: str,
) -> str:
    """Compares outputs with those in TensorFlow, and refuses wrong ones.

    Answers are classes, choices, tags, ends of spans, and best pieces of masks.
    """
    differences, equal, largest = [0.0], [], 1.0
    for sample, one, other in zip(samples, expected, found, strict=True):
        is_token = sample["input_mask"] > 0
        for key in one:
            values, others = one[key], other[key]
            is_number = values.dtype.kind == "f"
            if key in ("start_logits", "end_logits"):
                values, others = (
                    np.where(is_token, scores, -1e9)
                    for scores in (values, others)
                )
            elif values.shape[:2] == is_token.shape:
                values, others = values[is_token], others[is_token]
            if is_number:
                differences.append(np.abs(values - others).max())
                largest = max(largest, np.abs(values).max())
            if key in _SCORES and values.ndim > 1:
                values, others = values.argmax(-1), others.argmax(-1)
            elif is_number:
                continue
            elif values.ndim > 1:  # the best first
                values, others = values[..., 0], others[..., 0]
            equal += (values == others).ravel().tolist()
    difference = float(np.max(differences))
    agreement = float(np.mean(equal)) if equal else None
    fault = ""
    if not math.isfinite(difference):
        fault = "NaN or infinity in its outputs"
    elif quantize == "none" and difference > _TOLERANCE * largest:
        fault = f"outputs that differ by {difference:.2g}"
    elif agreement is not None and agreement < _LEAST_AGREEMENT:
        fault = f"{agreement:.1%} equal answers"
    if fault:
        raise UserError(
            f"the model converted to {quantize} must answer like the model in "
            "TensorFlow",
            received=fault,
            remedy="Choose --quantize=none, which is exact.",
        )
    described = f"the largest difference is {difference:.2g}"
    if agreement is None:
        return described
    return f"{described}; {agreement:.1%} of the answers are equal"


# --- conversion --------------------------------------------------------------


def _make_program(run: LoadedRun) -> Program:
    """The function that is converted: ids of one text, arrays."""
    head = _head(run)
    names = [*PackedTexts._fields, "masked_lm_positions"]
    choices: tuple[int, ...] = ()
    if head:
        names, choices = input_names(head), KINDS[head.kind].choices(head)

    def answer(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = dict(zip(names, values, strict=True))
        if head is None:
            return _answer_pretrained(run.model, inputs)
        if choices:
            inputs = {
                name: tf.reshape(ids, [1, -1]) for name, ids in inputs.items()
            }
        return KINDS[head.kind].numbers(run.model(inputs))

    shape = [1, *choices, None]
    specs = [tf.TensorSpec(shape, tf.int32, name=name) for name in names]
    return tf.function(answer, input_signature=specs, autograph=False)


def _answer_pretrained(
    model: Any, inputs: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    outputs = model.encode(inputs)
    hidden = outputs["sequence_output"]
    outputs["embedding"] = mean_of_tokens(hidden, inputs["input_mask"])
    logits = outputs.pop("sentence_logits", None)
    if logits is not None:
        outputs |= sentence_probabilities(model, logits)
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
        rounded = [_Int8Table(values) for _, values in originals]
        for table, values in zip(tables, rounded, strict=True):
            table.assign(values.rounded * values.scales)
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


class _Int8Table:
    """A table of embeddings as int8, with a scale for each row."""

    def __init__(self, values: np.ndarray) -> None:
        largest = np.maximum(np.abs(values).max(1, keepdims=True), 1e-30)
        self.scales = largest / np.float32(127)
        self.rounded = np.round(values / self.scales).astype(np.int8)

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(tf.gather(self.rounded, ids), tf.float32)
        return rows * tf.gather(self.scales, ids)

    def first_rows(self, length: int | tf.Tensor) -> tf.Tensor:
        return self.rows(tf.range(length))


def _not_folded(norm: Any) -> Program:
    """The call of a LayerNorm, with an end that the converter keeps."""
    call = norm.call

    def bounded(*values: Any, **arguments: Any) -> tf.Tensor:
        return tf.minimum(call(*values, **arguments), tf.float32.max)

    return bounded


def _convert(run: LoadedRun, quantize: str) -> bytes:
    """The file of a model of LiteRT."""
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
            signatures=_make_program(run),
            options=tf.saved_model.SaveOptions(
                experimental_custom_gradients=False
            ),
        )
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        if quantize != "none":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return _share_buffers(converter.convert())


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
