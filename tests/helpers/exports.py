"""Small runs with random weights to export, and answers of their exports."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
import tensorflow as tf

from albert_tf.config import (
    DataConfig,
    DistributionConfig,
    FinetuningConfig,
    ModelConfig,
    PretrainingConfig,
    TaskConfig,
    TrainingConfig,
)
from albert_tf.interop import convert
from albert_tf.interop.weight_names import ModelWeights
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.records.features import sha256_of
from albert_tf.runs import checkpoints
from albert_tf.runs.directory import (
    NULL_THRESHOLD_FILE,
    load_config,
    write_config,
)
from tests.helpers.tiny_albert import HEADS, VOCABULARY, random_weights
from tests.helpers.tiny_model import SPREAD

# The vocabulary of `SENTENCES` has 41 pieces.
MODEL = dataclasses.replace(SPREAD, vocab_size=41)
MAX_SEQ_LENGTH = 17
STEPS = (20, 40)

SENTENCES = [
    "the cat sat on the mat and the dog sat on the cat",
    "paris is the capital of france and rome the capital of italy",
    "a quick brown fox jumps over the lazy dog while five wizards box",
]


def write_run(
    run_dir: pathlib.Path,
    sentence_objective: str = "sop",
    steps: tuple[int, ...] = STEPS,
    precision: str = "float32",
) -> None:
    """Writes a run like the trainer's; one bias differs at each step."""
    config = PretrainingConfig(
        model=MODEL,
        data=DataConfig(
            max_seq_length=MAX_SEQ_LENGTH, max_predictions_per_seq=3
        ),
        training=TrainingConfig(sentence_objective=sentence_objective),
        distribution=DistributionConfig(precision=precision),
    )
    pretrainer = AlbertPretrainer(MODEL, sentence_objective)
    pretrainer.build()
    store = checkpoints.CheckpointStore(
        str(run_dir), checkpoints.model_variables(pretrainer)
    )
    for step in steps:
        bias = pretrainer.masked_lm.output_bias
        bias.assign(np.random.default_rng(step).normal(size=bias.shape))
        store.save(step, {})
    store.wait()
    write_config(str(run_dir), config)


def write_records_files(run_dir: pathlib.Path) -> None:
    """Writes the vocabulary and the metadata of the training records."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(run_dir / "spiece"),
        vocab_size=MODEL.vocab_size,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_piece="<pad>",
        control_symbols="[CLS],[SEP],[MASK]",
        user_defined_symbols=".",
        minloglevel=2,
    )
    (run_dir / "spiece.vocab").unlink()
    metadata = {
        "vocabulary_kind": "published",
        "do_lower_case": True,
        "vocabulary_sha256": sha256_of((run_dir / "spiece.model").read_bytes()),
    }
    (run_dir / "records_metadata.json").write_text(json.dumps(metadata))


# --- fine-tuned runs ---------------------------------------------------------

TASK_MODEL = ModelConfig(
    vocab_size=30000,
    embedding_size=4,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=96,
)
# Real questions and their contexts exceed these lengths.
TASK = TaskConfig(
    doc_stride=40,
    max_query_length=14,
    max_qa_length=20,
    max_answer_length=9,
    n_best_size=5,
)
# About half of the questions of SQuAD in tests/testdata have larger null odds.
NULL_THRESHOLD = {"question_answering": -0.09, "beam": -2.8715}


def task_weights(name: str) -> ModelWeights:
    """The weights of the run that `write_task_run` writes."""
    return random_weights(
        TASK_MODEL,
        "none",
        seed=0,
        vocabulary=str(VOCABULARY),
        head=HEADS[name],
    )


def write_task_run(name: str, run_dir: pathlib.Path) -> ModelWeights:
    """Writes a run with the head `HEADS[name]`, and returns its weights."""
    weights = task_weights(name)
    run_dir.mkdir(parents=True)
    convert.write_run(weights, str(run_dir), str(run_dir))
    config = load_config(str(run_dir), FinetuningConfig)
    write_config(str(run_dir), dataclasses.replace(config, task=TASK))
    if name in NULL_THRESHOLD:
        stored = json.dumps({"null_threshold": NULL_THRESHOLD[name]})
        (run_dir / NULL_THRESHOLD_FILE).write_text(stored)
    return weights


# --- answers -----------------------------------------------------------------


def answer_as_served(
    model: Any, signature: str, inputs: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The answer of a server: arrays by the name of the output."""
    if signature not in model.signatures:
        raise KeyError(f"Serving signature key not found: {signature}")
    answer = model.signatures[signature](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    return {name: value.numpy() for name, value in answer.items()}


def filled_lines(model: Any, texts: Sequence[str]) -> list[str]:
    """Each text, and lines of candidates for its masks, as printed."""
    answer = answer_as_served(model, "fill_mask_text", {"text": texts})
    lines = []
    for text, pieces, probabilities in zip(
        texts,
        *(answer[f"top_{n}"] for n in ("pieces", "probabilities")),
        strict=True,
    ):
        lines.append(text)
        for i in range(text.count("[MASK]")):
            pairs = zip(pieces[i], probabilities[i], strict=True)
            lines.append(
                "    " + "  ".join(f"{p.decode()} {q:.1%}" for p, q in pairs)
            )
    return lines
