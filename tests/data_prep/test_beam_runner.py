import contextlib
import gzip
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from albert_tf.errors import RetryError, UserError
from albert_tf.records.features import read_metadata
from data_prep import build_tfrecords
from data_prep.builder import shards
from data_prep.config import RecordsConfig
from tests.helpers.run_processes import free_ports

pytestmark = pytest.mark.beam

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"


@pytest.fixture(scope="module")
def text_files(tmp_path_factory):
    """Three files; some documents are in two or three of them."""
    directory = tmp_path_factory.mktemp("text")
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        lines = file.read(150_000).split("\n")
    documents = ["\n".join(lines[i : i + 9]) for i in range(0, len(lines), 9)]
    documents.append("One")
    for i, some in enumerate(
        (
            [*documents[::2], "One"],
            documents[1::2] + documents[:9],
            documents[:5],
        )
    ):
        path = directory / f"{i}.txt"
        text = "\n\n".join(some).encode()
        path.write_bytes(text + b"\n\nNo UTF-8: \xff.\n")
    return directory / "*.txt"


def build(output_dir, text_files, **settings):
    build_tfrecords.main(
        RecordsConfig(
            **{
                "input_file": (str(text_files),),
                "output_dir": str(output_dir),
                "spm_model_file": "tests/testdata/30k-clean.model",
                "max_seq_length": 64,
                "max_predictions_per_seq": 11,
                "dupe_factor": 2,
                "holdout_fraction": 0.2,
                "num_shards": 5,
                "num_eval_shards": 2,
                "num_workers": 1,
                "on_bad_utf8": "skip",
                **settings,
            }
        )
    )
    return read_directory(output_dir)


def read_directory(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(pathlib.Path(directory).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "deduplicate": True,
            "sentence_objective": "nsp",
            "packing": "best_fit",
        },
        {"masking": "dynamic", "sentence_objective": "none"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "default",
)
def test_beam_gives_the_bytes_of_the_local_runner(
    text_files, tmp_path, settings
):
    local = build(tmp_path / "local", text_files, **settings)
    beam = build(
        tmp_path / "beam", text_files, runner="DirectRunner", **settings
    )
    assert beam == local
    metadata = read_metadata(str(tmp_path / "beam" / "train"))
    # 9 + 5 documents are duplicates; about a fifth is held out.
    assert 5 < metadata.num_duplicate_documents <= 14
    assert metadata.skipped["documents of less than two words"] == 2
    assert metadata.skipped["lines that are not UTF-8"] == 3


def test_several_beam_processes_give_the_same_bytes(text_files, tmp_path):
    local = build(tmp_path / "local", text_files)
    options = ("direct_num_workers=2", "direct_running_mode=multi_processing")
    beam = build(
        tmp_path / "beam",
        text_files,
        runner="DirectRunner",
        beam_option=options,
    )
    assert beam == local


@contextlib.contextmanager
def start_portable_runner(log, num_workers):
    """Beam's job service and a pool of workers, as processes.

    Yields:
        The options with which a pipeline uses them.
    """
    job_service, worker_pool = free_ports(2)
    services = {
        job_service: (
            "tests.helpers.beam_job_service",
            str(num_workers),
            f"--port={job_service}",
        ),
        worker_pool: (
            "apache_beam.runners.worker.worker_pool_main",
            f"--service_port={worker_pool}",
        ),
    }
    scripts = pathlib.Path(sys.executable).parent
    environment = {
        **os.environ,
        # The pool starts workers by the command `python`.
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
    }
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(log.open("w"))
        for command in services.values():
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        for port in services:
            wait_for_server(port)
        yield (
            f"job_endpoint=localhost:{job_service}",
            "environment_type=EXTERNAL",
            f"environment_config=localhost:{worker_pool}",
        )


def wait_for_server(port):
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("localhost", port)).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_portable_runner_gives_the_same_bytes(
    num_workers, text_files, tmp_path
):
    local = build(tmp_path / "local", text_files)
    log = tmp_path / "services.log"
    with start_portable_runner(log, num_workers) as options:
        beam = build(
            tmp_path / "beam",
            text_files,
            runner="PortableRunner",
            beam_option=options,
        )
    assert beam == local
    assert log.read_text().count("Starting worker") == num_workers


