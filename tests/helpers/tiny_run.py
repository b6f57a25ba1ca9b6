"""A run small enough for a test, on real text: settings and records."""

import contextlib
import dataclasses
import gzip
import itertools
import json
import pathlib
from collections.abc import Iterator

import pytest

from albert_tf.config import (
    DataConfig,
    DistributionConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainingConfig,
    TrainingConfig,
)
from data_prep import build_tfrecords, train_tokenizer
from data_prep.config import (
    RecordsConfig,
    TokenizerConfig,
)
from tests.helpers import forked_program

CORPUS = (
    pathlib.Path(__file__)
    .parents[2]
    .joinpath("data_prep", "sample_corpus", "wiki-books-demo.txt.gz")
)
LENGTHS = {"max_seq_length": 32, "max_predictions_per_seq": 6}
MODEL = ModelConfig(
    vocab_size=400,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=32,
)


# Settings of packed records.
PACKING = {"packing": "best_fit", "max_examples_per_row": 4}


def build_records(
    directory: pathlib.Path, masking: str = "static", packing: str = "none"
) -> pathlib.Path:
    """Records of the first lines of the sample corpus, in train/ and eval/.

    Static records are from two passes over the text, dynamic ones from one.
    """
    text = directory / "text.txt"
    with gzip.open(CORPUS, "rt", encoding="utf-8") as lines:
        # Short documents, so that some are held out.
        num_lines, lines_of_document = 400, 8
        if packing != "none":
            # Two to five words a line, so that a row holds several examples.
            lines = (
                " ".join(line.split()[: 2 + number % 4]) + "\n"
                for number, line in enumerate(lines)
            )
            num_lines, lines_of_document = 1200, 2
        text.write_text(
            "".join(
                line + "\n" * ((number + 1) % lines_of_document == 0)
                for number, line in enumerate(
                    itertools.islice(lines, num_lines)
                )
            ),
            encoding="utf-8",
        )
    train_tokenizer.main(
        TokenizerConfig(
            input_file=(str(text),),
            model_prefix=str(directory / "spm"),
            vocab_size=MODEL.vocab_size,
        )
    )
    build_tfrecords.main(records_config(directory, masking, packing))
    return directory / "records"


def records_config(
    directory: pathlib.Path, masking: str = "static", packing: str = "none"
) -> RecordsConfig:
    """Settings of a build from the text and the vocabulary in a directory."""
    return RecordsConfig(
        input_file=(str(directory / "text.txt"),),
        output_dir=str(directory / "records"),
        spm_model_file=str(directory / "spm.model"),
        holdout_fraction=0.2,
        masking=masking,
        dupe_factor=2 if masking == "static" else 1,
        num_shards=3,
        num_workers=1,
        **LENGTHS,
        **(PACKING if packing != "none" else {}),
    )


def make_config(
    records: pathlib.Path, run_dir: pathlib.Path, **changes: object
) -> PretrainingConfig:
    """Settings of a run of 12 steps; `changes` by setting, in any group."""
    config = PretrainingConfig(
        model=MODEL,
        data=DataConfig(
            input_file=(f"{records}/train/*.tfrecord",),
            eval_input_file=(f"{records}/eval/*.tfrecord",),
            global_batch_size=8,
            eval_batch_size=8,
            max_eval_steps=3,
            shuffle_block_size=50,
            **LENGTHS,
        ),
        optimizer=OptimizerConfig(learning_rate=0.02, num_warmup_steps=2),
        # Programs without fused kernels compile in two thirds of the time.
        distribution=DistributionConfig(
            strategy="one_device", jit_compile=False
        ),
        training=TrainingConfig(
            output_dir=str(run_dir),
            num_train_steps=12,
            steps_per_loop=2,
            save_checkpoints_steps=4,
        ),
    )
    return config.replace(**changes)


def make_synthetic_config(
    run_dir: pathlib.Path, **changes: object
) -> PretrainingConfig:
    """Settings of a run without records; `changes` as for `make_config`."""
    return make_config(
        run_dir,
        run_dir,
        input_file=(),
        eval_input_file=(),
        synthetic_input=True,
        **changes,
    )


@contextlib.contextmanager
def eagerly(on: bool = True) -> Iterator[None]:
    """Runs TensorFlow's functions, also of forked programs, without tracing.

    Tracing the programs of a run takes as long as twenty steps without it.
    """
    import tensorflow as tf

    with pytest.MonkeyPatch.context() as patch:
        if on:
            patch.setenv(forked_program.EAGER, "1")
        tf.config.run_functions_eagerly(on)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(False)


def as_flags(config: PretrainingConfig, model_file: pathlib.Path) -> list[str]:
    """The command line of `run_pretraining` that gives this config."""
    model_file.write_text(json.dumps(config.model.to_dict()))
    flags = [f"--albert_config_file={model_file}"]
    for group in dataclasses.fields(config):
        if group.name == "model":
            continue
        settings = getattr(config, group.name)
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if field.metadata["repeated"]:
                flags += [f"--{field.name}={item}" for item in value]
            elif isinstance(value, tuple):
                flags.append(f"--{field.name}={','.join(value)}")
            else:
                flags.append(f"--{field.name}={value}")
    return flags
