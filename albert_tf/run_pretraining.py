r"""Pretrain ALBERT on records made by `data_prep.build_tfrecords`.

A recipe of the paper, on the TPU of this machine:

    python -m albert_tf.run_pretraining \
      --flagfile=configs/pretrain/base_v2_125k.flags \
      --input_file='gs://bucket/records/train/*.tfrecord' \
      --eval_input_file='gs://bucket/records/eval/*.tfrecord' \
      --output_dir=gs://bucket/runs/base_v2

A first look, on a laptop (see configs/pretrain/tiny_cpu.flags). The same
command again continues an interrupted run. Evaluate the newest checkpoint:

    python -m albert_tf.run_pretraining --mode=eval --flagfile=... (as above)

Exit status: 0 when all steps are done; 1 for an error that a person can
mend; 130 (Ctrl-C) or 143 (SIGTERM) when stopped, after a checkpoint at the end
of the current loop of --steps_per_loop updates. A second signal does not wait.
"""

from albert_tf import flags
from albert_tf.config import PretrainingConfig


def main(config: PretrainingConfig) -> int:
    """Trains or evaluates, as `--mode` says; returns the exit status."""
    config.require("output_dir")
    # Imported here so that --help and refused settings answer at once.
    if config.training.mode == "eval":
        from albert_tf.evaluate import evaluate_run

        evaluate_run(config)
        return 0
    from albert_tf.train import train

    config.require("input_file")
    return train(config)


if __name__ == "__main__":
    flags.run(main, PretrainingConfig)
