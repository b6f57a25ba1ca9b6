"""Fine-tuning small enough for a test: a model, and examples of each kind."""

import dataclasses
import json
import pathlib
from typing import NamedTuple

import numpy as np

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config.task import FinetuningDataConfig
from albert_tf.finetuning.features import write
from albert_tf.finetuning.kinds import KINDS
from albert_tf.finetuning.objective import BaseModel, Finetuning
from albert_tf.interop.convert import write_run
from albert_tf.interop.weight_names import ModelWeights, list_weights
from tests.helpers import tiny_run

# Has positions for sequences of `max_seq_length`, 96 in `make_config`.
MODEL = dataclasses.replace(
    tiny_run.MODEL,
    num_hidden_layers=2,
    max_position_embeddings=96,
    initializer_range=0.1,
)

# Settings of a run that ends before it has learned.
SHORT = {
    "num_train_steps": 6,
    "steps_per_loop": 2,
    "save_checkpoints_steps": 2,
    "eval_every_n_steps": 2,
    "num_warmup_steps": 2,
}

CITIES = ("Paris", "Rome", "Bern", "Oslo", "Lima", "Quito")
COLOURS = ("red", "green", "blue")


def write_model(directory: pathlib.Path, records: pathlib.Path) -> pathlib.Path:
    """A run with random weights, and the vocabulary of the tiny records."""
    rng = np.random.default_rng(0)
    values = {
        weight.path: (np.ones if weight.path.endswith("gamma") else np.zeros)(
            weight.shape, np.float32
        )
        if "layer_norm" in weight.path or weight.path.endswith("bias")
        else rng.normal(size=weight.shape).astype(np.float32) / 10
        for weight in list_weights(MODEL)
    }
    vocabulary = records / "train" / "spiece.model"
    weights = ModelWeights(MODEL, "sop", values, vocabulary=str(vocabulary))
    directory.mkdir(parents=True)
    write_run(weights, str(directory), str(directory))
    return directory


def classification() -> list[dict]:
    """The colour that a sentence names."""
    return [
        {"text": f"The house in {city} is {colour}.", "label": colour}
        for city in CITIES
        for colour in COLOURS
    ]


def regression() -> list[dict]:
    """The number of a colour, which the second text names."""
    return [
        {
            "text": f"The house in {city} is",
            "pair": colour,
            "label": float(number),
        }
        for city in CITIES
        for number, colour in enumerate(COLOURS)
    ]


def multiple_choice() -> list[dict]:
    """The city that a passage names."""
    return [
        {
            "text": f"She went to {city} by train.",
            "question": "Where did she go?",
            "choices": [city, CITIES[(i + 1) % 6], CITIES[(i + 2) % 6]][shift:]
            + [city, CITIES[(i + 1) % 6], CITIES[(i + 2) % 6]][:shift],
            "label": (3 - shift) % 3,
        }
        for i, city in enumerate(CITIES)
        for shift in range(3)
    ]


def question_answering() -> list[dict]:
    """A city in a passage; or none, if the passage names a colour."""
    found = []
    for i, city in enumerate(CITIES):
        text = f"{COLOURS[i % 3]} is the house that she saw in {city} today."
        found += [
            {
                "text": text,
                "question": "Which city?",
                "answer": city,
                "answer_start": text.index(city),
            },
            {
                "text": text.replace(city, "winter"),
                "question": "Which city?",
                "answer": "",
                "answer_start": 0,
            },
        ]
    return found


def token_classification() -> list[dict]:
    """The cities of a sentence, of one word or two."""
    return [
        {
            "tokens": ["She", "saw", city, "and", "New", other, "today", "."],
            "tags": ["O", "O", "B-LOC", "O", "B-LOC", "I-LOC", "O", "O"],
        }
        for city, other in zip(CITIES, CITIES[1:] + CITIES[:1], strict=True)
    ]


def multi_label_classification() -> list[dict]:
    """All colours that a sentence names."""
    return [
        {"text": f"The house in {city} is {' '.join(named)}.", "label": named}
        for city in CITIES[:3]
        for named in ([], ["red"], ["blue"], ["green", "red"], [*COLOURS])
    ]


EXAMPLES = {
    "classification": classification,
    "regression": regression,
    "multiple_choice": multiple_choice,
    "question_answering": question_answering,
    "token_classification": token_classification,
    "multi_label_classification": multi_label_classification,
}


def write_examples(directory: pathlib.Path) -> pathlib.Path:
    """Writes `KIND.jsonl` for each kind."""
    directory.mkdir(parents=True, exist_ok=True)
    for kind, make in EXAMPLES.items():
        lines = [json.dumps(example) + "\n" for example in make()]
        (directory / f"{kind}.jsonl").write_text("".join(lines))
    return directory


def make_config(
    kind: str,
    directory: pathlib.Path | str,
    run_dir: pathlib.Path | str,
    **changes: object,
) -> FinetuningConfig:
    """Settings of a run that is evaluated on its training examples.

    `directory` has `model` and the examples.
    """
    is_list = kind == "multi_label_classification"
    values = {
        "task": "classification" if is_list else kind,
        "labels_are_lists": is_list,
        "train_file": f"{directory}/{kind}.jsonl",
        "dev_file": f"{directory}/{kind}.jsonl",
        "text_pair_column": "pair" * (kind == "regression"),
        "choice_columns": ("choices",) if kind == "multiple_choice" else (),
        "max_seq_length": 96,
        "max_query_length": 16,
        "max_qa_length": 32,
        "global_batch_size": 6,
        "eval_batch_size": 8,
        "learning_rate": 0.004 if kind == "regression" else 0.002,
        "num_warmup_steps": 10,
        "num_train_steps": 150,
        "steps_per_loop": 50,
        "strategy": "one_device",
        "jit_compile": False,  # as in `tiny_run`
        "init_checkpoint": f"{directory}/model",
        "output_dir": str(run_dir),
        "classifier_dropout": 0.0,
        **changes,
    }
    return FinetuningConfig().replace(**values)


# --- random records with random labels ----------------------------------------

LENGTH, NUM_RECORDS = 24, 30


class RandomTask(NamedTuple):
    """A task of random records, and the run that trains on them."""

    config: FinetuningConfig
    objective: Finetuning


def make_random_task(
    head: TaskHeadConfig, directory: pathlib.Path, **changes: object
) -> RandomTask:
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
        ids = rng.integers(5, MODEL.vocab_size, (rows, LENGTH))
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
            MODEL,
            num_hidden_layers=1,
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
        "jit_compile": False,
        "eval_batch_size": 8,
    }
    config = config.replace(**settings | changes)
    base = BaseModel(config.model, "", None, None)
    return RandomTask(config, Finetuning(config, files, base))
