r"""A substitute for gcloud and for the hosts of a TPU, for tests of tpu/*.sh.

Installed as a program named `gcloud`, it records its arguments and keeps the
state of one request. Hosts are directories: `ssh` runs its command with one of
them as HOME, `scp` copies to them, `delete` removes them. On a host, `uv`
creates a "python" that records its flags and ends as the next line of `plan`
says:

    0                training is done
    143 SUSPENDED    exits with 143, after the slice has become SUSPENDED
    1 PREEMPTED 2    exits with 1, 2 seconds before the slice is PREEMPTED
    75 step-007      exits with 75, after it has saved that checkpoint
    wait             exits with 143 when it receives SIGTERM
    reboot step-7    saves that checkpoint; then the host ends all processes
    silent step-7 2  saves that checkpoint; after 2 seconds, ssh fails

`states` holds the states of a new request, one for each query, or, if the
request is ACTIVE, of its slice, e.g. "PREEMPTED". A slice in the state
"REPAIRING|STOPPED" alternates between the two; that of "unknown" cannot be
read. A line of `unreachable` names the host of one slice to which ssh fails, or
is "all"; each deletion of the request removes a line. With a file
`broken_install`, no package can be installed, with a file `broken_bucket`, no
file uploaded. While `failing_deletes` has a line, a delete fails; if the line
is "late", it deletes nevertheless. A line "refused" of `failing_creates` or
`failing_lists` does the same to a create or a list; an empty line does not.
With a file `hanging`, ssh does not end until the request is deleted, or the
number of seconds in the file, 60 by default, has passed.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

CLOUD = pathlib.Path(__file__).parent / "cloud"

# States in which a slice may remain although its request is ACTIVE.
OTHER_STATES = ("REPAIRING", "STOPPED", "unknown")

PROGRAMS = {
    "uv": """#!/bin/sh
[ ! -e CLOUD/broken_install ] || { echo "no such package" >&2; exit 1; }
[ "$1" = venv ] || exit 0
bin=$HOME/albert_tf_venv/bin
mkdir -p $bin
cp $HOME/.local/bin/python $HOME/.local/bin/start_grpc_tpu_worker $bin
""",
    "python": """#!/bin/bash
[ "$2" != albert_tf.cluster.notices ] || exec PYTHON "$@"
[ "$1" != - ] || { cat >/dev/null; echo "host: 4 chips: v5e"; exit; }
read -r result state delay < <(sed -n 1p CLOUD/plan)
sed -i 1d CLOUD/plan
echo "the last words of $result"
trap 'exit 143' TERM
case $state in step-*)
  echo "saved gs://bucket/run/checkpoints/$state in 1.0 s, in the background"
  state=
esac
printf '%s\\0' "TPU_LOAD_LIBRARY=${TPU_LOAD_LIBRARY-}" "$@" END >>CLOUD/trained
echo "$LIBTPU_INIT_ARGS" >>CLOUD/compiler_flags
if [ "$TPU_LOAD_LIBRARY" = 0 ]; then
  echo hello >/dev/tcp/127.0.0.1/$ALBERT_TPU_PORT
fi
if [ "$result" = silent ]; then
  sleep $delay
  echo all >CLOUD/unreachable
  result=wait
fi
if [ "$result" = reboot ]; then
  until [ -s $HOME/albert_tf_state/trainer.pid ]; do sleep 0.05; done
  kill -KILL 0
fi
if [ "$result" = wait ]; then while :; do sleep 0.1; done; fi
if [ "$delay" ]; then (sleep $delay; echo "$state" >CLOUD/states) &
elif [ "$state" ]; then echo "$state" >CLOUD/states; fi
exit $result
""",
    "start_grpc_tpu_worker": """#!PYTHON
import os, signal, socket, time
used = False
def on_sigterm(*_):
    open(os.environ["HOME"] + "/sigterm", "a").close()
    # The real server ignores SIGTERM once a program has used it.
    if not used:
        os._exit(143)
signal.signal(signal.SIGTERM, on_sigterm)
environment = {k: v for k, v in os.environ.items() if "TPU_" in k}
print(sorted(environment.items()), file=open("CLOUD/served", "a"))
server = socket.socket()
try:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(os.environ["TPU_TASK_PORT"])))
    server.listen()
    while not server.accept()[0].recv(1):
        pass
    used = True
    open("CLOUD/used", "a").close()
except OSError:
    pass  # the other host on this machine has the port
