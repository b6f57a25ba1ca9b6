"""Names of TPU slices, and times of their all-reduces."""

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
    numbers = found.num_chips, found.num_cores
    assert (str(found), *numbers) == (text, chips, cores)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("", "v5litepod-256, v4-128"),
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


def test_an_all_reduce_sends_each_byte_almost_twice():
    """256 chips at 200 GB/s: 2 * 255/256 * 0.2 GB / 200 GB/s."""
    seconds = topologies.parse("v5litepod-256").all_reduce_seconds(200_000_000)
    assert seconds == pytest.approx(0.001 * 2 * 255 / 256)
    assert topologies.parse("v5litepod-1").all_reduce_seconds(10**9) == 0
