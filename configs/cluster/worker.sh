#!/usr/bin/env bash
# Runs one of several GPU workers. Slurm (slurm.sbatch) or Kubernetes
# (kubernetes.yaml) starts this script once on each machine. The script sets
# TF_CONFIG to the addresses of all workers and runs the training command.
#
#     worker.sh FLAG_OF_RUN_PRETRAINING...
#
# Environment variables: WORKER_PORT, the port of every worker (default 12345);
# PYTHON, the Python interpreter (default python).
set -euo pipefail

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

# Hosts of all workers in order, and the index of this worker.
nodes=${SLURM_STEP_NODELIST-${SLURM_JOB_NODELIST-}} # of this srun, or of the job
if [[ $nodes ]]; then
  names=$(scontrol show hostnames "$nodes") ||
    fail "scontrol must be on PATH, to list the nodes $nodes"
  mapfile -t hosts <<<"$names"
  index=${SLURM_PROCID?}
  [[ ${SLURM_NTASKS?} == "${#hosts[@]}" ]] ||
    fail "there must be one task per node; a task uses all GPUs of its node. \
Received: $SLURM_NTASKS tasks on ${#hosts[@]} nodes"
elif [[ ${JOB_COMPLETION_INDEX-} ]]; then
  hosts=()
  for ((other = 0; other < ${NUM_WORKERS?}; ++other)); do
    hosts+=("${JOB_NAME?}-$other.${SERVICE_NAME?}")
  done
  index=$JOB_COMPLETION_INDEX
else
  fail 'worker.sh must be started by Slurm or an indexed job of Kubernetes'
fi

strategy=mirrored # over the GPUs of one machine
if ((${#hosts[@]} > 1)); then
  strategy=multi_worker
  printf -v addresses ',"%s:'"${WORKER_PORT:-12345}"'"' "${hosts[@]}"
  export TF_CONFIG="{\"cluster\": {\"worker\": [${addresses#,}]},\
 \"task\": {\"type\": \"worker\", \"index\": $index}}"
fi
exec "${PYTHON:-python}" -m albert_tf.run_pretraining \
  --strategy="$strategy" "$@"
