#!/usr/bin/env bash
# Pretrains on a host of a Cloud TPU, as its startup script: root runs it at each
# boot, on every host of a slice. docs/tpu.md has the commands. Metadata:
#
#   albert-code          an archive of this repository, e.g. gs://BUCKET/code.tar
#   albert-flags         a flag file of run_pretraining, with --runtime=pjrt
#   albert-libtpu-flags  flags of the TPU compiler; optional
#
# Training starts again after exit status 75, a temporary fault. Its output:
# sudo journalctl -u google-startup-scripts -f
set -euo pipefail

home=${ALBERT_HOME:-/var/lib/albert}
attributes=http://metadata.google.internal/computeMetadata/v1/instance/attributes
attribute() {
  curl --silent --fail --retry 3 --header 'Metadata-Flavor: Google' \
    "$attributes/$1"
}

mkdir -p "$home/code"
cd "$home"
attribute albert-flags >run.flags
if [[ ! -e installed ]]; then
  gcloud storage cp "$(attribute albert-code)" code.tar
  tar -xf code.tar -C code
  # The image has Python 3.10, which is too old; uv installs Python 3.11.
  python3 -m pip install --quiet --target=uv uv==0.13.8
  uv/bin/uv venv --quiet --clear --python 3.11 venv
  uv/bin/uv pip install --quiet --python venv/bin/python \
    --constraint code/constraints/tensorflow-2.21.txt './code[cpu,jax-tpu]'
  touch installed
fi

LIBTPU_INIT_ARGS=$(attribute albert-libtpu-flags || true)
export LIBTPU_INIT_ARGS JAX_PLATFORMS=tpu,cpu # no training on the CPU alone
for _ in {1..100}; do
  status=0
  venv/bin/python -m albert_tf.run_pretraining --flagfile=run.flags ||
    status=$?
  ((status == 75)) || break
  sleep "${ALBERT_PAUSE_S:-60}"
done
echo "training ended with exit status $status"
exit "$status"
