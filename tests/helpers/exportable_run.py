"""A run with random weights, to export without training."""

import json
import pathlib

import numpy as np
import sentencepiece

from albert_tf.config import (
    DataConfig,
    DistributionConfig,
    ModelConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.io.files import write_text
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.records.features import sha256_of
from albert_tf.runs import checkpoints

MODEL = ModelConfig(
    vocab_size=41,
    embedding_size=16,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=19,
    initializer_range=0.3,
)
MAX_SEQ_LENGTH = 17
STEPS = (20, 40)

# Enough for a vocabulary of 41 pieces.
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
    write_text(str(run_dir / "config.json"), json.dumps(config.to_dict()))


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
