r"""Train variants of a model, and compare them in one table.

A sweep is a list of variants: flags of `run_pretraining` that override those of
all runs. This command trains each variant with two seeds, and prints means,
standard deviations and the difference of the variants:

    python -m albert_tf.sweep \
      --base_flags=--flagfile=configs/pretrain/mini_en_128.flags \
      --base_flags='--input_file=build/records/train/*.tfrecord' \
      --base_flags='--eval_input_file=build/records/eval/*.tfrecord' \
      --variant='shared:' \
      --variant='not_shared: --model=parameter_sharing=none' \
      --seeds=1,2 --compare=shared:not_shared \
      --output_dir=build/sharing

A variant can start from the weights of an earlier one, with the same seed:

      --variant='short: --max_seq_length=64' \
      --variant='long: --init_checkpoint={run:short} --max_seq_length=512'

Sweeps of the paper's tables are in configs/ablations:

    python -m albert_tf.sweep \
      --flagfile=configs/ablations/table5_mini.flags \
      --records_dir=build --output_dir=build/table5

Each run is a process of `run_pretraining` in OUTPUT_DIR/runs/VARIANT-seedN; its
log is in OUTPUT_DIR/logs. At the end, OUTPUT_DIR has table.md and table.json.
`python -m albert_tf.report --run_dirs=...` draws all curves of the runs.

The same command, with the same spelling of OUTPUT_DIR, continues an interrupted
sweep: finished runs are not repeated. Variants and seeds can be added. The
settings of a run that has started cannot change; if those of an --evaluation
change, the finished runs are evaluated again.

Exit status: 0 when all runs have finished; 1 for an error, or if a run failed;
75 if all runs that failed exited with 75, e.g. because a host was lost: start
the same command again; 130 (Ctrl-C) or 143 (SIGTERM) when the sweep or one of
its runs was interrupted: the runs save a checkpoint and stop. A run that exits
with 75 is started again; it has failed after three times without a new
checkpoint.
"""

import json
import os

from absl import logging

from albert_tf.cluster import versions
from albert_tf.cluster.jobs import Jobs
from albert_tf.config import SweepConfig, flags
from albert_tf.errors import RETRY_STATUS, RetryError, UserError
from albert_tf.io.artifact import lock
from albert_tf.io.files import write_text
from albert_tf.sweeps import plan as plans


def main(config: SweepConfig) -> int:
    """Trains the variants that the flags name; returns the exit status."""
    environment = dict(os.environ)
    # The TPU belongs to the runs: the first process that loads its library
    # reserves it. First, since an architecture on gs:// is read with
    # TensorFlow.
    os.environ["TPU_LOAD_LIBRARY"] = "0"
    plan = plans.make_plan(config)
    if config.dry_run:
        print("\n".join(plans.describe(plan)))
        return 0
    config.require("output_dir")
    # Imported here so that invalid settings answer at once.
    versions.import_tensorflow()
    from albert_tf.sweeps import results

    results.check_directory(plan)
    for line in plans.describe(plan):
        logging.info("%s", line)
    os.makedirs(f"{plan.dir}/{results.LOGS_DIR}", exist_ok=True)
    with lock(plan.dir) as open_files:
        todo = results.make_jobs(plan)
        jobs = Jobs(config.parallel_runs, environment, open_files)
        jobs.run(todo)
        content = results.summarize(plan)
        if content["runs"]:
            table = results.markdown(plan, content)
            text = json.dumps(content, indent=2)
            write_text(f"{plan.dir}/table.md", table)
            write_text(f"{plan.dir}/table.json", text + "\n")
            print(table)
            print(f"files: {plan.dir}/table.md, table.json")
    if jobs.interrupted:
        return 128 + jobs.interrupted
    failed = {job.name: job.status for job in todo if job.status}
    if failed:
        is_temporary = set(failed.values()) == {RETRY_STATUS}
        raise (RetryError if is_temporary else UserError)(
            "all runs of a sweep must finish",
            received=f"failed: {', '.join(failed)}",
            remedy=f"See {plan.dir}/{results.LOGS_DIR}. The same command "
            "tries again.",
        )
    return 0


if __name__ == "__main__":
    flags.run(main, SweepConfig)
