#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat <<'HELP'
Train on a Cloud TPU slice of one or several hosts, which is requested as a
queued resource. The script runs on your machine or in Cloud Shell; see
docs/tpu.md.

    tpu/launch.sh COMMAND [--SETTING=VALUE ...] [-- FLAGS OF run_pretraining]

Commands:
    run      create, setup and start, then monitor training until it ends; if
             the slice is preempted or a host fails, continue training, on a
             new slice if necessary
    create   request the slice
    wait     wait until the slice exists
    setup    copy this code to all hosts, install it, check that TPUs are found
    check    run the trainer's --dry_run on the TPU, with some real steps
    start    start training in the background; it logs to host 0 and --log_dir
    status   print the states of the request, the slice and training
    logs     follow the log of training
    stop     stop training; it saves a checkpoint within two steps
    delete   delete the slice and the request; the run and its logs remain

Settings. Each can be set by an environment variable instead, e.g. --zone by
ALBERT_TPU_ZONE. --flagfile=FILE, here or after --, reads --accelerator_type and
--libtpu_init_args from a file such as configs/hardware/v5e_256.flags:
HELP
  # shellcheck disable=SC2016  # awk must receive it unexpanded
  awk '/^  # / { comment = substr($0, 5) }
/^  [a-z_]+=\$[{]ALBERT_TPU_/ {
  name = value = substr($0, 3)
  sub(/=.*/, "", name)
  sub(/^[^-]*-/, "", value)
  sub(/[}]$/, "", value)
  printf "    %-34s%s\n", "--" name "=" value, comment
}' "$0"
  cat <<'HELP'

Examples:
    tpu/launch.sh run --project=mine --zone=us-west4-a --name=base \
        --log_dir=gs://bucket/logs/base -- \
        --flagfile=configs/pretrain/base_v2_125k.flags \
        --flagfile=configs/hardware/v5e_8.flags \
        --output_dir=gs://bucket/runs/base \
        --input_file='gs://bucket/records/train/*.tfrecord'
    tpu/launch.sh run ... --dry_run     # prints every command, runs none
    tpu/launch.sh delete --project=mine --zone=us-west4-a --name=base

Exit status of run: that of training (0 when all steps are done; for 1 and 130
see docs/runs.md); 75 if --max_failures slices in a row brought no new
checkpoint, e.g. since set-up failed on each, or after --max_preemptions; or 1
if no slice could be created.
HELP
}

# Every setting with its default; usage prints these lines and their comments.
settings() {
  # Google Cloud project
  project=${ALBERT_TPU_PROJECT-}
  # zone in which you have quota, e.g. us-west4-a
  zone=${ALBERT_TPU_ZONE-}
  # name of the slice and of the request
  name=${ALBERT_TPU_NAME-albert}
  # version and size, e.g. v4-128 or v6e-8
  accelerator_type=${ALBERT_TPU_ACCELERATOR_TYPE-v5litepod-8}
  # VM image; default: the base image for the chip
  runtime_version=${ALBERT_TPU_RUNTIME_VERSION-}
  # spot, on_demand or reserved
  tier=${ALBERT_TPU_TIER-spot}
  # longest wait for capacity, e.g. 6h; default: no limit
  valid_until_duration=${ALBERT_TPU_VALID_UNTIL_DURATION-}
  # service account of the hosts; default: Compute Engine's
  service_account=${ALBERT_TPU_SERVICE_ACCOUNT-}
  # LIBTPU_INIT_ARGS on the hosts: flags of the TPU compiler; default: none
  libtpu_init_args=${ALBERT_TPU_LIBTPU_INIT_ARGS-}
  # additional flags for create, e.g. --network=n
  create_flags=${ALBERT_TPU_CREATE_FLAGS-}
  # user name on the hosts; default: that of this machine
  user=${ALBERT_TPU_USER-}
  # additional flags, which ssh and scp must both accept, e.g. --internal-ip
  ssh_flags=${ALBERT_TPU_SSH_FLAGS-}
  # gs://... to which the log is copied each minute, in parts of 1 MB
  log_dir=${ALBERT_TPU_LOG_DIR-}
  # largest size of the packed code, in MB; each host gets a copy
  max_code_mb=${ALBERT_TPU_MAX_CODE_MB-100}
  # seconds between checks of the state
  poll_s=${ALBERT_TPU_POLL_S-60}
  # seconds that one query of a state may take
  query_s=${ALBERT_TPU_QUERY_S-120}
  # seconds that another command may take, e.g. set-up
  command_s=${ALBERT_TPU_COMMAND_S-1800}
  # seconds before run acts on an end or a failed start of training
  grace_s=${ALBERT_TPU_GRACE_S-180}
  # seconds that a slice may be silent or not READY before run replaces it
  unreachable_s=${ALBERT_TPU_UNREACHABLE_S-1800}
  # limit of failed requests; of starts and slices without a new checkpoint
  max_failures=${ALBERT_TPU_MAX_FAILURES-3}
  # limit of preemptions in a row without a new checkpoint
  max_preemptions=${ALBERT_TPU_MAX_PREEMPTIONS-10}
  # true: delete the slice when training is done
  delete_when_done=${ALBERT_TPU_DELETE_WHEN_DONE-false}
}

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

