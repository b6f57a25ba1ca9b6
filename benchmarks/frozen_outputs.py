r"""Measures how well a pretrained model separates questions before fine-tuning.

    python -m benchmarks.frozen_outputs --init_checkpoint=models/albert_mini_en

Classifies the questions of Banking77 by logistic regression on the outputs of
the model, without fine-tuning, and on the outputs of a model with random
weights. This takes seconds and indicates what to expect of
`benchmarks.finetune_banking77`: if classification by `[CLS]` is worse with the
pretrained model than with random weights, fine-tuning has to repair `[CLS]`
first. Prints a Markdown table with the accuracy on the test set.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.config import Config, flags, setting
from albert_tf.records.tokenization import Tokenizer
from benchmarks.finetune_banking77 import first_questions

_BATCH = 512  # questions that the model reads at once

# Inverse strength of the regularisation, for standardised outputs.
_INVERSE_REGULARIZATION = 0.05


@dataclasses.dataclass(frozen=True)
class ProbeConfig(Config):
    """Model and data."""

    init_checkpoint: str = setting(
        "", "Pretrained model with its vocabulary, e.g. runs/base."
    )
    data_dir: str = setting(
        "data_prep/sample_questions",
        "Directory with train.jsonl and test.jsonl, whose objects have text "
        "and category.",
    )
    examples_per_class: int = setting(
        10,
        "Number of training questions of each class, the first ones of the "
        "file; 0 is all.",
        at_least=0,
    )


def main(config: ProbeConfig) -> None:
    """Prints the table."""
    config.require("init_checkpoint")
    # Imported here so that --help answers at once.
    import albert_tf

    model, tokenizer = albert_tf.load(config.init_checkpoint)
    random_weights = albert_tf.AlbertBackbone(model.config)
    random_weights.build()
    directory = pathlib.Path(config.data_dir)
    train = first_questions(directory, config.examples_per_class)
    test = (directory / "test.jsonl").read_text().splitlines()
    columns = {
        name: _accuracies(backbone, tokenizer, train, test)
        for name, backbone in (
            ("pretrained", model.backbone),
            ("random weights", random_weights),
        )
    }
    print(f"| output | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for output in columns["pretrained"]:
        values = [f"{column[output]:.1%}" for column in columns.values()]
        print(f"| {output} | {' | '.join(values)} |")


def _accuracies(
    backbone: Any,
    tokenizer: Tokenizer,
    train: Sequence[str],
    test: Sequence[str],
) -> dict[str, float]:
    """The accuracy on the test questions, by output."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    (train_outputs, train_labels), (test_outputs, test_labels) = (
        _read(backbone, tokenizer, lines) for lines in (train, test)
    )
    accuracies = {}
    for output, values in train_outputs.items():
        classifier = make_pipeline(
            StandardScaler(),
            LogisticRegression(C=_INVERSE_REGULARIZATION, max_iter=200),
        )
        classifier.fit(values, train_labels)
        accuracies[output] = classifier.score(test_outputs[output], test_labels)
    return accuracies


def _read(
    backbone: Any, tokenizer: Tokenizer, lines: Sequence[str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The outputs for questions, each `(questions, H)`, and the categories."""
    import albert_tf

    questions = [json.loads(line) for line in lines]
    parts: dict[str, list[np.ndarray]] = {}
    for begin in range(0, len(questions), _BATCH):
        texts = [q["text"] for q in questions[begin : begin + _BATCH]]
        inputs = albert_tf.encode(
            tokenizer,
            texts,
            max_seq_length=backbone.config.max_position_embeddings,
        )
        tokens, pooled = backbone(*inputs)
        tokens = tokens.numpy()
        weights = inputs.input_mask / inputs.input_mask.sum(1, keepdims=True)
        found = {
            "`[CLS]`": tokens[:, 0],
            "mean of the tokens": np.einsum("bl,blh->bh", weights, tokens),
        }
        if pooled is not None:  # a model without sentence head has no pooler
            found["pooled"] = pooled.numpy()
        for output, values in found.items():
            parts.setdefault(output, []).append(values)
    return (
        {output: np.concatenate(values) for output, values in parts.items()},
        [q["category"] for q in questions],
    )


if __name__ == "__main__":
    flags.run(main, ProbeConfig)
