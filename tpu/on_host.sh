#!/usr/bin/env bash
# The commands that tpu/launch.py runs on the hosts of a TPU. Host 0 trains.
#
#   install              installs the packages, and checks that TensorFlow finds
#                        the TPUs
#   serve                starts the server of this host, which passes SIGTERM on
#                        to host 0; a single host needs no server
#   train FLAG...        trains in the background, on host 0
#   check FLAG...        runs the trainer's --dry_run
#   status               prints none, running, stopped, lost (the host was
#                        rebooted), or "exit N"
#   status_of FLAG...    the same, or "other" for training with other flags or
#                        another LIBTPU_INIT_ARGS; then, if there is any, the
#                        newest checkpoint in the log, "step-N"
#   stop                 stops training, which saves a checkpoint
#   logs, tail N         prints the log of training
#
# A slice of several hosts runs one Python process, on host 0. TensorFlow
# reaches the chips of every host, including host 0, through a server on that
# host: start_grpc_tpu_worker, which is part of tensorflow-tpu. These servers
# compile the program, so `serve` passes LIBTPU_INIT_ARGS on to them.
#
# With ALBERT_TPU_RUNTIME=pjrt, JAX trains, without servers, and `train` runs on
# every host; `serve` ends what an earlier run has left on a host.
set -euo pipefail

code=$(cd "$(dirname "$0")/.." && pwd)
state=${ALBERT_TPU_STATE_DIR:-$HOME/albert_tf_state}
bin=${ALBERT_TPU_BIN_DIR:-$HOME/albert_tf_venv/bin}
runtime=${ALBERT_TPU_RUNTIME:-tensorflow}
log=$state/train.log
port=${ALBERT_TPU_PORT:-8470} # of start_grpc_tpu_worker
grace_s=${ALBERT_TPU_GRACE_S:-10} # between SIGTERM and SIGKILL

fail() {
  printf 'error: %s: %s\n' "$(hostname)" "$1" >&2
  exit 1
}

metadata() {
  local server=${GCE_METADATA_HOST:-metadata.google.internal}
  curl --silent --show-error --fail --max-time 10 --retry 3 \
    --header 'Metadata-Flavor: Google' \
    "http://$server/computeMetadata/v1/instance/$1"
}

# Sets addresses to the addresses of all hosts, host 0 first. The attribute has
# the form unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3; see
# tensorflow/python/tools/grpc_tpu_worker.py.
find_hosts() {
  local endpoints
  # Without an answer, do not assume a single host.
  endpoints=$(metadata attributes/worker-network-endpoints) ||
    fail 'the metadata server must return the hosts of the slice'
  mapfile -t addresses < <(tr ',' '\n' <<<"$endpoints" | cut -d: -f3)
}

# Whether program $1 is running. It holds a lock while it runs; a process id
# would be ambiguous after a reboot.
is_alive() {
  [[ -f $state/$1.lock ]] && ! flock --shared --nonblock "$state/$1.lock" true
}

install() {
  local uv=$HOME/.local/bin/uv
  # Ubuntu 22.04 has Python 3.10, which is too old; uv installs Python 3.11.
  [[ -x $uv ]] || python3 -m pip install --quiet --user uv==0.13.8
  "$uv" venv --quiet --clear --python 3.11 "${bin%/bin}"
  local constraints=$code/constraints/tensorflow-2.21.txt extras=cpu,jax-tpu
  if [[ $runtime == tensorflow ]]; then
    # The pins of these two packages are for other extras than [tpu].
    sed -E '/^(libtpu|tensorflow)==/d' "$code/constraints/tensorflow-2.20.txt" \
      >"$code/constraints/tpu.txt"
    constraints=$code/constraints/tpu.txt extras=tpu
  fi
  "$uv" pip install --quiet --python "$bin/python" \
    --constraint "$constraints" --editable "${code}[$extras]"
  look
}

# Checks that the chips exist and, on a single host, that the runtime sees them.
# On a slice, it would start the TPU, which waits for all hosts.
look() {
  cd "$code"
  find_hosts
  "$bin/python" - "${#addresses[@]}" "$runtime" <<'PYTHON'
import socket
import sys

from albert_tf.cluster import devices

chips = devices.find_chips()
print(f"{socket.gethostname()}: {len(chips)} chips: {', '.join(chips)}")
if not chips:
    sys.exit("error: no TPU chip; see albert_tf/cluster/devices.py")
if sys.argv[1:] == ["1", "pjrt"]:
    import jax

    print(f"JAX {jax.__version__} sees {jax.devices('tpu')}")
elif sys.argv[1] == "1":
    import tensorflow as tf

    seen = tf.config.list_physical_devices("TPU")
    print(f"TensorFlow {tf.__version__} sees {len(seen)} devices")
    sys.exit(not seen)
PYTHON
}

# Ends program $1. A server to which a program has connected ignores SIGTERM:
# TensorFlow's coordination service installs a handler for it. A trainer waits
# for the others. So SIGKILL follows.
end() {
  is_alive "$1" || return 0
  local pid
  pid=$(<"$state/$1.pid")
  kill "$pid" || true
  if ! ends_within "$grace_s" "$1"; then
    kill -KILL "$pid" || true
    ends_within 30 "$1" ||
      fail "the $1, process $pid, must end at SIGKILL. Restart the host: sudo \
reboot"
  fi
}

# Whether program $2 ends within $1 seconds.
ends_within() {
  local deadline=$((SECONDS + $1))
  while is_alive "$2"; do
    ((SECONDS <= deadline)) || return 1
    sleep 0.1
  done
}

