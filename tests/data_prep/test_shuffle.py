import numpy as np
import pytest

from data_prep.segments import (
    HEADER,
    UnmaskedExamples,
    token_dtype,
)
from data_prep.shuffle import SpillFiles

DTYPE = token_dtype(30000)
NUM_SHARDS = 3
SPILLED = SpillFiles(NUM_SHARDS, DTYPE)


def make_examples(count, seed=0):
    """Examples of 1 to 11 tokens; the token is the number of the example."""
    rng = np.random.default_rng(seed)
    headers = np.zeros(count, HEADER)
    headers["key"] = rng.integers(0, 2**64, count, dtype=np.uint64)
    headers["document"] = rng.integers(0, 2**64, count, dtype=np.uint64)
    headers["first_length"] = rng.integers(1, 8, count)
    headers["second_length"] = rng.integers(0, 5, count)
    lengths = headers["first_length"] + headers["second_length"]
    return UnmaskedExamples(
        headers, np.repeat(np.arange(count), lengths).astype(DTYPE)
    )


def shards_of(examples):
    return (examples.headers["key"] % NUM_SHARDS).astype(np.int64)


def spill(directory, examples, sizes):
    """Writes examples to spill files of these sizes; the last has the rest."""
    directory.mkdir()
    paths = []
    for indices in np.split(np.arange(len(examples.headers)), np.cumsum(sizes)):
        part = examples.take(indices)
        paths.append(str(directory / f"{len(paths)}.examples"))
        SPILLED.write(paths[-1], part, shards_of(part))
    return paths


def as_list(parts):
    """Returns the header and the tokens of each example."""
    found = []
    for examples in parts:
        ends = np.cumsum(examples.lengths)[:-1]
        for header, tokens in zip(
            examples.headers.tolist(),
            np.split(examples.tokens, ends),
            strict=True,
        ):
            found.append((header, tokens.tolist()))
    return found


def read_all(paths, spilled=SPILLED):
    shards = range(NUM_SHARDS)
    return [as_list(spilled.read_shard(paths, shard)) for shard in shards]


def test_shard_has_its_examples_sorted_by_key(tmp_path):
    examples = make_examples(100)
    shards = read_all(spill(tmp_path / "a", examples, [20, 1, 37]))
    everything = sorted(as_list([examples]))
    for shard, found in enumerate(shards):
        assert found == [e for e in everything if e[0][0] % 3 == shard]
        assert len(found) > 20


@pytest.mark.parametrize("range_bytes", [40, 300])
def test_large_shard_is_read_by_ranges_of_keys(tmp_path, range_bytes):
    """An example has 28 to 48 bytes: 40 bytes hold about one, 300 bytes about
    eight. A shard has about 33 examples."""
    paths = spill(tmp_path / "a", make_examples(100), [20, 37])
    spilled = SPILLED._replace(range_bytes=range_bytes)
    assert read_all(paths, spilled) == read_all(paths)
    parts = list(spilled.read_shard(paths, 1))
    assert len(parts) >= (12 if range_bytes == 40 else 4)
    largest = 6 if range_bytes == 40 else 20
    assert max(len(examples.headers) for examples in parts) <= largest
    headers = list(spilled.read_headers(paths, 1))
    for part, examples in zip(headers, parts, strict=True):
        np.testing.assert_array_equal(part, examples.headers)


def test_examples_of_equal_keys_are_in_one_range(tmp_path):
    examples = make_examples(60)
    examples.headers["key"][20:] = 3 * 2**40
    paths = spill(tmp_path / "a", examples, [30])
    parts = list(SPILLED._replace(range_bytes=40).read_shard(paths, 0))
    assert [
        count
        for part in parts
        if (count := sum(part.headers["key"] == 3 << 40))
    ] == [40]


def test_spill_file_may_be_empty(tmp_path):
    paths = spill(tmp_path / "a", make_examples(0), [])
    assert SPILLED.is_complete(paths[0])
    assert read_all(paths) == [[], [], []]


def test_ids_of_large_vocabularies_fit_the_type_of_tokens():
    assert token_dtype(1 << 16) == np.uint16
    assert token_dtype((1 << 16) + 1) == np.uint32
