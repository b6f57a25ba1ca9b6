r"""Compare the serving speed of exports with transformers and ONNX Runtime.

    python -m benchmarks.serve --work_dir=build/serve

All contenders encode the same batches of sentences of the sample corpus by
ALBERT-base with the same random weights, on this CPU: ids in, the output of
every token and the pooled output out. Each contender runs in its own process.
They take turns, one batch at a time, so that other load affects all of them
equally. Contenders with missing packages are left out with a message.

Prints medians in milliseconds a text, wall; CPU time, by batch size x length;
the largest difference to transformers in float32; and the ratio of the fastest
other contender to the fastest of albert_tf.
"""

import contextlib
import dataclasses
import gzip
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from albert_tf.config import Config, ConvertConfig, ExportConfig, flags, setting
from benchmarks.train_step import start

ROOT = pathlib.Path(__file__).parents[1]
CORPUS = ROOT / "data_prep/sample_corpus/wiki-books-demo.txt.gz"
VOCABULARY = ROOT / "models/albert_mini_en/spiece.model"
BATCHES_FILE = "batches.npz"
FOLDER = "hugging_face"

# Exports of albert_tf, and their settings.
EXPORTS: dict[str, dict[str, Any]] = {
    "albert_tf": {},
    "albert_tf_float32": {"precision": "float32"},
    "albert_tf_bfloat16": {"precision": "mixed_bfloat16"},
    "albert_tf_int8": {"precision": "mixed_bfloat16", "weights": "int8"},
}
NAMES = "input_ids", "attention_mask", "token_type_ids"  # of transformers

Encode = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """Where the models are made, and what is measured."""

    work_dir: str = setting(
        "build/serve", "Directory for the models; those in it are used again."
    )
    sizes: tuple[str, ...] = setting(
        ("1x32", "8x32", "32x32", "1x128", "8x128", "32x128"),
        "Batch size and largest number of tokens, comma-separated. A text is "
        "a sentence, or above 64 tokens four sentences.",
    )
    rounds: int = setting(5, "Number of batches of each size.", at_least=1)
    contenders: tuple[str, ...] = setting(
        (
            *("albert_tf", "albert_tf_float32", "albert_tf_bfloat16"),
            *("albert_tf_int8", "transformers", "transformers_compiled"),
            *("transformers_autocast", "transformers_bfloat16"),
            *("onnx_float32", "onnx_int8"),
        ),
        "Contenders to measure, comma-separated; at least one of albert_tf and "
        "one other.",
    )


# --- models and batches ------------------------------------------------------


def make_models(config: BenchmarkConfig) -> None:
    """Writes a Hugging Face folder and its exports."""
    import torch
    import transformers

    from albert_tf import convert_checkpoint, export_saved_model

    work_dir = pathlib.Path(config.work_dir)
    folder, run_dir = work_dir / FOLDER, work_dir / "run"
    if not folder.exists():
        torch.manual_seed(0)
        model = transformers.AlbertForPreTraining(
            transformers.AlbertConfig(
                vocab_size=_tokenizer().vocab_size,
                hidden_size=768,
                num_attention_heads=12,
                intermediate_size=3072,
            )
        )
        for name, weight in model.named_parameters():
            if name.endswith("bias"):  # 0, with which a product is cheaper
                torch.nn.init.normal_(weight, std=0.02)
        model.save_pretrained(folder)
        (folder / "spiece.model").write_bytes(VOCABULARY.read_bytes())
    if not run_dir.exists():
        convert_checkpoint.main(
            ConvertConfig(from_=str(folder), to=str(run_dir))
        )
    texts = work_dir / "texts.txt"
    texts.write_text("\n".join(_sentences()[:32]))
    for name, settings in EXPORTS.items():
        if not (work_dir / name).exists():
            export_saved_model.main(
                ExportConfig(
                    run_dir=str(run_dir),
                    export_dir=str(work_dir / name),
                    text_file=str(texts),
                    text_signatures=False,
                    **settings,
                )
            )


