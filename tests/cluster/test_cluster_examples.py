"""The examples for several machines and TPUs, run with stand-ins.

`srun`, `scontrol` and `python` are scripts; TensorFlow reads the TF_CONFIG.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest
import tensorflow as tf
import yaml

from albert_tf.cluster.preemption import PREEMPTED_STATUS
from albert_tf.config import PretrainingConfig, flags
from albert_tf.errors import RETRY_STATUS

ROOT = pathlib.Path(__file__).parents[2]
CLUSTER = ROOT / "configs" / "cluster"

FLAGS = ["--output_dir=/shared/run", "--input_file=/shared/*.tfrecord"]

PROGRAMS = {
    # Writes its TF_CONFIG and its arguments to a file.
    "python": """#!/bin/bash
printf '%s\\n' "${TF_CONFIG-}" "$@" >"$RESULTS/worker-$SLURM_PROCID"
exit "$(cat "$RESULTS/status")"
""",
    "scontrol": """#!/bin/bash
case $* in
"show hostnames gpu[1-2,7]") printf 'gpu1\\ngpu2\\ngpu7\\n' ;;
"show hostnames gpu1") echo gpu1 ;;
*) echo "$*" >>"$RESULTS/asked" ;;
esac
""",
    # Runs the command of each task; returns the highest status.
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do echo "$1" >>"$RESULTS/srun-flags"; shift; done
highest=0
for ((rank = 0; rank < SLURM_NTASKS; ++rank)); do
  SLURM_PROCID=$rank "$@"
  status=$?
  ((status <= highest)) || highest=$status
done
exit $highest
""",
}


@pytest.fixture
def machine(tmp_path):
    """Runs a script with the fake programs above; returns the process."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "status").write_text("0")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "TF_CONFIG", "JOB_"))
    }

    def run(*command, **environment):
        return subprocess.run(
            [*command, *FLAGS],
            env={
                **kept,
                "PATH": f"{tmp_path}:{kept['PATH']}",
                "RESULTS": str(tmp_path),
                "SLURM_PROCID": "0",
                **environment,
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def slurm(nodes="gpu[1-2,7]", tasks="3"):
    return {
        "SLURM_JOB_ID": "654321",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NTASKS": tasks,
    }


def cluster_of(path, monkeypatch):
    """The cluster that TensorFlow reads from the TF_CONFIG of a worker."""
    tf_config, *arguments = path.read_text().splitlines()
    monkeypatch.setenv("TF_CONFIG", tf_config)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    task = resolver.task_type, resolver.task_id
    return resolver.cluster_spec().as_dict(), task, arguments


@pytest.mark.parametrize("name", ["worker.sh", "slurm.sbatch", "tpu_host.sh"])
def test_scripts_are_clean(name):
    script = CLUSTER / name
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, script], check=True)


def test_under_slurm_each_worker_gets_all_nodes_and_its_index(
    machine, tmp_path, monkeypatch
):
    done = machine(CLUSTER / "slurm.sbatch", **slurm())
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        cluster, task, arguments = cluster_of(
            tmp_path / f"worker-{rank}", monkeypatch
        )
        # 20000 + 654321 % 10000
        assert cluster == {"worker": ["gpu1:24321", "gpu2:24321", "gpu7:24321"]}
        assert task == ("worker", rank)
        assert arguments == [
            *["-m", "albert_tf.run_pretraining", "--strategy=multi_worker"],
            *FLAGS,
        ]
    # A worker that ends must not stop another that saves a checkpoint.
    assert (tmp_path / "srun-flags").read_text().split() == [
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
    ]
    assert not (tmp_path / "asked").exists()


def test_one_node_of_slurm_mirrors_over_its_gpus(machine, tmp_path):
    done = machine(CLUSTER / "slurm.sbatch", **slurm("gpu1", "1"))
    assert done.returncode == 0, done.stderr
    tf_config, *arguments = (tmp_path / "worker-0").read_text().splitlines()
    assert tf_config == ""
    assert "--strategy=mirrored" in arguments


@pytest.mark.parametrize(
    ("status", "restarts", "queued"),
    [(143, 900, True), (75, 2, True), (75, 3, False), (1, 0, False)],
)
def test_a_job_is_queued_again_after_a_preemption_or_a_temporary_fault(
    machine, tmp_path, status, restarts, queued
):
    (tmp_path / "status").write_text(str(status))
    counts = {"SLURM_RESTART_COUNT": str(restarts), "MAX_RESTARTS": "3"}
    done = machine(CLUSTER / "slurm.sbatch", **slurm(), **counts)
    assert done.returncode == status
    asked = tmp_path / "asked"
    assert queued == (asked.exists() and "requeue 654321" in asked.read_text())


def test_srun_on_a_part_of_an_allocation_trains_on_its_nodes(machine, tmp_path):
    step = {"SLURM_STEP_NODELIST": "gpu1"}
    done = machine(CLUSTER / "worker.sh", **slurm(tasks="1"), **step)
    assert done.returncode == 0, done.stderr
    assert "--strategy=mirrored" in (tmp_path / "worker-0").read_text()


def test_a_worker_needs_a_scheduler_with_one_task_a_node(machine, tmp_path):
    for environment, fault in (
        (slurm(tasks="6"), "Received: 6 tasks on 3 nodes"),
        ({}, "must be started by Slurm or an indexed job"),
    ):
        done = machine(CLUSTER / "worker.sh", **environment)
        assert done.returncode == 1
        assert fault in done.stderr
        assert not (tmp_path / "worker-0").exists()


def test_under_kubernetes_workers_find_each_other_by_the_service(
    machine, tmp_path, monkeypatch
):
    service, job = yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    number = job["spec"]["completions"]
    assert job["spec"]["parallelism"] == number
    assert job["spec"]["completionMode"] == "Indexed"
    # So pods get the names JOB-INDEX.SERVICE.
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}

    # A preempted pod is started again, which needs the policy "Never".
    rules = job["spec"]["podFailurePolicy"]["rules"]
    codes = [r["onExitCodes"]["values"] for r in rules if "onExitCodes" in r]
    assert (pod["restartPolicy"], codes[0]) == ("Never", [143])

    program, *flags = container["command"]
    done = machine(
        ROOT / program,
        *flags,
        JOB_COMPLETION_INDEX="2",
        **{entry["name"]: entry["value"] for entry in container["env"]},
    )
    assert done.returncode == 0, done.stderr
    cluster, task, arguments = cluster_of(tmp_path / "worker-0", monkeypatch)
    port = container["ports"][0]["containerPort"]
    assert cluster == {
        "worker": [f"albert-{n}.albert:{port}" for n in range(number)]
    }
    assert task == ("worker", 2)
    assert arguments[2:] == ["--strategy=multi_worker", *flags, *FLAGS]


def flags_of_slurm():
    """The flags in the comment that shows the command."""
    text = (CLUSTER / "slurm.sbatch").read_text().split("slurm.sbatch \\\n")[1]
    command = text.split("\n#\n")[0].replace("\\\n#", "").strip("# ")
    return shlex.split(command)


def flags_of_kubernetes():
    *_, job = yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container["command"][1:]


@pytest.mark.parametrize("arguments", [flags_of_slurm(), flags_of_kubernetes()])
def test_the_batches_of_the_examples_fit_32_gpus(arguments, monkeypatch):
    monkeypatch.chdir(ROOT)
    data = flags.parse_line(PretrainingConfig, arguments).data
    assert data.global_batch_size % (32 * data.gradient_accumulation_steps) == 0


ON_TPU_HOST = {
    # The metadata server, without flags of the compiler.
    "curl": """#!/bin/bash