def find_beam_workers():
    """Process numbers of the workers that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            program, *arguments = process.cmdline()
            if "python" in program and ".sdk_worker" in " ".join(arguments):
                found.append(process.pid)
    return sorted(found)


@contextlib.contextmanager
def kill_a_worker(output_dir):
    """Kills a worker of Beam when the first shard has been written."""
    stopped = threading.Event()

    def kill():
        while not list(output_dir.rglob("*.tfrecord")):
            if stopped.wait(0.01):
                return
        os.kill(find_beam_workers()[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        stopped.set()
        killer.join()


@contextlib.contextmanager
def start_direct_runner(_log, num_workers):
    yield (
        f"direct_num_workers={num_workers}",
        "direct_running_mode=multi_processing",
    )


# Beam's threads end with an exception when their worker is lost.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
@pytest.mark.parametrize(
    ("runner", "start"),
    [
        ("PortableRunner", start_portable_runner),
        ("DirectRunner", start_direct_runner),
    ],
)
def test_a_killed_worker_costs_its_task_but_not_the_build(
    runner, start, text_files, tmp_path, caplog
):
    local = build(tmp_path / "local", text_files)
    output_dir = tmp_path / "beam"
    with (
        start(tmp_path / "services.log", 2) as options,
        kill_a_worker(output_dir),
    ):
        beam = build(output_dir, text_files, runner=runner, beam_option=options)
    assert beam == local
    assert re.search(r"with [1-9] of 7 shards finished", caplog.text)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_workers_that_are_killed_too_often_end_the_build(
    text_files, tmp_path, monkeypatch
):
    from data_prep.builder import beam_runner

    monkeypatch.setattr(beam_runner, "_RETRIES", 0)
    with (
        start_direct_runner(None, 2) as options,
        kill_a_worker(tmp_path / "beam"),
        pytest.raises(RetryError, match="run the pipeline to its end"),
    ):
        build(
            tmp_path / "beam",
            text_files,
            runner="DirectRunner",
            beam_option=options,
        )


@pytest.mark.parametrize(
    ("runner", "option", "message"),
    [
        ("PortablRunner", "job_name=build", "--runner and .*PortablRunner"),
        ("DirectRunner", "direct_num_workers=x", "invalid int value: 'x'"),
        ("PortableRunner", "job_endpoint=localhost", "must be HOST:PORT"),
        ("PortableRunner", "job_endpoint=localhost:9", "answer.*refused"),
        ("PortableRunner", "job_name=build", "specify a --job_endpoint"),
        ("DataflowRunner", "job_name=build", "Missing required option"),
    ],
)
def test_options_that_beam_cannot_use_are_refused(
    runner, option, message, text_files, tmp_path
):
    with pytest.raises(UserError, match=message):
        build(
            tmp_path / "beam",
            text_files,
            runner=runner,
            beam_option=(option,),
        )


def test_refused_options_keep_the_records_of_another_build(
    text_files, tmp_path
):
    records = build(tmp_path / "records", text_files)
    with pytest.raises(UserError, match="PortablRunner"):
        build(
            tmp_path / "records",
            text_files,
            seed=7,
            overwrite=True,
            runner="PortablRunner",
        )
    assert records.items() <= read_directory(tmp_path / "records").items()


def test_finished_shards_are_not_written_again(
    text_files, tmp_path, monkeypatch
):
    """The third shard fails once; the shards before it are not changed."""
    expected = build(tmp_path / "local", text_files)
    output_dir = tmp_path / "beam"
    original = shards.make_records

    def fail_in_the_third_shard(*arguments):
        if len(list(output_dir.rglob("*.tfrecord"))) == 2:
            raise MemoryError
        return original(*arguments)

    monkeypatch.setattr(shards, "make_records", fail_in_the_third_shard)
    with pytest.raises(RuntimeError, match="MemoryError"):
        build(output_dir, text_files, runner="DirectRunner")
    monkeypatch.undo()
    before = {p: p.stat().st_mtime_ns for p in output_dir.rglob("*.tfrecord")}
    assert len(before) == 2
    assert build(output_dir, text_files, runner="DirectRunner") == expected
    for path, when in before.items():
        assert path.stat().st_mtime_ns == when


def test_text_without_examples_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Word\n")
    with pytest.raises(UserError, match=r"two words.*1 documents"):
        build(tmp_path / "out", path, runner="DirectRunner")
