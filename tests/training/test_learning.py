"""Small models learn planted structure, which equality tests cannot show.

Two runs cover LAMB and AdamW, float32 and bfloat16, static and dynamic masks,
packed rows and one example per row, no dropout and dropout that is removed.
"""

import dataclasses

import pytest

from albert_tf.config import ModelConfig
from albert_tf.interop.formats import load
from albert_tf.training.train import train
from data_prep import build_tfrecords, train_tokenizer
from data_prep.config import RecordsConfig, TokenizerConfig
from tests.helpers import planted_text, tiny_run
from tests.helpers.shared_directory import build_once

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
# After 800 steps, all runs have learned; after 560, two have not.
STEPS = 960
# By name: settings of records and run, of the records only, of the run only.
RUNS = {
    "lamb_float32_static_unpacked": (
        {"max_seq_length": 24, "max_predictions_per_seq": 6},
        {"masking": "static", "dupe_factor": 4},
        {
            "optimizer": "lamb",
            "learning_rate": 0.01,
            "global_batch_size": 64,
            "dropout_schedule": f"0:0.05,{STEPS // 2}:0.0",
        },
    ),
    # Rows of two or three examples.
    "adamw_bfloat16_dynamic_packed": (
        {
            "max_seq_length": 48,
            "max_predictions_per_seq": 12,
            "packing": "best_fit",
            "max_examples_per_row": 4,
        },
        {"masking": "dynamic", "dupe_factor": 1},
        {
            "optimizer": "adamw",
            "learning_rate": 0.001,
            "precision": "mixed_bfloat16",
            "global_batch_size": 26,
        },
    ),
}


def build_text(directory):
    """Writes the text and trains the vocabulary of all runs."""
    planted_text.write_text(
        directory / "text.txt", planted_text.make_documents(6000, seed=1)
    )
    planted_text.write_vocabulary_text(directory / "words.txt")
    train_tokenizer.main(
        TokenizerConfig(
            input_file=(str(directory / "words.txt"),),
            model_prefix=str(directory / "spm"),
            vocab_size=MODEL.vocab_size,
            holdout_fraction=0.0,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_planted_structure_is_learned(name, tmp_path, tmp_path_factory):
    directory = build_once(tmp_path_factory, "planted_text", build_text)
    shared, records, settings = RUNS[name]
    build_tfrecords.main(
        RecordsConfig(
            input_file=(str(directory / "text.txt"),),
            output_dir=str(tmp_path / "records"),
            spm_model_file=str(directory / "spm.model"),
            num_shards=1,
            num_workers=1,
            masked_lm_prob=0.2,
            **shared,
            **records,
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
        fuse_on_cpu=False,  # compiles sooner
        masked_lm_prob=0.2,
        **shared,
        **settings,
    )
    train(config)
    learned = planted_text.measure(
        load(str(tmp_path / "run")), planted_text.make_documents(200, seed=2)
    )
    # A model that has not learned them stays near 1/8, 1/2 and 1/2.
    assert learned.copies > 0.9
    assert learned.agreement > 0.95
    assert learned.order > 0.95
