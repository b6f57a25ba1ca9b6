import numpy as np
import pytest

from data_prep.builder.rows import HEADER, Rows, piece_dtype
from data_prep.builder.shuffle import (
    count_earlier_equals,
    give_new_keys,
    read_counts,
    read_headers,
    read_shard,
    write_spill,
)

DTYPE = piece_dtype(30000)
NUM_SHARDS = 3


def make_rows(count, seed=0):
    """Rows of 1 to 12 pieces, which tell the row's number."""
    rng = np.random.default_rng(seed)
    headers = np.zeros(count, HEADER)
    headers["key"] = rng.integers(0, 2**64, count, dtype=np.uint64)
    headers["document"] = rng.integers(0, 2**64, count, dtype=np.uint64)
    headers["first_length"] = rng.integers(1, 8, count)
    headers["second_length"] = rng.integers(0, 5, count)
    lengths = headers["first_length"] + headers["second_length"]
    return Rows(headers, np.repeat(np.arange(count), lengths).astype(DTYPE))


def shards_of(rows):
    return (rows.headers["key"] % NUM_SHARDS).astype(np.int64)


def spill(directory, rows, sizes):
    """Spill files of so many rows each."""
    directory.mkdir()
    paths = []
    for indices in np.split(np.arange(len(rows.headers)), np.cumsum(sizes)):
        some = rows.take(indices)
        paths.append(str(directory / f"{len(paths)}.rows"))
        write_spill(paths[-1], some, shards_of(some), NUM_SHARDS)
    return paths


def as_list(parts):
    """Header and pieces of each row."""
    found = []
    for rows in parts:
        ends = np.cumsum(rows.lengths)[:-1]
        for header, pieces in zip(
            rows.headers.tolist(), np.split(rows.pieces, ends), strict=True
        ):
            found.append((header, pieces.tolist()))
    return found


def read_all(paths, **settings):
    return [
        as_list(read_shard(paths, shard, NUM_SHARDS, DTYPE, **settings))
        for shard in range(NUM_SHARDS)
    ]


def test_a_shard_holds_its_rows_in_the_order_of_their_keys(tmp_path):
    rows = make_rows(100)
    shards = read_all(spill(tmp_path / "a", rows, [20, 1, 37]))
    everything = sorted(as_list([rows]))
    for shard, found in enumerate(shards):
        assert found == [r for r in everything if r[0][0] % 3 == shard]
        assert len(found) > 20


def test_the_order_of_arrival_and_the_units_have_no_influence(tmp_path):
    rows = make_rows(100)
    once = read_all(spill(tmp_path / "a", rows, [50]))
    order = np.random.default_rng(1).permutation(100)
    again = read_all(spill(tmp_path / "b", rows.take(order), [7, 11, 60]))
    assert once == again


@pytest.mark.parametrize("range_bytes", [40, 300])
def test_a_large_shard_is_read_by_ranges_of_keys(tmp_path, range_bytes):
    """A row has 26 to 50 bytes, so 40 bytes hold about one, 300 about
    eight; a shard has 33 rows or so."""
    paths = spill(tmp_path / "a", make_rows(100), [20, 37])
    settings = {"range_bytes": range_bytes}
    assert read_all(paths, **settings) == read_all(paths)
    parts = list(read_shard(paths, 1, NUM_SHARDS, DTYPE, **settings))
    assert len(parts) >= (12 if range_bytes == 40 else 4)
    most = 6 if range_bytes == 40 else 20
    assert max(len(rows.headers) for rows in parts) <= most
    headers = list(read_headers(paths, 1, NUM_SHARDS, DTYPE, **settings))
    for part, rows in zip(headers, parts, strict=True):
        np.testing.assert_array_equal(part, rows.headers)


def test_rows_of_equal_keys_are_in_one_range(tmp_path):
    rows = make_rows(60)
    rows.headers["key"][20:] = 3 * 2**40
    paths = spill(tmp_path / "a", rows, [30])
    parts = list(read_shard(paths, 0, NUM_SHARDS, DTYPE, range_bytes=40))
    assert [
        count
        for part in parts
        if (count := sum(part.headers["key"] == 3 << 40))
    ] == [40]


def test_a_spill_file_tells_how_many_rows_each_shard_has(tmp_path):
    rows = make_rows(30)
    (path, _) = spill(tmp_path / "a", rows, [30])
    expected = np.bincount(shards_of(rows), minlength=NUM_SHARDS)
    np.testing.assert_array_equal(read_counts(path, NUM_SHARDS), expected)
    assert expected.sum() == 30


def test_a_spill_file_without_rows_is_read(tmp_path):
    paths = spill(tmp_path / "a", make_rows(0), [])
    assert read_all(paths) == [[], [], []]


def test_only_rows_of_equal_key_and_document_are_equal():
    headers = np.zeros(7, HEADER)
    headers["key"] = [1, 1, 1, 1, 2, 5, 5]
    headers["document"] = [3, 3, 3, 4, 4, 0, 0]
    assert count_earlier_equals(headers).tolist() == [0, 1, 2, 0, 0, 0, 1]


def test_repetitions_get_keys_of_their_own():
    """Each occurrence another; the first keeps its key."""
    rows = make_rows(4)
    rows.headers["key"] = 77
    moved = give_new_keys(rows, np.array([0, 1, 2, 2])).headers["key"]
    assert moved[0] == 77
    assert len(set(moved.tolist())) == 3
    assert moved[2] == moved[3]
    assert (rows.headers["key"] == 77).all()