case ${*: -1} in
*/albert-flags) echo --runtime=pjrt ;;
*/albert-code) echo gs://bucket/code.tar ;;
*) exit 22 ;;
esac
""",
    "gcloud": """#!/bin/bash
echo "$*" >>copied
tar -cf "$4" --files-from=/dev/null
""",
    # Installs uv, which makes a Python that ends with the next status.
    "python3": """#!/bin/bash
mkdir -p uv/bin venv/bin
ln -sf "$(type -P true)" uv/bin/uv
cat >venv/bin/python <<'END'
#!/bin/bash
echo "$JAX_PLATFORMS $* $(cat run.flags)" >>trained
read -r status <statuses
sed -i 1d statuses
exit "$status"
END
chmod +x venv/bin/python
""",
}


@pytest.mark.parametrize(
    ("statuses", "starts"), [((75, 75, 0), 3), ((143,), 1), ((75, 1), 2)]
)
def test_a_tpu_host_installs_once_and_starts_again_after_temporary_faults(
    tmp_path, statuses, starts
):
    programs, home = tmp_path / "programs", tmp_path / "home"
    for directory in programs, home:
        directory.mkdir()
    for name, text in ON_TPU_HOST.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def boot():
        (home / "statuses").write_text("".join(f"{s}\n" for s in statuses))
        done = subprocess.run(
            [CLUSTER / "tpu_host.sh"],
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "ALBERT_HOME": str(home),
                "ALBERT_PAUSE_S": "0",
            },
            timeout=60,
        )
        assert done.returncode == statuses[-1]

    boot()
    boot()
    command = "tpu,cpu -m albert_tf.run_pretraining --flagfile=run.flags"
    assert (home / "trained").read_text().splitlines() == [
        f"{command} --runtime=pjrt"
    ] * (2 * starts)
    (copied,) = (home / "copied").read_text().splitlines()
    assert copied == "storage cp gs://bucket/code.tar code.tar"


def test_the_task_of_skypilot_trains_on_eight_chips(monkeypatch):
    monkeypatch.chdir(ROOT)
    task = yaml.safe_load((CLUSTER / "skypilot.yaml").read_text())
    command = task["run"].replace("$BUCKET", task["envs"]["BUCKET"])
    words = shlex.split(command.replace("\\\n", " "))
    arguments = words[words.index("albert_tf.run_pretraining") + 1 :]
    config = flags.parse_line(PretrainingConfig, arguments)
    (kind,) = re.findall(
        r"tpu-v5litepod-(\d+)", task["resources"]["accelerators"]
    )
    data = config.data
    rows = int(kind) * data.gradient_accumulation_steps
    assert data.global_batch_size % rows == 0
    again = task["resources"]["job_recovery"]["recover_on_exit_codes"]
    assert again == [RETRY_STATUS, PREEMPTED_STATUS]