time.sleep(3600)
""",
}


def host(number):
    """The home directory of a host, created if missing."""
    home = CLOUD / f"host-{number}"
    programs = home / ".local" / "bin"
    if not home.exists():
        programs.mkdir(parents=True)
        for name, text in PROGRAMS.items():
            text = text.replace("CLOUD", str(CLOUD))
            text = text.replace("PYTHON", sys.executable)
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
    return home


def hosts(worker):
    """The numbers of the hosts."""
    if worker != "all":
        return [int(worker)]
    return list(range(int((CLOUD / "num_hosts").read_text())))


def refuse_if_unreachable(number):
    (line, *_) = lines_of("unreachable") or [""]
    if line in ("all", str(number)):
        sys.exit(f"ssh: connect to host {number}: Connection timed out")


def lines_of(name):
    path = CLOUD / name
    return path.read_text().splitlines() if path.exists() else []


def take_line(name):
    """Removes the first line of a file and returns it; "" if it has none."""
    first, *rest = lines_of(name) or [""]
    (CLOUD / name).write_text("".join(f"{line}\n" for line in rest))
    return first


def next_state():
    """The state of the request; the last state stays."""
    states = (CLOUD / "states").read_text().split()
    if len(states) > 1:
        (CLOUD / "states").write_text(" ".join(states[1:]))
    return states[0]


def flag(name):
    (value,) = (
        word.split("=", 1)[1]
        for word in sys.argv
        if word.startswith(f"--{name}=")
    )
    return value


def queued_resources(verb):
    requested = CLOUD / "requested"
    if verb in ("create", "list") and take_line(f"failing_{verb}s"):
        sys.exit("ERROR: (gcloud) the service is unavailable")
    if verb == "create":
        requested.touch()
        shutil.copy(CLOUD / "new_states", CLOUD / "states")
    elif verb == "delete":
        first = take_line("failing_deletes")
        if first == "refused":
            sys.exit("ERROR: (gcloud) the service is unavailable")
        requested.unlink()
        (CLOUD / "hanging").unlink(missing_ok=True)
        take_line("unreachable")
        for path in CLOUD.glob("host-*/albert_tf_state/server.pid"):
            os.kill(int(path.read_text()), signal.SIGKILL)
        for path in CLOUD.glob("host-*/albert_tf_state/trainer.pid"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(os.getpgid(int(path.read_text())), signal.SIGKILL)
        for home in CLOUD.glob("host-*"):
            shutil.rmtree(home)
        if first == "late":
            sys.exit("ERROR: (gcloud) no answer in time")
    elif verb == "list" and requested.exists():
        state = next_state()
        # The request may be ACTIVE when its slice is not READY.
        print("ACTIVE" if of_slice(state) else state)


def of_slice(state):
    """Whether it is a state of a slice, and none of a request."""
    return state == "PREEMPTED" or state.startswith(OTHER_STATES)


def describe_slice():
    state, *others = (CLOUD / "states").read_text().split()
    if state == "unknown":
        sys.exit("ERROR: (gcloud) the service is unavailable")
    now, *later = state.split("|")
    if later:
        (CLOUD / "states").write_text(
            " ".join(["|".join([*later, now]), *others])
        )
    print(now if of_slice(now) else "READY")


def tpu_vm(verb):
    if verb == "describe":
        describe_slice()
    elif verb == "scp":
        for number in hosts(flag("worker")):
            refuse_if_unreachable(number)
            shutil.copy(sys.argv[5], host(number))
    elif verb == "ssh" and (CLOUD / "hanging").exists():
        seconds = (CLOUD / "hanging").read_text() or "60"
        subprocess.run(["sleep", seconds], check=False)
    elif verb == "ssh":
        numbers = hosts(flag("worker"))
        for number in numbers:
            refuse_if_unreachable(number)
            home = host(number)
            before = num_served()
            done = subprocess.run(
                ["bash", "-c", flag("command")],
                cwd=home,
                env={**os.environ, "HOME": str(home)},
                check=False,
            )
            print(f"host {number} says so", file=sys.stderr)
            if done.returncode:
                sys.exit(done.returncode)
            # The hosts share a port: the first server would answer for both.
            if "on_host.sh serve" in flag("command") and len(numbers) > 1:
                while num_served() == before:
                    time.sleep(0.01)


def upload(file, address):
    if (CLOUD / "broken_bucket").exists():
        sys.exit("ERROR: (gcloud) no permission")
    path = CLOUD / address.removeprefix("gs://")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, path)
    with open(CLOUD / "uploads", "a") as uploads:
        uploads.write(f"{path.name} {path.stat().st_size}\n")


def num_served():
    return len(lines_of("served"))


with open(CLOUD / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\n")
if sys.argv[1] == "storage":
    upload(*sys.argv[-2:])
elif sys.argv[3] == "queued-resources":
    queued_resources(sys.argv[4])
else:
    tpu_vm(sys.argv[4])
