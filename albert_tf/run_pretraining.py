r"""Pretrain ALBERT on records made by `data_prep.build_tfrecords`.

This command trains ALBERT-base on the TPU of this machine, here eight chips of
v5e:

    python -m albert_tf.run_pretraining \
      --flagfile=configs/pretrain/base_v2_125k.flags \
      --precision=mixed_bfloat16 --gradient_accumulation_steps=64 \
      --input_file='gs://bucket/records/train/*.tfrecord' \
      --eval_input_file='gs://bucket/records/eval/*.tfrecord' \
      --output_dir=gs://bucket/runs/base_v2

The same command resumes an interrupted run. `albert_tf.first_model` trains a
small model on a laptop. You can add these flags: `--dry_run` checks everything
that the run needs and times a few steps, `--mode=eval` evaluates the newest
checkpoint, and `--model` changes the architecture without a new file:

    python -m albert_tf.run_pretraining --dry_run ...
    python -m albert_tf.run_pretraining --mode=eval ...
    python -m albert_tf.run_pretraining \
      --model=embedding_size=64,parameter_sharing=attention ...

Exit status: 0 when all steps are done; 1 for an error that the user can fix; 75
when a worker or host was lost, or the run hung: start the same command again;
130 (Ctrl-C) or 143 (SIGTERM) when interrupted: the run saves a checkpoint at
most two steps later, and the same command resumes it. A second Ctrl-C ends the
process at once, without a checkpoint.
"""

import time

from albert_tf.cluster import devices, versions
from albert_tf.config import PretrainingConfig, flags


def main(config: PretrainingConfig) -> int:
    """Trains or evaluates, depending on `--mode`; returns the exit status."""
    began = time.time()
    config.require("output_dir")
    devices.skip_metadata_query_without_chips()
    versions.import_tensorflow()
    # Imported here so that --help and invalid settings answer at once.
    if config.training.mode == "eval":
        from albert_tf.training.evaluate import evaluate_run

        evaluate_run(config)
        return 0
    if config.training.dry_run:
        from albert_tf.training.preflight import run

        return run(config)
    from albert_tf.training.train import train

    return train(config, began=began)


if __name__ == "__main__":
    flags.run(main, PretrainingConfig)
