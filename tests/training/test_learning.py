"""A small model learns planted structure, which equality tests cannot show.

From packed rows and dynamic masks, in bfloat16. `test_same_training` compares
LAMB, float32 and static masks with PyTorch.
"""

import dataclasses

import pytest

from albert_tf.config import ModelConfig
from albert_tf.interop.formats import load
from albert_tf.training.train import train
from data_prep import build_tfrecords, train_tokenizer
from data_prep.config import RecordsConfig, TokenizerConfig
from tests.helpers import planted_text, tiny_run

MODEL = ModelConfig(
    vocab_size=planted_text.VOCAB_SIZE,
    embedding_size=32,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=48,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    # At this width, 0.02 would delay learning by thousands of steps.
    initializer_range=0.1,
)
STEPS = 640
# Rows of two or three examples.
LENGTHS = {
    "max_seq_length": 48,
    "max_predictions_per_seq": 12,
    "packing": "best_fit",
    "max_examples_per_row": 4,
    "masked_lm_prob": 0.2,
}


@pytest.mark.slow
@pytest.mark.long
def test_planted_structure_is_learned(tmp_path):
    texts = tmp_path / "text.txt", tmp_path / "words.txt"
    planted_text.write_text(texts[0], planted_text.make_documents(6000, seed=1))
    planted_text.write_vocabulary_text(texts[1])
    train_tokenizer.main(
        TokenizerConfig(
            input_file=(str(texts[1]),),
            model_prefix=str(tmp_path / "spm"),
            vocab_size=MODEL.vocab_size,
        )
    )
    build_tfrecords.main(
        RecordsConfig(
            input_file=(str(texts[0]),),
            output_dir=str(tmp_path / "records"),
            spm_model_file=str(tmp_path / "spm.model"),
            masking="dynamic",
            dupe_factor=1,
            num_shards=1,
            num_workers=1,
            **LENGTHS,
        )
    )
    config = tiny_run.make_config(
        tmp_path / "records",
        tmp_path / "run",
        **dataclasses.asdict(MODEL),
        eval_input_file=(),
        num_train_steps=STEPS,
        num_warmup_steps=60,
        steps_per_loop=STEPS // 8,
        save_checkpoints_steps=STEPS,
        optimizer="adamw",
        learning_rate=0.001,
        precision="mixed_bfloat16",
        global_batch_size=26,
        **LENGTHS,
    )
    train(config)
    learned = planted_text.measure(
        load(str(tmp_path / "run")), planted_text.make_documents(200, seed=2)
    )
    # A model that has not learned them stays near 1/8, 1/2 and 1/2.
    assert learned.copies > 0.9
    assert learned.agreement > 0.95
    assert learned.order > 0.95