serve() {
  if [[ $runtime == pjrt ]]; then
    end training
    return
  fi
  find_hosts
  ((${#addresses[@]} > 1)) || return 0
  mkdir -p "$state"
  # A server keeps the state of a program that has ended: replace it.
  end server
  # Set here, because start_grpc_tpu_worker would set these variables only after
  # it has loaded libtpu.
  local address id
  cd "$code"
  address=$(metadata network-interfaces/0/ip)
  id=$(metadata attributes/agent-worker-number)
  # Google's service for such servers loads these settings of the image.
  local settings=${ALBERT_TPU_ENV_FILE:-/home/tpu-runtime/tpu-env}
  local compiler_flags=${LIBTPU_INIT_ARGS-}
  if [[ -r $settings ]]; then
    set -o allexport
    # shellcheck disable=SC1090  # a file of the image
    source "$settings"
    set +o allexport
  fi
  [[ ! $compiler_flags ]] || export LIBTPU_INIT_ARGS=$compiler_flags
  CLOUD_TPU_TASK_ID=$id TPU_HOSTNAME_OVERRIDE=$address \
    TPU_MESH_CONTROLLER_ADDRESS=${addresses[0]}:8476 \
    TPU_MESH_CONTROLLER_PORT=8476 TPU_TASK_PORT=$port \
    setsid nohup flock --no-fork "$state/server.lock" \
    "$bin/start_grpc_tpu_worker" \
    >"$state/server.log" 2>&1 </dev/null &
  echo "$!" >"$state/server.pid"
  local waited=0
  until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    if ((waited++ >= 180)) || ! kill -0 "$!" 2>/dev/null; then
      tail -n 20 "$state/server.log" >&2
      fail "start_grpc_tpu_worker must answer on port $port"
    fi
    sleep 1
  done
}

# Sets tpu_flags to the flags that select the TPU. On a slice, only the servers
# load libtpu; or JAX finds the other hosts itself.
reach_tpu() {
  find_hosts
  if [[ $runtime == pjrt ]]; then
    export JAX_PLATFORMS=tpu,cpu # no training on CPUs if the TPU fails
    tpu_flags=(--runtime=pjrt)
    ((${#addresses[@]} == 1)) || tpu_flags+=(--strategy=multi_worker)
    return
  fi
  tpu_flags=(--strategy=tpu)
  ((${#addresses[@]} > 1)) || return 0
  export TPU_LOAD_LIBRARY=0
  local all
  printf -v all ",%s:$port" "${addresses[@]}"
  tpu_flags+=("--tpu_name=grpc://${all#,}")
}

check() {
  reach_tpu
  cd "$code"
  "$bin/python" -m albert_tf.run_pretraining --dry_run "${tpu_flags[@]}" "$@"
}

train() {
  [[ $(status) != running ]] || fail 'training must not be running already'
  mkdir -p "$state"
  rm -f "$state/exit_status" "$state/stopped" "$state/training.pid"
  all_flags "$@" >"$state/flags"
  setsid nohup "$BASH" "$0" supervise "$@" >>"$log" 2>&1 </dev/null &
  until [[ -s $state/training.pid ]]; do
    kill -0 "$!" 2>/dev/null || {
      tail -n 20 "$log" >&2
      fail 'training must start'
    }
    sleep 0.1
  done
  echo "training, process $(<"$state/training.pid"); log: $log"
}

# Prints what decides whether two trainings have the same flags.
all_flags() {
  [[ $runtime == tensorflow ]] || set -- "--runtime=$runtime" "$@"
  printf '%q\n' "LIBTPU_INIT_ARGS=${LIBTPU_INIT_ARGS-}" "$@"
}

# Runs training, and stores its exit status.
supervise() {
  local result=0
  exec 9>>"$state/training.lock"
  flock --timeout 10 9
  printf '\n%s: %s%s\n' "$(date '+%F %T')" \
    "${LIBTPU_INIT_ARGS:+LIBTPU_INIT_ARGS=$LIBTPU_INIT_ARGS }" "$*"
  reach_tpu
  cd "$code"
  "$bin/python" -m albert_tf.run_pretraining "${tpu_flags[@]}" "$@" &
  echo "$!" >"$state/training.pid"
  wait "$!" || result=$?
  echo "$result" >"$state/exit_status.partial"
  mv "$state/exit_status.partial" "$state/exit_status"
}

status() {
  if [[ -f $state/exit_status && -f $state/stopped ]]; then
    echo stopped
  elif [[ -f $state/exit_status ]]; then
    echo "exit $(<"$state/exit_status")"
  elif is_alive training; then
    echo running
  elif [[ -f $state/training.lock ]]; then
    echo lost
  else
    echo none
  fi
}

status_of() {
  if [[ -f $state/flags &&
    $(all_flags "$@") != "$(<"$state/flags")" ]]; then
    echo other
  else
    status
  fi
  # That training has written or started from.
  { grep -oE '(saved|continuing from) [^ ]*/checkpoints/step-[0-9]+' "$log" |
    tail -n 1 | grep -oE 'step-[0-9]+$'; } 2>/dev/null || true
}

stop() {
  case $(status) in
  running)
    touch "$state/stopped"
    kill "$(<"$state/training.pid")"
    echo "$log reports when the checkpoint is saved"
    ;;
  exit*)
    # `tpu.launch run` may be about to start it again.
    touch "$state/stopped"
    echo 'training has ended, and is not started again'
    ;;
  stopped) echo 'training was stopped before' ;;
  *) fail 'training must be running' ;;
  esac
}

logs() {
  exec tail -n 100 -F "$log"
}

case ${1-} in
install | serve | train | check | status | status_of | stop | logs | supervise)
  command=$1
  shift
  "$command" "$@"
  ;;
tail) tail -n "$2" "$log" ;;
*) fail "on_host.sh has no command: ${1-}" ;;
esac