def _tokenizer() -> Any:
    from albert_tf.records.tokenization import Tokenizer

    return Tokenizer(str(VOCABULARY))


def _sentences() -> list[str]:
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        return [line for line in map(str.strip, file) if line]


def make_batches(config: BenchmarkConfig) -> Iterator[tuple[str, Any]]:
    """The inputs of each size and round, padded to their longest text."""
    sentences, tokenizer = _sentences(), _tokenizer()
    for size in config.sizes:
        batch, length = map(int, size.split("x"))
        step = 1 if length <= 64 else 4
        texts = [
            " ".join(sentences[begin : begin + step])
            for begin in range(0, len(sentences), step)
        ]
        chosen = np.random.default_rng(0).choice(
            len(texts), (config.rounds + 1, batch), replace=False
        )
        for number, rows in enumerate(chosen):
            inputs = tokenizer.encode(
                [texts[row] for row in rows], None, length
            )
            yield f"{size}/{number}", np.stack(inputs)


# --- contenders --------------------------------------------------------------


def _albert_tf(name: str, work_dir: str) -> Encode:
    import tensorflow as tf

    model = tf.saved_model.load(f"{work_dir}/{name}")
    fields = "input_ids", "input_mask", "segment_ids"

    def call(*inputs: np.ndarray) -> Any:
        tensors = map(tf.constant, inputs)
        outputs = model.signatures["encode"](
            **dict(zip(fields, tensors, strict=True))
        )
        return outputs["sequence_output"].numpy()

    return call


def _transformers(name: str, work_dir: str) -> Encode:
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    model = transformers.AlbertModel.from_pretrained(
        f"{work_dir}/{FOLDER}", attn_implementation="sdpa"
    ).eval()
    if name == "transformers_bfloat16":
        model = model.to(torch.bfloat16)
    encode: Any = model
    if name == "transformers_compiled":
        encode = torch.compile(model, dynamic=True)

    def call(*inputs: np.ndarray) -> Any:
        tensors = [torch.tensor(values, dtype=torch.long) for values in inputs]
        is_mixed = name == "transformers_autocast"
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16, enabled=is_mixed),
        ):
            outputs = encode(**dict(zip(NAMES, tensors, strict=True)))
        return outputs.last_hidden_state.float().numpy()

    return call


def _onnx(name: str, work_dir: str) -> Encode:
    import onnxruntime
    import torch
    import transformers

    path = f"{work_dir}/{name}.onnx"
    options = onnxruntime.SessionOptions()
    if name == "onnx_int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        _onnx("onnx_float32", work_dir)
        # Only kernels that are constants, not transposed ones, become int8.
        folded = f"{work_dir}/onnx_folded.onnx"
        options.optimized_model_filepath = folded
        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.graph_optimization_level = level
        onnxruntime.InferenceSession(f"{work_dir}/onnx_float32.onnx", options)
        quantize_dynamic(folded, path, weight_type=QuantType.QInt8)
        options = onnxruntime.SessionOptions()
    elif not os.path.exists(path):
        model = transformers.AlbertModel.from_pretrained(
            f"{work_dir}/{FOLDER}", attn_implementation="eager"
        )
        sizes = {
            0: torch.export.Dim("batch"),
            1: torch.export.Dim("length", max=512),
        }
        torch.onnx.export(
            model.eval(),
            (),
            path,
            kwargs={n: torch.ones(2, 8, dtype=torch.int64) for n in NAMES},
            dynamic_shapes=dict.fromkeys(NAMES, sizes),
            output_names=["sequence_output", "pooled_output"],
            external_data=False,
            dynamo=True,
        )
    options.intra_op_num_threads = os.cpu_count() or 1
    # Waiting threads must not spin while another contender runs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options)

    def call(*inputs: np.ndarray) -> Any:
        values = [array.astype(np.int64) for array in inputs]
        return session.run(None, dict(zip(NAMES, values, strict=True)))[0]

    return call


