"""Vocabularies that train in seconds."""

import pathlib

from data_prep import train_tokenizer
from data_prep.config import TokenizerConfig

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"

MULTILINGUAL = sorted(
    str(path) for path in pathlib.Path("tests/testdata").glob("multilingual-*")
)


def train(text_files, prefix, **settings):
    if isinstance(text_files, str):
        text_files = (text_files,)
    train_tokenizer.main(
        TokenizerConfig(
            input_file=tuple(text_files),
            model_prefix=str(prefix),
            on_bad_utf8="replace",
            **{"vocab_size": 700, **settings},
        )
    )
    return prefix.with_suffix(".model").read_bytes()