say() {
  printf '%s %s\n' "$(date '+%F %T')" "$*"
}

parse() {
  local argument key own=()
  command=$1
  shift
  while (($#)); do
    [[ $1 != -- ]] || {
      training_flags=("${@:2}")
      break
    }
    own+=("$1")
    shift
  done
  read_hardware "${training_flags[@]}"
  for argument in "${own[@]}"; do
    case $argument in
    --flagfile=*) read_hardware "$argument" ;;
    --dry_run | --dry_run=true) dry_run=true ;;
    -h | --help) usage && exit ;;
    --*=*)
      key=${argument%%=*} key=${key#--}
      grep -q "^  $key=\${ALBERT_TPU_" "$0" ||
        fail "there is no setting --$key. See $0 --help."
      printf -v "$key" '%s' "${argument#*=}"
      ;;
    *) fail "settings look like --SETTING=VALUE. Received: $argument" ;;
    esac
  done
}

# Takes the slice and the flags of its compiler from flags of training, and from
# the flag files among them. The trainer ignores these two.
read_hardware() {
  local word lines
  while (($#)); do
    word=$1
    shift
    [[ $word != --flagfile ]] || word=--flagfile=${1-}
    case $word in
    --flagfile=*)
      word=${word#*=}
      [[ $word == /* ]] || word=$root/$word
      [[ -f $word ]] || fail "--flagfile must be a file of the checkout, since\
 the hosts have no other. Received: $word"
      mapfile -t lines <"$word"
      read_hardware "${lines[@]}"
      ;;
    --accelerator_type=*) accelerator_type=${word#*=} ;;
    --libtpu_init_args=*) libtpu_init_args=${word#*=} ;;
    esac
  done
}

check_settings() {
  local key
  for key in project zone name; do
    [[ ${!key} ]] || fail "--$key is required, or ALBERT_TPU_${key^^}."
  done
  [[ $name =~ ^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$ ]] ||
    fail "--name must be lower-case letters, digits and -. Received: $name"
  for key in poll_s query_s command_s grace_s unreachable_s; do
    [[ ${!key} =~ ^(0|[1-9][0-9]*)$ ]] ||
      fail "--$key must be a number. Received: ${!key}"
  done
  for key in max_failures max_preemptions max_code_mb; do
    [[ ${!key} =~ ^[1-9][0-9]*$ ]] ||
      fail "--$key must be at least 1. Received: ${!key}"
  done
  # A misspelt true would leave a slice running, and charged.
  [[ $delete_when_done =~ ^(true|false)$ ]] ||
    fail "--delete_when_done must be true or false. Received:\
 $delete_when_done"
  [[ $tier =~ ^(spot|on_demand|reserved)$ ]] ||
    fail "--tier must be spot, on_demand or reserved. Received: $tier"
  [[ ! $log_dir || $log_dir == gs://* ]] ||
    fail "--log_dir must be gs://... Received: $log_dir"
  [[ ! $libtpu_init_args || $libtpu_init_args == --* ]] ||
    fail "--libtpu_init_args must be flags that begin with --. Received:\
 $libtpu_init_args"
  [[ $accelerator_type =~ ^[a-z0-9]+-[1-9][0-9]*$ ]] ||
    fail "--accelerator_type must be a version and a size, e.g. v5litepod-256.\
 Received: $accelerator_type"
  # https://cloud.google.com/tpu/docs/runtimes
  case $accelerator_type in
  v[234]-*) : "${runtime_version:=tpu-ubuntu2204-base}" ;;
  v5litepod-*) : "${runtime_version:=v2-alpha-tpuv5-lite}" ;;
  v5p-*) : "${runtime_version:=v2-alpha-tpuv5}" ;;
  v6e-*) : "${runtime_version:=v2-alpha-tpuv6e}" ;;
  *) fail "--accelerator_type must begin with v2-, v3-, v4-, v5litepod-, v5p- \
or v6e-, e.g. v5litepod-256. Received: $accelerator_type" ;;
  esac
  # The server of tensorflow-tpu 2.20.0, start_grpc_tpu_worker, ends with a
  # KeyError on v6e; a slice of one host needs no server.
  [[ $accelerator_type != v6e-* || ${accelerator_type#v6e-} -le 8 ]] ||
    fail "tensorflow-tpu 2.20.0 has no server for v6e slices of several \
hosts. Received: $accelerator_type. Take v6e-8, or v5litepod or v5p."
}

need_training_flags() {
  [[ " ${training_flags[*]-}" == *' --output_dir=gs://'* ]] ||
    fail "flags of run_pretraining must follow --, with --output_dir=gs://..., \
since files on the hosts are lost with the slice."
}

# --- commands of gcloud ------------------------------------------------------

# Prints a command, quoted for a shell.
quoted() {
  local word line=()
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word=${word@Q}
    line+=("$word")
  done
  printf '%s\n' "${line[*]}"
}

# Runs a command for at most $limit_s seconds, if it is set, or, in a dry run,
# prints it. The caller must not wait for the end of its output: if it is ended,
# its ssh may live on. With --foreground, it gets Ctrl-C.
call() {
  if [[ $dry_run ]]; then
    quoted "$@" >&3
  elif [[ $limit_s ]]; then
    timeout --foreground --kill-after=10 "$limit_s" "$@"
  else
    "$@"
  fi
}

tpus() {
  local group=$1 verb=$2
  shift 2
  call gcloud compute tpus "$group" "$verb" "$@" \
    --project="$project" --zone="$zone"
}

# Runs tpu/on_host.sh of the copied code on one host, or on all.
on_hosts() {
  local worker=$1
  shift
  remote "$worker" "$(host_command "$@")"
}

# The command that runs tpu/on_host.sh on a host.
host_command() {
  local command=(bash albert_tf/tpu/on_host.sh "$@")
  [[ ! $libtpu_init_args ]] ||
    command=(env "LIBTPU_INIT_ARGS=$libtpu_init_args" "${command[@]}")
  quoted "${command[@]}"
}

# Options of ssh. A preempted host does not close its connections, so ssh would
# wait without end; and networks drop idle connections.
CONNECTION=(-oConnectTimeout=30 -oServerAliveInterval=30)

remote() {
  # shellcheck disable=SC2086  # several flags
  tpus tpu-vm ssh "${user:+$user@}$name" --worker="$1" --quiet \
    "${CONNECTION[@]/#/--ssh-flag=}" $ssh_flags --command="$2"
}

# The state of the request; "" if there is no request.
request_state() {
  tpus queued-resources list --filter="name~/queuedResources/$name\$" \
    --format='value(state.state)'
}

slice_state() {
  tpus tpu-vm describe "$name" --format='value(state)'
}

# The state of training with these flags, by on_host.sh status_of;
# "unreachable" if the host does not answer.
training_state() {
  local script=albert_tf/tpu/on_host.sh
  remote 0 "if [ -f $script ]; then\
 $(host_command status_of "${training_flags[@]}"); else echo none; fi"\
 >"$scratch/state" || true
  grep -xE 'none|running|stopped|lost|other|exit [0-9]+' "$scratch/state" ||
    echo unreachable
}

create() {
  local flags=() limit_s=$command_s
  [[ $tier == on_demand ]] || flags+=("--$tier")
  [[ ! $valid_until_duration ]] ||
    flags+=("--valid-until-duration=$valid_until_duration")
  [[ ! $service_account ]] || flags+=("--service-account=$service_account")
  # shellcheck disable=SC2206  # several flags
  flags+=($create_flags)
  tpus queued-resources create "$name" --node-id="$name" \
    --accelerator-type="$accelerator_type" \
    --runtime-version="$runtime_version" "${flags[@]}"
}

delete() {
  local limit_s=$command_s
  tpus queued-resources delete "$name" --force --quiet
}

# Retries without limit: a slice that is not deleted is charged.
delete_until_gone() {
  local request
  until delete || { request=$(request_state) && [[ ! $request ]]; }; do
    say "$name could not be deleted and is STILL CHARGED: trying again"
    sleep "$poll_s"
  done
}

wait_until_there() {
  local state
  while :; do
    state=$(request_state) || state=unknown
    [[ ! $dry_run ]] || return 0
    case $state in
    ACTIVE) return 0 ;;
    '' | FAILED | SUSPENDED)
      fail "the request must become ACTIVE. Received: ${state:-none}. See \
tpu/launch.sh status, then delete and create." ;;
    esac
    say "$name: $state"
    sleep "$poll_s"
  done
}

# Makes the archive of this code for the hosts. All set-ups of run use the same
# archive, so that the files here may change during the run.
pack() {
  local files='git ls-files -z --cached --others --exclude-standard'
  # Without files that are deleted, but not in git.
  files+=' | while IFS= read -r -d "" f; do if [ -e "$f" ]; then printf "%s\\0"\
 "$f"; fi; done'
  call bash -c "set -e -o pipefail; cd $(quoted "$root"); $files |\
 tar -czf $(quoted "$archive") --null --files-from=-" ||
    fail "$root must be a checkout of git, e.g. by git clone, of files that can\
 be read. See the message above."
  [[ ! $dry_run ]] || return 0
  local size_mb=$(($(wc -c <"$archive") / 1000000))
  ((size_mb <= max_code_mb)) ||
    fail "the code of $root must have at most --max_code_mb=$max_code_mb MB\
 when packed, since each host gets a copy. Received: $size_mb MB, with$(
      largest_files
    ). Move data out of the checkout, or add it to .git/info/exclude."
}

# Prints the three largest files of the archive.
largest_files() {
  tar -tzf "$archive" | tr '\n' '\0' | (cd "$root" && xargs -0 du -k) |
    sort -rn | awk -F '\t' 'NR <= 3 { printf " %s", $2 }'
}

setup() {
  local limit_s=$command_s
  # Joined by &&: set -e has no effect where run tests the result of setup.
  # shellcheck disable=SC2086  # several flags
  refuse_if_running &&
    tpus tpu-vm scp "$archive" "${user:+$user@}$name:" --worker=all --quiet \
      "${CONNECTION[@]/#/--scp-flag=}" $ssh_flags &&
    remote all "rm -rf albert_tf && mkdir albert_tf &&\
 tar -xzf albert_tf.tar.gz -C albert_tf &&\
 bash albert_tf/tpu/on_host.sh install"
}

# A new set-up would replace the modules and servers of a running trainer on all
# hosts. Only host 0 knows whether a trainer is running.
refuse_if_running() {
  local script=albert_tf/tpu/on_host.sh
  remote 0 "if [ -f $script ] && [ \"\$(bash $script status)\" = running ]\
; then echo 'error: training must not be running' >&2; exit 1; fi"
}

start() {
  local limit_s=$command_s
  refuse_if_running &&
    on_hosts all serve &&
    on_hosts 0 train "$log_dir" "${training_flags[@]}"
}

check() {
  local limit_s=$command_s
  refuse_if_running &&
    on_hosts all serve &&
    on_hosts 0 check "${training_flags[@]}"
}

status() {
  tpus queued-resources describe "$name"
  tpus tpu-vm describe "$name" \
    --format='yaml(state,health,acceleratorType,runtimeVersion)'
  on_hosts 0 status
}

# --- until training ends -----------------------------------------------------

# Prints the commands of run, in order.
plan() {
  echo '# the code for the hosts' >&3
  pack
  echo "# is there a request? every $poll_s s, until it is ACTIVE" >&3
  request_state
  echo '# if there is no request' >&3
  create
  echo '# once it is ACTIVE, until the slice is READY' >&3
  slice_state
  echo '# is training running?' >&3
  training_state >/dev/null
  echo '# if not; after exit status 143 (a preemption) or 75, only start' >&3
  setup
  start
  echo "# if SUSPENDED, FAILED, PREEMPTED or broken, before the next request$(
    [[ $delete_when_done == true ]] && echo '; and when training is done'
  )" >&3
  delete
}

run() {
  local failures=0 news='' ended=0 silent_since='' request slice training
  local requested='' retry_s=$grace_s
  local again='To train on it again: start, then run; if the code has changed,\
 setup first.'
  [[ ! $dry_run ]] || { plan && return; }
  pack
  while :; do
    slice='' training=''
    request=$(request_state) || request=unknown
    if [[ $request == ACTIVE ]]; then
      slice=$(slice_state) || slice=unknown
      failures=0
    fi
    [[ $slice != READY ]] || training=$(training_state)
    if [[ $news != "$request $slice $training" ]]; then
      news="$request $slice $training"
      say "request: ${request:-none}; slice: ${slice:-none};" \
        "training: ${training:-none}"
      ended=$SECONDS
    fi
    # Not from the last change of state: a broken slice may alternate between
    # two states.
    case $request:$training in
    ACTIVE: | ACTIVE:unreachable | SUSPENDING: | DELETING:)
      : "${silent_since:=$SECONDS}"
      ;;
    *) silent_since='' ;;
    esac
    case $request:$slice:$training in
    ::)
      starts=0
      if create; then
        requested=true retry_s=$grace_s
      elif [[ $requested ]]; then
        say "the slice cannot be requested: see the message above. Nothing is\
 charged. Next attempt in $retry_s s."
        sleep "$retry_s"
        retry_s=$((retry_s < 900 ? 2 * retry_s : 1800))
      else
        failures=$((failures + 1))
      fi
      ;;
    FAILED:* | SUSPENDED:* | ACTIVE:PREEMPTED:* | ACTIVE:TERMINATED:*)
      if [[ $request == FAILED ]]; then
        failures=$((failures + 1))
      else
        count_preemption
      fi
      ((failures >= max_failures)) || delete || true
      ;;
    SUSPENDING:* | DELETING:*)
      ((SECONDS - silent_since < unreachable_s)) || delete || true
      ;;
    *:none) begin set_up_and_start ;;
    *:lost)
      forget_failures
      begin set_up_and_start
      ;;
    *:'exit 0')
      [[ $delete_when_done != true ]] || delete_until_gone
      say "training is done$(
        [[ $delete_when_done == true ]] || echo "; charged until: $(deletion)"
      )"
      return
      ;;
    *:running)
      # Not later: a host that stops answering cannot report its checkpoints.
      if [[ ! $checkpoint ]] || ((replaced + starts + preempted)); then
        forget_failures
      fi
      ;;
    ACTIVE:*:)
      ((SECONDS - silent_since < unreachable_s)) ||
        replace "the slice is not READY"
      ;;
    *:unreachable)
      ((SECONDS - silent_since < unreachable_s)) ||
        replace "host 0 does not answer"
      ;;
    *:stopped) fail "training was stopped. The slice still exists. $again" ;;
    *:other) fail "training on this slice has other flags. $again To inspect\
 it: status, logs. Or choose another --name." ;;
    *:exit*)
      # Training may end before a preemption of its host is reported.
      if ((SECONDS - ended >= grace_s)); then
        case $training in
        'exit 143' | 'exit 75')
          forget_failures
          # If it fails, the files of a host may be missing.
          if ((starts)); then begin set_up_and_start; else begin start; fi
          ;;
        *)
          on_hosts 0 tail 50 || true
          say "training ended: $training. The slice still exists. $again"
          exit "${training#exit }"
          ;;
        esac
      fi
      ;;
    esac
    ((failures < max_failures)) || {
      tpus queued-resources describe "$name" || true
      fail "the request failed $failures times. See the message above: \
quota, zone, accelerator type or capacity, or an outage."
    }
    sleep "$poll_s"
  done
}

# Starts training by the command "$@". After max_failures starts without a new
# checkpoint, it requests a new slice instead: a host may be broken.
begin() {
  ((++starts <= max_failures)) || {
    replace "$problem"
    return
  }
  say "starting training, attempt $starts of $max_failures"
  ended=$SECONDS
  if "$@"; then
    problem="training was started $starts times without a new checkpoint"
  else
    # A host may reboot, or a preemption may not be reported yet.
    problem='training cannot be started'
    say "$problem: see the messages above. Next attempt in $grace_s s."
    sleep "$grace_s"
  fi
}

set_up_and_start() {
  setup && start
}

# Deletes the slice, so that run requests another one; gives up if training on
# max_failures slices has saved no checkpoint.
replace() {
  ((++replaced < max_failures)) || {
    on_hosts 0 tail 50 || true
    say "$1, on $replaced slices. The last one still exists, and is charged\
 until: $(deletion)"
    exit 75
  }
  say "$1: requesting a new slice"
  # Otherwise, the next poll would find and count the same slice again.
  delete_until_gone
}

# Counts the end of a slice on which training was started, and has saved no
# checkpoint that `run` knows of. After max_preemptions in a row, it gives up.
count_preemption() {
  ((starts)) || return 0
  starts=0
  ((++preempted >= max_preemptions)) || return 0
  delete_until_gone
  say "training was preempted $preempted times without a new checkpoint. No\
 slice exists any more. Save checkpoints more often\
 (--save_checkpoints_minutes), or use --tier=on_demand."
  exit 75
}

# The command that deletes the slice.
deletion() {
  quoted "$0" delete --project="$project" --zone="$zone" --name="$name"
}

# Forgets earlier failures if training has saved a checkpoint since.
forget_failures() {
  local step
  on_hosts 0 newest_checkpoint >"$scratch/checkpoint" || return 0
  step=$(grep -xE 'step-[0-9]+' "$scratch/checkpoint") || return 0
  [[ $step == "$checkpoint" ]] || starts=0 replaced=0 preempted=0
  checkpoint=$step
}

# --- main --------------------------------------------------------------------

main() {
  local COMMANDS='run create wait setup check start status logs stop delete'
  case ${1-} in
  '' | -h | --help) usage && exit ;;
  esac
  [[ " $COMMANDS " == *" $1 "* ]] ||
    fail "the command must be one of: $COMMANDS. Received: $1"
  ((BASH_VERSINFO[0] * 10 + BASH_VERSINFO[1] >= 44)) ||
    fail "bash must be 4.4 or newer. Received: $BASH_VERSION. On a Mac, brew \
install bash, or use Cloud Shell."
  dry_run='' training_flags=()
  starts=0 replaced=0 preempted=0 checkpoint='' problem=''
  root=$(cd "$(dirname "$0")/.." && pwd)
  settings
  parse "$@"
  check_settings
  limit_s=$query_s
  exec 3>&1
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  archive=$scratch/albert_tf.tar.gz
  if [[ $dry_run ]]; then
    archive=/tmp/albert_tf.tar.gz
  else
    type gcloud >/dev/null 2>&1 ||
      fail "gcloud must be installed: https://cloud.google.com/sdk/docs/install"
    type timeout >/dev/null 2>&1 ||
      fail "timeout must be installed. On a Mac, brew install coreutils."
  fi
  case $command in
  run | check | start) need_training_flags ;;
  esac
  case $command in
  wait) wait_until_there ;;
  setup) pack && setup ;;
  logs) limit_s='' on_hosts 0 logs ;;
  stop) on_hosts 0 stop ;;
  *) "$command" ;;
  esac
}

main "$@"
