"""A small fine-tuned run of each kind with random weights, to export."""

import dataclasses
import json
import pathlib

import numpy as np

from albert_tf.config import (
    FinetuningConfig,
    ModelConfig,
    TaskConfig,
    TaskHeadConfig,
)
from albert_tf.interop.convert import write_run
from albert_tf.interop.weight_names import ModelWeights, list_weights
from albert_tf.runs.directory import (
    NULL_THRESHOLD_FILE,
    load_config,
    write_config,
)
from tests.helpers.tiny_albert import VOCABULARY

MODEL = ModelConfig(
    vocab_size=30000,
    embedding_size=4,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=96,
)
HEADS = {
    "classification": TaskHeadConfig("classification", ("no", "yes", "maybe")),
    "regression": TaskHeadConfig("regression"),
    "multiple_choice": TaskHeadConfig("multiple_choice", num_choices=3),
    "plain": TaskHeadConfig("question_answering"),
    "beam": TaskHeadConfig("question_answering", squad_head="beam"),
}
# Real questions and their contexts exceed these lengths.
TASK = TaskConfig(
    doc_stride=40,
    max_query_length=14,
    max_qa_length=20,
    max_answer_length=9,
    n_best_size=5,
)
# About half of the questions of SQuAD in tests/testdata have larger null odds.
NULL_THRESHOLD = {"plain": -0.09, "beam": -2.8715}


def write_task_run(name: str, run_dir: pathlib.Path) -> ModelWeights:
    """Writes a run with the head `HEADS[name]`, and returns its weights."""
    head = HEADS[name]
    rng = np.random.default_rng(0)
    values = {
        weight.path: rng.normal(size=weight.shape).astype(np.float32)
        for weight in list_weights(MODEL, head=head)
    }
    weights = ModelWeights(
        MODEL, "none", values, vocabulary=str(VOCABULARY), head=head
    )
    run_dir.mkdir(parents=True)
    write_run(weights, str(run_dir), str(run_dir))
    config = load_config(str(run_dir), FinetuningConfig)
    write_config(str(run_dir), dataclasses.replace(config, task=TASK))
    if name in NULL_THRESHOLD:
        stored = json.dumps({"null_threshold": NULL_THRESHOLD[name]})
        (run_dir / NULL_THRESHOLD_FILE).write_text(stored)
    return weights