CONTENDERS: dict[str, Callable[[str, str], Encode]] = {
    **dict.fromkeys(EXPORTS, _albert_tf),
    "transformers": _transformers,
    "transformers_compiled": _transformers,
    "transformers_autocast": _transformers,
    "transformers_bfloat16": _transformers,
    "onnx_float32": _onnx,
    "onnx_int8": _onnx,
}


def answer(name: str, work_dir: str) -> int:
    """Encodes the batch that each line on standard input names."""
    batches = np.load(f"{work_dir}/{BATCHES_FILE}")
    with contextlib.redirect_stdout(sys.stderr):  # of exporters
        encode = CONTENDERS[name](name, work_dir)
        for key in batches.files:
            if key.endswith("/0"):  # not measured
                encode(*batches[key])
    print(json.dumps({"ready": name}), flush=True)
    for line in sys.stdin:
        inputs = batches[line.strip()]
        begin, cpu_begin = time.perf_counter(), time.process_time()
        output = encode(*inputs)
        seconds = time.perf_counter() - begin
        cpu_seconds = time.process_time() - cpu_begin
        tokens = output[inputs[1] > 0]
        found = {
            "seconds": [seconds, cpu_seconds],
            "output": tokens[:: max(1, len(tokens) // 8)].tolist(),
        }
        print(json.dumps(found), flush=True)
    return 0


# --- the table ---------------------------------------------------------------


def main(config: BenchmarkConfig) -> None:
    """Measures and prints."""
    os.makedirs(config.work_dir, exist_ok=True)
    make_models(config)
    batches = dict(make_batches(config))
    np.savez(f"{config.work_dir}/{BATCHES_FILE}", **batches)
    print(f"| | {' | '.join(config.sizes)} | largest difference |")
    print(f"|---|{'---|' * len(config.sizes)}---|")
    times, differences = measure(config, [k for k in batches if k[-2:] != "/0"])
    masks = [batches[f"{size}/1"][1] for size in config.sizes]
    cells = [f"{mask.sum() / len(mask):.0f}" for mask in masks]
    print(f"| tokens a text, batch 1 | {' | '.join(cells)} | |")
    medians = {
        name: np.median(values, axis=1) for name, values in times.items()
    }
    for name, values in medians.items():
        cells = [f"{wall:.1f}; {cpu:.1f}" for wall, cpu in values]
        print(f"| {name} | {' | '.join(cells)} | {differences[name]:.2g} |")
    best = [
        np.min([v for n, v in medians.items() if (n in EXPORTS) == is_ours], 0)
        for is_ours in (False, True)
    ]
    cells = [f"{wall:.2f}; {cpu:.2f}" for wall, cpu in best[0] / best[1]]
    print(f"| ratio | {' | '.join(cells)} | |")


def measure(
    config: BenchmarkConfig, keys: list[str]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Asks all contenders in turns.

    Returns:
        Wall and CPU time of a text in ms, `(sizes, rounds, 2)`, and the largest
        difference of an output to the first contender of transformers.
    """
    processes = {}
    for name in config.contenders:
        command = [sys.executable, "-m", "benchmarks.serve", name]
        process = start(name, [*command, config.work_dir])
        if process is not None:
            processes[name] = process
    times: dict[str, list[list[float]]] = {name: [] for name in processes}
    differences = dict.fromkeys(processes, 0.0)
    for key in keys:
        outputs = {}
        for name, process in processes.items():
            assert process.stdin and process.stdout
            process.stdin.write(f"{key}\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            texts = int(key.split("x")[0])
            times[name].append([1000 * s / texts for s in found["seconds"]])
            outputs[name] = np.array(found["output"])
        exact = next(v for n, v in outputs.items() if n not in EXPORTS)
        for name, output in outputs.items():
            difference = float(np.abs(output - exact).max())
            differences[name] = max(differences[name], difference)
    for process in processes.values():
        process.communicate()
    shape = len(config.sizes), config.rounds, 2
    return {n: np.reshape(v, shape) for n, v in times.items()}, differences


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in CONTENDERS:
        sys.exit(answer(*sys.argv[1:]))
    flags.run(main, BenchmarkConfig)
