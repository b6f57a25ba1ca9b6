import contextlib
import gzip
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from albert_tf.errors import UserError
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
    return {
        str(path.relative_to(output_dir)): path.read_bytes()
        for path in sorted(pathlib.Path(output_dir).rglob("*"))
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
