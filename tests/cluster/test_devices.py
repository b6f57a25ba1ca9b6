import pytest

from albert_tf.cluster import devices


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla T4", 65),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H200", 989),
    ],
)
def test_a_gpu_has_the_peak_of_its_data_sheet(name, teraflops):
    assert devices.gpu_peak_flops(name) == teraflops * 1e12


@pytest.mark.parametrize(
    "name",
    ["NVIDIA L40S", "NVIDIA L40", "NVIDIA T400 4GB", "NVIDIA A10", "AMD", ""],
)
def test_an_unknown_gpu_has_no_peak(name):
    assert devices.gpu_peak_flops(name) is None


@pytest.mark.parametrize(
    ("pci_id", "versions"),
    [
        ("0x0027", "v2 or v3"),
        ("0x0056", "unnamed"),
        ("0x005e", "v4"),
        ("0x0062", "v5p"),
        ("0x0063", "v5e"),
        ("0x006f", "v6e"),
        ("0x0076", "TPU7x"),
        ("0x1234", None),
    ],
)
def test_a_chip_is_known_by_its_pci_id(pci_id, versions):
    assert devices.tpu_by_pci_id(pci_id) == versions
    assert devices.tpu_by_pci_id(pci_id, "0x0001") == versions


def test_chips_with_the_same_pci_id_differ_in_the_subsystem():
    assert devices.tpu_by_pci_id("0x0027", "0x004e") == "v2"
    assert devices.tpu_by_pci_id("0x0027", "0x004f") == "v3"


@pytest.mark.parametrize(
    ("accelerator_type", "version"),
    [
        ("v2-8", "v2"),
        ("v3-32", "v3"),
        ("v5litepod-16", "v5e"),
        ("v5p-8", "v5p"),
        ("v6e-1", "v6e"),
        ("v4-8", "v4"),
        ("v99-8", None),
        ("", None),
    ],
)
def test_a_chip_is_known_by_its_accelerator_type(accelerator_type, version):
    chip = devices.tpu_by_accelerator_type(accelerator_type)
    assert chip == (version and devices.TPU_CHIPS[version])
