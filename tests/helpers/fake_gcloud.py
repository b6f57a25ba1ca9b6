r"""Stands for gcloud, and for the hosts of a TPU, in the tests of tpu/*.sh.

It runs as a program named `gcloud`, notes its arguments, and keeps a request
for a slice whose hosts are directories: `ssh` runs its command with one of
them as the home, `scp` copies to them, `delete` loses them. On a host, `uv`
makes a "python" that only trains: it notes its flags and ends as `plan` says,
one line each time:

    0                training is done
    143 SUSPENDED    ends with that status, after the slice is in that state
    1 PREEMPTED 2    ends with that status, 2 seconds before
    wait             ends with 143 when it gets a SIGTERM

`states` holds what a new request goes through, one state a question. While
`failing_deletes` has a line, a delete ends with an error; it deletes all the
same if the line is "late".
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

CLOUD = pathlib.Path(__file__).parent / "cloud"

PROGRAMS = {
    "uv": """#!/bin/sh
[ "$1" = venv ] || exit 0
bin=$HOME/albert_tf_venv/bin
mkdir -p $bin
cp $HOME/.local/bin/python $HOME/.local/bin/start_grpc_tpu_worker $bin
""",
    "python": """#!/bin/bash
[ "$1" != - ] || { cat >/dev/null; echo "host: 4 chips: v5e"; exit; }
read -r result state delay < <(sed -n 1p CLOUD/plan)
sed -i 1d CLOUD/plan
echo "the last words of $result"
trap 'exit 143' TERM
printf '%s\\0' "TPU_LOAD_LIBRARY=${TPU_LOAD_LIBRARY-}" "$@" END >>CLOUD/trained
if [ "$TPU_LOAD_LIBRARY" = 0 ]; then
  echo hello >/dev/tcp/127.0.0.1/$ALBERT_TPU_PORT
fi
if [ "$result" = wait ]; then while :; do sleep 0.1; done; fi
if [ "$delay" ]; then (sleep $delay; echo "$state" >CLOUD/states) &
elif [ "$state" ]; then echo "$state" >CLOUD/states; fi
exit $result
""",
    "start_grpc_tpu_worker": """#!PYTHON
import os, signal, socket, time
environment = {k: v for k, v in os.environ.items() if "TPU_" in k}
print(sorted(environment.items()), file=open("CLOUD/served", "a"))
server = socket.socket()
try:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(os.environ["TPU_TASK_PORT"])))
    server.listen()
    # As the real one, it ignores SIGTERM once a program has used it.
    while not server.accept()[0].recv(1):
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open("CLOUD/used", "a").close()
except OSError:
    pass  # the other host of this machine
time.sleep(3600)
""",
}


def host(number):
    """The home of a host; made if it is not there."""
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
    if worker != "all":
        return [host(worker)]
    number = int((CLOUD / "num_hosts").read_text())
    return [host(n) for n in range(number)]


def next_state():
    """What the request is in now; the last state stays."""
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
    if verb == "create":
        requested.touch()
        shutil.copy(CLOUD / "new_states", CLOUD / "states")
    elif verb == "delete":
        failing = CLOUD / "failing_deletes"
        first, *rest = failing.read_text().splitlines() or [""]
        failing.write_text("".join(f"{line}\n" for line in rest))
        if first == "refused":
            sys.exit("ERROR: (gcloud) the service is unavailable")
        requested.unlink()
        for path in CLOUD.glob("host-*/albert_tf_state/server.pid"):
            os.kill(int(path.read_text()), signal.SIGKILL)
        for home in CLOUD.glob("host-*"):
            shutil.rmtree(home)
        if first == "late":
            sys.exit("ERROR: (gcloud) no answer in time")
    elif verb == "list" and requested.exists():
        state = next_state()
        # The request may be active when its slice is not.
        print("ACTIVE" if state == "PREEMPTED" else state)


def tpu_vm(verb):
    if verb == "describe":
        states = (CLOUD / "states").read_text().split()
        print("PREEMPTED" if states[0] == "PREEMPTED" else "READY")
    elif verb == "scp":
        for home in hosts(flag("worker")):
            shutil.copy(sys.argv[5], home)
    elif verb == "ssh":
        homes = hosts(flag("worker"))
        for number, home in enumerate(homes):
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
            # At the port of a second host, the first one's server answers.
            if "on_host.sh serve" in flag("command") and len(homes) > 1:
                while num_served() == before:
                    time.sleep(0.01)


def num_served():
    served = CLOUD / "served"
    return len(served.read_text().splitlines()) if served.exists() else 0


with open(CLOUD / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\n")
if sys.argv[1] == "storage":
    shutil.copy(sys.argv[-2], CLOUD / "log-in-the-bucket")
elif sys.argv[3] == "queued-resources":
    queued_resources(sys.argv[4])
else:
    tpu_vm(sys.argv[4])
