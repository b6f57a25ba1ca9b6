#!/usr/bin/env bash
# Trains as one of several workers with GPUs, one process a machine, started
# by Slurm (slurm.sbatch) or Kubernetes (kubernetes.yaml): tells TensorFlow the
# others by TF_CONFIG, and becomes the training command.
#
#     worker.sh FLAG_OF_RUN_PRETRAINING...
#
# Settings of the environment: WORKER_PORT, on which workers reach each other,
# default 12345; PYTHON, default python.
set -euo pipefail

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

# Hosts of all workers, the first one first, and the place of this one.
if [[ ${SLURM_JOB_NODELIST-} ]]; then
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  index=${SLURM_PROCID?}
  [[ ${SLURM_NTASKS?} == "${#hosts[@]}" ]] ||
    fail "there must be one task a node, which uses all its GPUs. \
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
