r"""Build pretraining records from text.

    python -m data_prep.build_tfrecords \
      --input_file='corpus/*.txt.gz' --spm_model_file=build/spm.model \
      --output_dir=build/records --holdout_fraction=0.01

1. Read and check the inputs, and compute their digest. If the records exist
   and have the same digest and settings, stop.
2. Cut documents into unmasked examples, each with a random key.
3. Find documents that repeat others, and spread or drop their examples.
4. Shuffle the examples by key, mask and pack them, and write TFRecord files.
5. Write the vocabulary and `metadata.json`.

The same text and settings give the same bytes, for any number of processes and
any order of the files. The same command continues an interrupted build.
"""

# TensorFlow is not imported here: each worker process imports this module.

from albert_tf.config import flags
from data_prep.build import build_records
from data_prep.config import RecordsConfig


def main(config: RecordsConfig) -> None:
    """Builds records, unless the output directory has them already."""
    build_records(config)


if __name__ == "__main__":
    flags.run(main, RecordsConfig)
