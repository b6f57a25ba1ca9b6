"""Names of TPU slices and of GPUs."""

import pytest

from albert_tf.errors import UserError
from tpu import topologies

# As in Google Cloud's tables of accelerator types: our name, chips, cores.
SLICES = {
    "v2-8": ("v2:2x2", 4, 8),
    "v3-2048": ("v3:32x32", 1024, 2048),
    "v4-8": ("v4:2x2x1", 4, 4),
    "v4-4096": ("v4:8x16x16", 2048, 2048),
    "v5litepod-1": ("v5e:1x1", 1, 1),
    "v5litepod-256": ("v5e:16x16", 256, 256),
    "v5p-128": ("v5p:4x4x4", 64, 64),
    "v6e-64": ("v6e:8x8", 64, 64),
    "tpu7x-8": ("tpu7x:2x2x1", 4, 8),
    "v5e-32": ("v5e:4x8", 32, 32),
}


@pytest.mark.parametrize("name", SLICES)
def test_slice_names_give_the_number_of_chips(name):
    text, chips, cores = SLICES[name]
    found = topologies.parse(name)
    numbers = found.num_chips, found.num_devices
    assert (found.name, *numbers) == (text, chips, cores)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("", "v5litepod-256, v4-128"),
        ("h1000", "t4, a100-40g, .*; 8xh100 for eight"),
        ("0xh100", "8xh100 for eight"),
        ("v100", "t4, a100-40g"),
        ("v9-8", "v5litepod-256, v4-128"),
        ("v3-9", "v3-8, v3-32"),
        ("v5litepod-512", "v5litepod-256\\.$"),
        ("v2-1024", "v2-512\\.$"),
    ],
)
def test_invalid_slice_names_are_refused(name, remedy):
    """Pods: 256 chips of v2, v5e and v6e, 1,024 of v3."""
    with pytest.raises(UserError, match=remedy):
        topologies.parse(name)


def test_a_machine_has_the_memory_that_jax_takes(monkeypatch):
    """Three quarters, or what a variable says, of the 40 GB of an A100."""
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    found = topologies.parse("8xa100-40g")
    assert (found.name, found.num_devices) == ("8xa100-40g", 8)
    assert found.memory_bytes == 0.75 * 42331013120
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.5")
    assert topologies.parse("a100-40g").memory_bytes == 0.5 * 42331013120


@pytest.mark.parametrize("part", ["abc", "0", "-0.5", "1.5", "nan"])
def test_a_wrong_part_of_the_memory_is_refused(part, monkeypatch):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", part)
    with pytest.raises(UserError, match=f"MEM_FRACTION must be .*'{part}'"):
        topologies.parse("h100")
    assert topologies.parse("v4-8").num_chips == 4


def test_a_float32_product_has_a_peak_of_its_own():
    card = topologies.parse("a100-80g")
    assert card.peak_flops["bfloat16"] == 2 * card.peak_flops["float32"]
