"""Fixtures: a finished run, and warm starts."""

import dataclasses
import gzip
import itertools

import pytest

from albert_tf.config import (
    InitializationConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.training import warm_start
from albert_tf.training.train import train
from data_prep import build_tfrecords, train_tokenizer
from data_prep.config import RecordsConfig, TokenizerConfig
from tests.helpers import tiny_run
from tests.helpers.shared_directory import build_once
from tests.helpers.warm_starts import find_train_records


@pytest.fixture(scope="session")
def source(tiny_records, tmp_path_factory):
    """A finished run of 12 steps, which all test workers share.

    Tests must not change it.
    """

    def train_source(directory):
        train(tiny_run.make_config(tiny_records, directory / "run"))

    return build_once(tmp_path_factory, "source", train_source) / "run"


@pytest.fixture(scope="session")
def other_records(tmp_path_factory):
    """Records of another text, with a vocabulary of 300 pieces.

    All test workers share them, like `source`.
    """
    directory = build_once(tmp_path_factory, "other", build_other_records)
    return directory / "records"


def build_other_records(directory):
    text = directory / "text.txt"
    with gzip.open(tiny_run.CORPUS, "rt", encoding="utf-8") as lines:
        text.write_text("".join(itertools.islice(lines, 9000, 9300)))
    train_tokenizer.main(
        TokenizerConfig(
            input_file=(str(text),),
            model_prefix=str(directory / "spm"),
            vocab_size=300,
        )
    )
    build_tfrecords.main(
        RecordsConfig(
            input_file=(str(text),),
            output_dir=str(directory / "records"),
            spm_model_file=str(directory / "spm.model"),
            dupe_factor=1,
            num_shards=1,
            num_workers=1,
            **tiny_run.LENGTHS,
        )
    )


@pytest.fixture
def plan_for(tiny_records, tmp_path):
    """A function that plans the warm start of a run with a given model."""

    def plan_for(here, weights, objective="sop", **initialization):
        config = tiny_run.make_config(tiny_records, tmp_path)
        found = find_train_records(tiny_records, config)
        config = PretrainingConfig(
            model=here,
            data=dataclasses.replace(config.data, max_seq_length=16),
            training=TrainingConfig(sentence_objective=objective),
            initialization=InitializationConfig(
                init_checkpoint="a", **initialization
            ),
        )
        weights = dataclasses.replace(
            weights, vocabulary=str(tiny_records / "train/spiece.model")
        )
        return warm_start.plan(config, found, weights)

    return plan_for
