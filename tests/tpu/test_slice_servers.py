"""The servers on the hosts of a slice, as `tpu/on_host.sh` runs them.

Google Cloud, the hosts and the server are substitutes: see
`tests/helpers/fake_cloud.py`.
"""

import ast
import concurrent.futures
import contextlib

import pytest

from tests.helpers.fake_cloud import TRAINING, Metadata, wait_for

# They wait for processes.
pytestmark = pytest.mark.slow


def test_every_host_of_a_slice_runs_a_server(cloud):
    cloud.set_up(num_hosts=2)
    settings = cloud.path / "tpu-env"
    settings.write_text("TPU_OF_IMAGE='set by it'\n")
    cloud.environment["ALBERT_TPU_ENV_FILE"] = str(settings)
    cloud.complete("--delete_when_done=true")
    port = cloud.environment["ALBERT_TPU_PORT"]
    ((library, arguments),) = cloud.trained()
    assert library == "0"  # the servers have the TPU
    assert arguments[2:4] == [
        "--strategy=tpu",
        f"--tpu_name=grpc://10.0.0.2:{port},10.0.0.3:{port}",
    ]
    served = (cloud.path / "served").read_text().splitlines()
    assert len(served) == 2
    assert "('TPU_MESH_CONTROLLER_ADDRESS', '10.0.0.2:8476')" in served[0]
    assert "('TPU_OF_IMAGE', 'set by it')" in served[0]
    assert cloud.verbs() == ["create", "delete"]


@pytest.mark.parametrize(
    ("num_hosts", "given"),
    [(1, "--xla_a=1"), (2, "--xla_a=1 --b='2 3'"), (2, "")],
)
def test_servers_and_trainer_get_the_compiler_flags(cloud, num_hosts, given):
    """By default, servers get those of the image."""
    cloud.set_up(num_hosts=num_hosts)
    settings = cloud.path / "tpu-env"
    settings.write_text("LIBTPU_INIT_ARGS=--of_image\n")
    cloud.environment["ALBERT_TPU_ENV_FILE"] = str(settings)
    cloud.complete(*[f"--libtpu_init_args={given}"] * bool(given))
    if given:
        flags = (cloud.path / "compiler_flags").read_text()
        assert flags == f"{given}\n"
    served = cloud.path / "served"
    assert served.exists() == (num_hosts > 1)
    for line in served.read_text().splitlines() if num_hosts > 1 else ():
        environment = dict(ast.literal_eval(line))
        assert environment["LIBTPU_INIT_ARGS"] == (given or "--of_image")


def test_a_server_that_ignores_sigterm_is_replaced(cloud):
    """After its first client, start_grpc_tpu_worker ignores SIGTERM."""
    cloud.environment["ALBERT_TPU_SERVER_GRACE_S"] = "1"
    cloud.set_up(plan=["1", "0"], num_hosts=2)
    cloud.succeed("create", "setup", "start")
    pid_file = cloud.path / "host-0" / "albert_tf_state" / "server.pid"
    first = int(pid_file.read_text())
    wait_for(cloud.num_served, 2)
    wait_for((cloud.path / "used").exists, True)
    cloud.succeed("start")
    assert int(pid_file.read_text()) != first
    wait_for(cloud.num_served, 4)


def test_the_server_of_a_host_gets_sigterm_at_a_notice(cloud):
    """TensorFlow's server then asks the run of the slice to stop."""
    cloud.set_up(num_hosts=2)
    cloud.succeed("create", "setup", "start")
    received = [cloud.path / f"host-{host}" / "sigterm" for host in range(2)]
    assert not any(path.exists() for path in received)
    wait_for(cloud.num_served, 2)  # from then on they record SIGTERM
    Metadata.preempted = "TRUE"
    wait_for(lambda: [path.exists() for path in received], [True, True])
    log = cloud.path / "host-1" / "albert_tf_state" / "server.log"
    assert "preempted TRUE: sending SIGTERM" in log.read_text()


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_training_starts_after_the_end_of_a_notice(cloud, num_hosts):
    """It would get the same notice at once, and its server, too."""
    cloud.set_up(num_hosts=num_hosts)
    cloud.succeed("create", "setup")
    Metadata.preempted = "TRUE"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        start = pool.submit(cloud.launch, "start", "--", *TRAINING)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            start.result(timeout=3)
        assert not (cloud.path / "trained").exists()
        Metadata.preempted = "FALSE"
        assert start.result().returncode == 0
    assert (cloud.path / "trained").exists()


def test_a_notice_that_stays_delays_training_only(cloud):
    cloud.succeed("create", "setup")
    Metadata.preempted = "TRUE"
    cloud.environment["ALBERT_TPU_NOTICE_WAIT_S"] = "1"
    cloud.succeed("start")


def test_a_training_slice_keeps_its_servers_and_modules(cloud):
    """Only host 0 knows that training is running."""
    cloud.set_up(plan=["wait"], num_hosts=2)
    cloud.succeed("create", "setup", "start")
    module = cloud.path / "host-1" / "albert_tf" / "of-the-program-that-runs"
    module.touch()
    for words in (
        ["start", "--", *TRAINING],
        ["check", "--", *TRAINING],
        ["setup"],
    ):
        done = cloud.launch(*words)
        assert done.returncode and "must not be running" in done.stderr
    assert len((cloud.path / "served").read_text().splitlines()) == 2
    assert module.exists()
