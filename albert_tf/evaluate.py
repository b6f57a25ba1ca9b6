r"""Measure what a model is good for: minimal pairs (BLiMP), a linear probe.

    python -m albert_tf.evaluate \
      --model=albert_mini_en --minimal_pairs='blimp/data/*.jsonl'

prints a JSON object with the share of pairs of which the model gives the good
sentence the higher probability, as the mean over paradigms: `accuracy`, by
masking the rest of a word together (word-l2r); `plain_accuracy`, by masking
each token alone; and `frequency_accuracy`, by the scores of the pieces in the
vocabulary, without the model. Equal scores count a half. A full BLiMP takes as
long as 54 million tokens of evaluation; `--pairs_per_file=100` has a standard
error of 0.6 points.

    python -m albert_tf.evaluate --model=runs/base --probe=banking77.csv

prints the accuracy of a logistic regression that reads the mean of the hidden
states of a text, in five parts of the file, each predicted from the others.

A run measures both at each evaluation, with `--eval_minimal_pairs` and
`--eval_probe` of run_pretraining.
"""

import json
from typing import Any

from absl import logging

from albert_tf.cluster import versions
from albert_tf.config import EvaluateConfig, flags
from albert_tf.errors import UserError


def main(config: EvaluateConfig) -> None:
    """Prints the measurements of a model as JSON."""
    config.require("model")
    if not (config.minimal_pairs or config.probe):
        raise UserError("minimal_pairs or probe must be given", received="none")
    versions.import_tensorflow()
    import tensorflow as tf

    from albert_tf.interop.formats import load
    from albert_tf.modeling.models import AlbertPretrainer
    from albert_tf.training.yardsticks import LinearProbe, MinimalPairs

    model, tokenizer = load(config.model)
    length = model.config.max_position_embeddings
    strategy = tf.distribute.get_strategy()
    found: dict[str, Any] = {}
    if config.minimal_pairs:
        if not isinstance(model, AlbertPretrainer):
            raise UserError(
                "minimal_pairs needs a model with a masked-LM head",
                received=f"{config.model}, which is fine-tuned",
            )
        pairs = MinimalPairs(
            config.minimal_pairs, tokenizer, length, config.pairs_per_file
        )
        results = pairs.compare(model, strategy)
        accuracy = pairs.mean(results["word_l2r"])
        found["minimal_pairs"] = {
            "accuracy": accuracy,
            "plain_accuracy": pairs.mean(results["plain"]),
            "frequency_accuracy": pairs.mean(results["frequency"]),
            "pairs": pairs.num_pairs,
            "ties": int((results["word_l2r"] == 0.5).sum()),
            "skipped": pairs.num_skipped,
            "unknown_tokens": pairs.num_unknown,
            **{
                f"by_{group}": pairs.by(group, results["word_l2r"])
                for group in ("field", "linguistics_term", "paradigm")
            },
        }
        logging.info("minimal pairs: %.1f %% right", 100 * accuracy)
    if config.probe:
        probe = LinearProbe(config.probe, tokenizer, length)
        found |= probe.measure(model, strategy)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    flags.run(main, EvaluateConfig)
