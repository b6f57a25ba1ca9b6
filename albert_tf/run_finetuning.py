r"""Fine-tune ALBERT on a task: GLUE, SQuAD, RACE, or one of your own.

    python -m albert_tf.run_finetuning \
      --flagfile=configs/finetune/sst2.flags \
      --data_dir=glue_data/SST-2 \
      --init_checkpoint=albert_base \
      --output_dir=runs/sst2

The command reads the official files, writes features, trains, evaluates, and
prints the scores as JSON. The same command resumes an interrupted run.
`--dry_run` checks everything and times a few steps. `--mode=predict` writes
predictions for the leaderboard of GLUE or the scripts of SQuAD to
runs/sst2/predictions. The paper reports medians of five runs: give each its own
`--seed` and `--output_dir`.

A task of your own needs files with named columns, in .tsv, .csv or .jsonl:

    python -m albert_tf.run_finetuning \
      --task=classification --text_column=text --label_column=category \
      --train_file=train.csv --dev_file=test.csv \
      --init_checkpoint=runs/base --output_dir=runs/categories

The exit status is that of python -m albert_tf.run_pretraining.
"""

import time

from albert_tf.cluster import devices, versions
from albert_tf.config import FinetuningConfig, flags


def main(config: FinetuningConfig) -> int:
    """Trains, evaluates or predicts, depending on `--mode`.

    Returns the exit status.
    """
    began = time.time()
    config.require("task", "output_dir")
    devices.skip_metadata_query_without_chips()
    versions.import_tensorflow()
    # Imported here so that --help and invalid settings answer at once.
    from albert_tf.finetuning.run import run

    return run(config, began)


if __name__ == "__main__":
    flags.run(main, FinetuningConfig)
