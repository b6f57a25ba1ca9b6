import numpy as np
import pytest

from data_prep.segments import HEADER, UnmaskedExamples, token_dtype
from data_prep.shuffle import SpillFiles

NUM_SHARDS = 3
EQUAL = 3 * 2**40  # the key of 40 examples, in shard 0


def make_examples(count):
    """Examples of 1 to 11 tokens; the token is the number of the example."""
    rng = np.random.default_rng(0)
    headers = np.zeros(count, HEADER)
    for name in ("key", "document"):
        headers[name] = rng.integers(0, 2**64, count, dtype=np.uint64)
    headers["key"][20:60] = EQUAL
    headers["first_length"] = rng.integers(1, 8, count)
    headers["second_length"] = rng.integers(0, 5, count)
    lengths = headers["first_length"] + headers["second_length"]
    tokens = np.repeat(np.arange(count), lengths)
    return UnmaskedExamples(headers, tokens.astype(token_dtype(30000)))


def as_list(examples):
    """The header and the tokens of each example."""
    tokens = np.split(examples.tokens, np.cumsum(examples.lengths)[:-1])
    return list(zip(examples.headers.tolist(), map(list, tokens), strict=True))


@pytest.mark.parametrize(
    ("range_bytes", "least", "largest"),
    [(1 << 20, 1, 200), (300, 4, 20), (40, 12, 6)],
)
def test_a_shard_has_its_examples_sorted_by_key(
    tmp_path, range_bytes, least, largest
):
    """Read by ranges of keys. An example has 28 to 48 bytes, and a shard about
    50 examples besides those of equal keys, which are in one range."""
    examples = make_examples(200)
    spilled = SpillFiles(NUM_SHARDS, examples.tokens.dtype, range_bytes)
    paths = []
    for indices in np.split(np.arange(200), [20, 21, 57, 57]):
        part = examples.take(indices)
        paths.append(str(tmp_path / str(len(paths))))
        shards = (part.headers["key"] % NUM_SHARDS).astype(np.int64)
        spilled.write(paths[-1], part, shards)
    everything = sorted(as_list(examples))
    for shard in range(NUM_SHARDS):
        parts = list(spilled.read_shard(paths, shard))
        found = [example for part in parts for example in as_list(part)]
        assert found == [e for e in everything if e[0][0] % NUM_SHARDS == shard]
        equals = [sum(part.headers["key"] == EQUAL) for part in parts]
        assert sum(equals) == max(equals) == (40 if shard == 0 else 0)
        sizes = [len(part.headers) for part in parts]
        assert len(sizes) >= least
        assert max(np.subtract(sizes, equals)) <= largest
        headers = list(spilled.read_headers(paths, shard))
        for part, its_headers in zip(parts, headers, strict=True):
            np.testing.assert_array_equal(its_headers, part.headers)


def test_ids_of_large_vocabularies_fit_the_type_of_tokens():
    assert token_dtype(1 << 16) == np.uint16
    assert token_dtype((1 << 16) + 1) == np.uint32
