"""A task of random records with random labels, for tests of its programs."""

import dataclasses
import pathlib
from typing import NamedTuple

import numpy as np

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config.task import FinetuningDataConfig
from albert_tf.finetuning.features import write
from albert_tf.finetuning.kinds import KINDS
from albert_tf.finetuning.objective import BaseModel, Finetuning
from tests.helpers import tiny_task

LENGTH, NUM_RECORDS = 24, 30


class Task(NamedTuple):
    """A task of random records, and the run that trains on them."""

    config: FinetuningConfig
    objective: Finetuning


def make_task(
    head: TaskHeadConfig, directory: pathlib.Path, **changes: object
) -> Task:
    """Records of random tokens, of many lengths, as "train" and as "dev".

    Args:
        head: What the model predicts.
        directory: For the records.
        changes: Settings of the run.
    """
    num_classes = len(head.labels)
    features = KINDS[head.kind].features(head)
    rng, of_lists = np.random.default_rng(0), np.random.default_rng(1)

    def make_record(number: int) -> dict[str, np.ndarray]:
        rows = head.num_choices
        lengths = rng.integers(9, LENGTH + 1, (rows, 1))
        mask = np.arange(LENGTH) < lengths
        ids = rng.integers(5, tiny_task.MODEL.vocab_size, (rows, LENGTH))
        values = {
            "input_ids": ids * mask,
            "input_mask": mask.astype(np.int64),
            "segment_ids": (np.arange(LENGTH) >= 5) * mask,
            "p_mask": (np.arange(LENGTH) < 5) | ~mask,
            "label": rng.normal(size=1)
            if head.kind == "regression"
            else rng.integers(0, 3, 1),
            "labels": of_lists.integers(0, 2, max(num_classes, 1)),
            "word_numbers": mask * of_lists.integers(0, 2, (rows, LENGTH)),
            "token_labels": of_lists.integers(0, 3, (rows, LENGTH)),
            "start_position": rng.integers(5, 7, 1) * (number % 3 > 0),
            "end_position": rng.integers(7, 9, 1) * (number % 3 > 0),
            "is_impossible": np.array([number % 3 == 0]),
            "example_weight": np.ones(1),
        }
        return {
            f.name: values[f.name].reshape(-1).astype(f.dtype) for f in features
        }

    records = list(map(make_record, range(NUM_RECORDS)))
    splits = {"train": records, "dev": records}
    files = write(str(directory), splits, head, LENGTH)
    config = FinetuningConfig(
        model=dataclasses.replace(
            tiny_task.MODEL,
            # Weights so large that errors in attention and GELU would show.
            initializer_range=0.2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        data=FinetuningDataConfig(max_seq_length=LENGTH, global_batch_size=6),
        head=head,
    )
    settings = {
        "learning_rate": 0.003,
        "num_warmup_steps": 5,
        "num_train_steps": 50,
        "classifier_dropout": 0.0,
        "strategy": "one_device",
        "eval_batch_size": 8,
    }
    config = config.replace(**settings | changes)
    base = BaseModel(config.model, "", None, None)
    return Task(config, Finetuning(config, files, base))
