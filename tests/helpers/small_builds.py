"""Builds of records that take a second, and reading their files."""

import pathlib

from data_prep import build_tfrecords
from data_prep.config import RecordsConfig

VOCABULARY = "tests/testdata/30k-clean.model"
LENGTH, PREDICTIONS = 64, 11


def make_config(output_dir, *text_files, **settings):
    """Returns the settings of a build of text files; `settings` override."""
    return RecordsConfig(
        **{
            "input_file": tuple(map(str, text_files)),
            "output_dir": str(output_dir),
            "spm_model_file": VOCABULARY,
            "max_seq_length": LENGTH,
            "max_predictions_per_seq": PREDICTIONS,
            "dupe_factor": 2,
            "holdout_fraction": 0.2,
            "num_shards": 3,
            "num_workers": 1,
            **settings,
        }
    )


def build(output_dir, *text_files, **settings):
    """Builds records of text files, and returns their directory."""
    build_tfrecords.main(make_config(output_dir, *text_files, **settings))
    return output_dir


def read_files(directory):
    """Returns the content of all files in a directory, by path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(pathlib.Path(directory).rglob("*"))
        if path.is_file()
    }
