"""Phonemes with their words: text, vocabulary and records for a test."""

import json
import random

from data_prep import build_tfrecords, train_tokenizer
from data_prep.config import RecordsConfig, TokenizerConfig

UNITS = {
    "the": "ðə",
    "quick": "kwik",
    "brown": "braun",
    "fox": "foks",
    "jumps": "dʒamps",
    "rare": "ɹɛɹ",
}
LENGTHS = {"max_seq_length": 64, "max_predictions_per_seq": 10}
# No label, and those of the four most frequent words.
LABEL_VOCAB_SIZE = 5


def write_text(directory):
    """The path of 60 documents, in which words of UNITS are ever rarer."""
    rng = random.Random(0)
    path = directory / "text.jsonl"
    with path.open("w") as file:
        for _ in range(60):
            words = rng.choices([*UNITS], [13, 10, 7, 4, 2, 1], k=20)
            row = {"units": [UNITS[word] for word in words], "words": words}
            file.write(json.dumps(row) + "\n")
    return path


def build(directory, **settings):
    """Builds records of `directory/text.jsonl`; returns their directory."""
    text = (str(directory / "text.jsonl"),)
    if not (directory / "spm.model").exists():
        train_tokenizer.main(
            TokenizerConfig(
                input_file=text,
                model_prefix=str(directory / "spm"),
                symbols="text",
                text_field="units",
                character_coverage=1.0,
            )
        )
    config = {
        "input_file": text,
        "output_dir": str(directory / "records"),
        "spm_model_file": str(directory / "spm.model"),
        "sentence_objective": "none",
        "label_vocab_size": LABEL_VOCAB_SIZE,
        "holdout_fraction": 0.2,
        "dupe_factor": 2,
        "num_shards": 2,
        "num_workers": 1,
        **LENGTHS,
    }
    build_tfrecords.main(RecordsConfig(**config | settings))
    return directory / "records"
