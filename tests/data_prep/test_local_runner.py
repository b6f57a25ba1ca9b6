import pytest

from data_prep.builder import local_runner


@pytest.mark.parametrize(
    ("num_bytes", "dupe_factor", "expected"),
    [
        (100_000, 1, 65_536),
        (256_000_000, 1, 1_000_000),
        (10**12, 1, 8_388_608),
        # All copies together have at most 64 Mi characters.
        (10**12, 40, 1_677_721),
        (100_000, 4000, 16_777),
        (100_000, 10**9, 1),
    ],
)
def test_size_of_units_is_bounded(num_bytes, dupe_factor, expected):
    assert local_runner.choose_unit_size(num_bytes, dupe_factor) == expected
