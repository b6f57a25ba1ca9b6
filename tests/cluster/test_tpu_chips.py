"""Detection of TPUs: PCI trees made of files, and real processes."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

from albert_tf.cluster import tpu_chips
from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import DistributionConfig
from albert_tf.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
ON_TPU = DistributionConfig(strategy="tpu")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that makes PCI devices, and files of /dev.

    A device has the ids of its vendor, of its kind and, if given, of its
    subsystem.
    """
    pci, dev = tmp_path / "pci", tmp_path / "dev"
    dev.mkdir()
    monkeypatch.setattr(tpu_chips, "PCI_DEVICES", pci)
    monkeypatch.setattr(tpu_chips, "DEVICES", dev)
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)

    def build(devices, files=()):
        for ids in devices:
            directory = pci / f"0000:00:0{len(list(pci.glob('*')))}.0"
            directory.mkdir(parents=True)
            for name, value in zip(
                ("vendor", "device", "subsystem_device"), ids, strict=False
            ):
                (directory / name).write_text(value + "\n")
        for name in files:
            (dev / name).touch()

    return build


# The network card and disk of a Google Cloud VM have Google's vendor id, too.
GVNIC, NVME = ("0x1ae0", "0x0042"), ("0x1ae0", "0x001f")


def test_other_pci_devices_of_google_are_not_chips(machine):
    machine([GVNIC, NVME, ("0x10de", "0x0063")])
    assert tpu_chips.find_chips() == []
    machine([("0x1ae0", "0x0063")] * 2)
    assert tpu_chips.find_chips() == ["v5e", "v5e"]


@pytest.mark.parametrize(
    ("ids", "num_devices", "teraflops", "gib"),
    [
        # Two cores a chip, of 45 and 123 teraflops.
        (("0x0027", "0x004e"), 8, 22.5, 7.48),
        (("0x0027", "0x004f"), 8, 61.5, 15.48),
        (("0x0027",), 8, None, None),
        # A device is a chip, a core, or neither: one of four chips is used.
        (("0x005e",), 4, 275, 30.75),
        (("0x005e",), 8, 137.5, 15.375),
        (("0x005e",), 1, None, None),
        (("0x0063",), 1, 197, 15.75),
    ],
)
def test_devices_of_tensorflow_are_chips_or_cores(
    machine, monkeypatch, ids, num_devices, teraflops, gib
):
    monkeypatch.delenv(tpu_chips.TYPE_VARIABLE, raising=False)
    machine([GVNIC, *[("0x1ae0", *ids)] * 4])
    chip = tpu_chips.chip_of_this_machine(num_devices)
    if teraflops is None:
        assert chip is None
        return
    assert chip.peak_flops == teraflops * 1e12
    assert chip.memory_bytes == int(gib * 2**30)


def test_a_v4_without_visible_chips_is_unknown(machine, monkeypatch):
    monkeypatch.setenv(tpu_chips.TYPE_VARIABLE, "v4-8")
    machine([GVNIC])
    assert tpu_chips.chip_of_this_machine(4) is None
    machine([], files=["accel0", "accel1", "accel2", "accel3"])
    assert tpu_chips.chip_of_this_machine(4).peak_flops == 275e12


def test_without_a_pci_bus_device_files_count(machine):
    machine([], files=["accel0", "accel1", "accel_else", "null"])
    assert len(tpu_chips.find_chips()) == 2
    tpu_chips.check(ON_TPU)


def test_libtpu_queries_the_slice_only_with_a_chip(machine):
    tpu_chips.skip_metadata_query_without_chips()
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"
    del os.environ["TPU_SKIP_MDS_QUERY"]
    machine([("0x1ae0", "0x005e")])
    tpu_chips.skip_metadata_query_without_chips()
    assert "TPU_SKIP_MDS_QUERY" not in os.environ


def test_only_a_local_tpu_is_searched_for(machine):
    machine([GVNIC])
    with pytest.raises(UserError) as raised:
        tpu_chips.check(ON_TPU)
    for told in (str(tpu_chips.PCI_DEVICES), "accel*", "installed: tensorflow"):
        assert told in raised.value.fault
    assert "docs/tpu.md" in raised.value.remedy
    tpu_chips.check(DistributionConfig(strategy="auto"))
    tpu_chips.check(DistributionConfig(strategy="tpu", tpu_name="grpc://a:1"))


@pytest.mark.skipif(
    bool(tpu_chips.find_chips()), reason="this machine has a TPU"
)
def test_a_run_for_a_missing_tpu_ends_within_seconds(tmp_path):
    """Before TensorFlow is imported, for every release."""
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "albert_tf.run_pretraining",
            "--strategy=tpu",
            "--albert_config_file=configs/models/albert_base_v2.json",
            "--input_file=none",
            f"--output_dir={tmp_path}/run",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    message = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert "strategy=tpu needs a TPU on this machine" in message
    imported = {
        line.split("|")[-1].strip() for line in done.stderr.splitlines()
    }
    assert "absl" in imported and "tensorflow" not in imported
    assert not (tmp_path / "run").exists()


def test_hosts_of_a_slice_that_do_not_answer_are_named():
    """TensorFlow would wait for them for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as answers:
        good = f"127.0.0.1:{answers.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as closed:
            bad = f"127.0.0.1:{closed.getsockname()[1]}"
        config = DistributionConfig(
            strategy="tpu", tpu_name=f"grpc://{good},{bad}"
        )
        with pytest.raises(UserError, match=f"no answer from {bad} ") as raised:
            make_strategy(config)
    assert good not in str(raised.value)
    assert "start_grpc_tpu_worker" in raised.value.remedy


def test_an_unknown_tpu_name_is_refused_with_the_form_of_addresses():
    config = DistributionConfig(
        strategy="tpu", tpu_name="mine", tpu_zone="a", gcp_project="b"
    )
    with pytest.raises(UserError, match="needs a TPU at mine") as raised:
        make_strategy(config)
    assert "--tpu_name=grpc://" in raised.value.remedy


def test_a_missing_metadata_server_is_a_user_error(monkeypatch):
    """Without --tpu_zone and --gcp_project, TensorFlow asks that server."""
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
    config = DistributionConfig(strategy="tpu", tpu_name="mine")
    with pytest.raises(UserError, match="needs a TPU at mine"):
        make_strategy(config)
