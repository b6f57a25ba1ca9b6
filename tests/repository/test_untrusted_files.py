"""Damaged and hostile files are refused; see SECURITY.md.

Each reader receives files that hypothesis has changed: their bytes, or the
values of JSON. It must return, or raise `UserError`.
"""

import bz2
import contextlib
import dataclasses
import gzip
import io
import json
import lzma
import math
import pathlib
import shutil
import tracemalloc

import hypothesis
import numpy as np
import pytest
import zstandard
from hypothesis import strategies as st

from albert_tf.config import ModelConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.interop import google_albert, hugging_face
from albert_tf.io import files, tfrecord
from albert_tf.io.tfrecord import read_records, write_records
from albert_tf.records import features
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs import checkpoints
from data_prep.text import read_blocks, read_lines
from tests.helpers.conversion import write_published
from tests.helpers.google_albert_graph import CONFIG
from tests.helpers.tiny_albert import random_weights

pytestmark = pytest.mark.slow

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"

# Of bytes: where as a fraction of the length, how many are removed, and which
# are inserted.
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([0, 1, 9, 81]),
        st.binary(max_size=9),
    ),
    min_size=1,
    max_size=4,
)
# Of JSON: the way to a value in nested lists and dictionaries, and a new value.
JSON_EDITS = st.tuples(
    st.lists(st.integers(0, 99), max_size=3),
    st.sampled_from(
        [None, True, -1, 10**30, math.nan, "", "\ud800", "../x", [1], {"a": 1}]
    ),
)


def check_all(edits, num_edits, check):
    """Calls `check` with edits that are equal in each run."""
    settings = hypothesis.settings(
        max_examples=num_edits,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    settings(hypothesis.given(edits)(check))()


def edit(content, edits):
    for where, num_removed, new in edits:
        start = int(where * len(content))
        content = content[:start] + new + content[start + num_removed :]
    return content


def edit_json(value, way, new):
    if not way or not value or not isinstance(value, dict | list):
        return new
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = keys[way[0] % len(keys)]
    changed = value.copy()
    changed[key] = edit_json(value[key], way[1:], new)
    return changed


def fuzz_file(path, num_edits, read, *arguments):
    """Damages a file in many ways; each time, it is read or refused."""
    content = path.read_bytes()

    def check(edits):
        path.write_bytes(edit(content, edits))
        with contextlib.suppress(UserError):
            read(*arguments)

    check_all(EDITS, num_edits, check)
    path.write_bytes(content)


def test_damage_of_records_is_reported():
    """Damage is reported, and intact records are those that were written."""
    file = io.BytesIO()
    written = [bytes([i]) * (i * i) for i in range(9)]
    write_records(file, written)

    def check(edits):
        for record in read_records(io.BytesIO(edit(file.getvalue(), edits))):
            assert record.fault or record.content in written

    check_all(EDITS, 625, check)


def test_a_length_of_exabytes_is_not_allocated(tmp_path):
    # A file, since BytesIO.read allocates no more than there is.
    path = tmp_path / "file.tfrecord"
    with path.open("wb") as file:
        file.write(tfrecord._head(1 << 60))
        write_records(file, [b"a"])
    with path.open("rb") as file:
        (record,) = read_records(file)
    assert "the file ends" in record.fault


PACK = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
}


def read_text(path, limit):
    return (line for _, line in read_lines(read_blocks(str(path), len), limit))


@pytest.mark.parametrize("suffix", PACK)
def test_changed_text_is_read_or_refused(suffix, tmp_path):
    path = tmp_path / f"corpus{suffix}"
    text = "Ein Satz.\r\nΣigma\n\n\ufeffend".encode() * 40
    path.write_bytes(PACK[suffix](text))
    fuzz_file(path, 250, lambda: list(read_text(path, 99)))


def test_text_that_expands_is_read_in_bounded_memory(tmp_path):
    """64 KiB expand to 64 MiB without a line ending."""
    path = tmp_path / "corpus.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    tracemalloc.start()
    try:
        assert sum(map(len, read_text(path, 1 << 20))) == 64 << 20
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


VALUES = {int: 3, float: 0.5, str: "sop", bool: True}
METADATA = {
    **{
        field.name: VALUES.get(field.type, {"a.tfrecord": 3})
        for field in dataclasses.fields(features.RecordsMetadata)
    },
    "schema_version": features.SCHEMA_VERSION,
    "checksums": {"a.tfrecord": "00"},
}
JSON_FILES = {
    "config.json": (
        PretrainingConfig().to_dict(),
        lambda path: PretrainingConfig.from_dict(
            files.load_json(path), source=path
        ),
    ),
    "albert_config.json": (
        ModelConfig().to_dict(),
        ModelConfig.from_json_file,
    ),
    "hugging_face.json": (
        {"model_type": "albert", "hidden_act": "gelu_new"},
        lambda path: hugging_face.read_config(files.load_json(path), path),
    ),
    "metadata.json": (
        METADATA,
        lambda path: features.read_metadata(str(pathlib.Path(path).parent)),
    ),
}


@pytest.mark.parametrize("name", JSON_FILES)
def test_changed_json_is_read_or_refused(name, tmp_path):
    content, read = JSON_FILES[name]
    path = tmp_path / name
    path.write_text(json.dumps(content))
    read(str(path))
    fuzz_file(path, 100, read, str(path))

    def check(change):
        path.write_text(json.dumps(edit_json(content, *change)))
        with contextlib.suppress(UserError):
            read(str(path))

    check_all(JSON_EDITS, 250, check)
    for text in ("[" * 10**6, "9" * 5000, "\ufeff{}", "", "nul", "\0"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"must be JSON|must h"):
            read(str(path))


def test_changed_safetensors_are_read_or_refused(tmp_path):
    from safetensors.numpy import save

    path = tmp_path / hugging_face.WEIGHTS_FILE
    path.write_bytes(save({"a": np.ones((2, 3), np.float32), "b": np.ones(5)}))
    fuzz_file(path, 300, hugging_face.read_tensors, str(tmp_path))


def test_changed_checkpoints_are_equal_or_refused(tmp_path):
    """A changed file is refused, or its checkpoint has the same values."""
    directory = tmp_path / "step-00000007"
    values = {"a": np.arange(6.0), "b/c": np.ones((2, 3), np.float32)}
    checkpoints.write_checkpoint(str(directory), 7, {"x": 1}, values)
    (checkpoint,) = checkpoints.list_checkpoints(str(tmp_path))

    def read():
        for found in checkpoints.list_checkpoints(str(tmp_path)):
            with contextlib.suppress(checkpoints.TornCheckpointError):
                read = checkpoints.read_values(found)
                for key, value in values.items():
                    np.testing.assert_array_equal(read[key], value)

    for name in (checkpoints.COMMIT_FILE, *checkpoint.sizes):
        fuzz_file(directory / name, 150, read)


def test_changed_google_checkpoints_are_read_or_refused(tmp_path):
    directory = tmp_path / "model"
    write_published(random_weights(ModelConfig.from_dict(CONFIG)), directory)
    assert len(list(directory.iterdir())) == 4
    for path in directory.iterdir():
        fuzz_file(path, 75, google_albert.read, str(directory))


def test_changed_vocabularies_are_read_or_refused(tmp_path):
    path = tmp_path / "spm.model"
    shutil.copy(TESTDATA / "self-contained-500.model", path)

    def encode():
        Tokenizer(str(path)).encode_batch(["A sentence, 1,000 words."])

    fuzz_file(path, 125, encode)
