"""Damaged and hostile files are refused; see SECURITY.md.

Each reader receives files that hypothesis has changed: bits, lengths, order,
and for JSON the values. It must return, or raise `UserError`.
"""

import bz2
import contextlib
import copy
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
from albert_tf.interop.hugging_face import read_config
from albert_tf.io import files, tfrecord
from albert_tf.io.tfrecord import TFRecordWriter, read_records
from albert_tf.records import features
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs import checkpoints
from data_prep.text import read_blocks, read_lines
from tests.helpers.conversion import write_published
from tests.helpers.google_albert_graph import CONFIG
from tests.helpers.tiny_albert import random_weights

pytestmark = pytest.mark.slow

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"


def fuzz(max_examples):
    """Runs a test on files that hypothesis changes, equally in each run."""
    return hypothesis.settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


# Edits of a file: what, where as a fraction of its length, and bytes.
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "replace"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=4,
)


def edit(content, edits):
    for what, where, new in edits:
        at = int(where * len(content))
        head, tail = content[:at], content[at:]
        if what == "flip" and tail:
            content = head + bytes([tail[0] ^ new[0]]) + tail[1:]
        elif what == "cut":
            content = head + tail[len(new) * len(new) :]
        elif what == "insert":
            content = head + new + tail
        elif what == "replace":
            content = head + new + tail[len(new) :]
    return content


JSON_VALUES = st.sampled_from(
    [None, True, -1, 10**30, math.nan, "", "\ud800", "../x", [1], {"a": [None]}]
)
JSON_EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), JSON_VALUES), min_size=1, max_size=3
)


def places_in(value, place=()):
    """The path of each value in nested lists and dictionaries."""
    yield place
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places_in(value[key], (*place, key))


def edit_json(value, edits):
    value = json.loads(json.dumps(value))
    for number, new in edits:
        places = list(places_in(value))
        *place, last = places[number % len(places)] or (None,)
        if last is None:
            return copy.deepcopy(new)
        parent = value
        for key in place:
            parent = parent[key]
        parent[last] = copy.deepcopy(new)
    return value


def refuse_or_read(read, *arguments):
    """Calls a reader, which may refuse its input."""
    with contextlib.suppress(UserError):
        return read(*arguments)


def fuzz_file(path, max_examples, read, *arguments):
    """Damages a file in many ways; each time, it is read or refused."""
    content = path.read_bytes()

    @fuzz(max_examples)
    @hypothesis.given(EDITS)
    def check(edits):
        path.write_bytes(edit(content, edits))
        refuse_or_read(read, *arguments)

    check()
    path.write_bytes(content)


@fuzz(625)
@hypothesis.given(EDITS)
def test_damage_of_records_is_reported(edits):
    """Damage is reported, and intact records are those that were written."""
    file = io.BytesIO()
    written = [bytes([i]) * (i * i) for i in range(9)]
    with TFRecordWriter(file) as writer:
        for record in written:
            writer.write(record)
    for record in read_records(io.BytesIO(edit(file.getvalue(), edits))):
        assert record.fault or record.content in written


def test_a_length_of_exabytes_is_not_allocated(tmp_path):
    # A file, since BytesIO.read allocates no more than there is.
    path = tmp_path / "file.tfrecord"
    with path.open("wb") as file:
        file.write(tfrecord._head(1 << 60))
        with TFRecordWriter(file) as writer:
            writer.write(b"a")
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


@pytest.mark.parametrize("suffix", PACK)
def test_changed_text_is_read_or_refused(suffix, tmp_path):
    path = tmp_path / f"corpus{suffix}"
    text = "Ein Satz.\r\nΣigma\n\n\ufeffend".encode() * 40
    path.write_bytes(PACK[suffix](text))
    fuzz_file(
        path, 250, lambda: list(read_lines(read_blocks(str(path), len), 99))
    )


def test_text_that_expands_is_read_in_bounded_memory(tmp_path):
    """64 KiB expand to 64 MiB without a line ending."""
    path = tmp_path / "corpus.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    tracemalloc.start()
    try:
        num_bytes = sum(
            len(line)
            for _, line in read_lines(read_blocks(str(path), len), 1 << 20)
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_bytes == 64 << 20
    assert peak < 32 << 20


VALUES = {int: 3, float: 0.5, str: "sop", bool: True}
METADATA = {
    "schema_version": features.SCHEMA_VERSION,
    **{
        field.name: VALUES.get(field.type, {"a.tfrecord": 3})
        for field in dataclasses.fields(features.RecordsMetadata)
    },
    "checksums": {"a.tfrecord": "00"},
}


def read_run_config(path):
    return PretrainingConfig.from_dict(files.load_json(path), source=path)


JSON_FILES = {
    "config.json": (PretrainingConfig().to_dict(), read_run_config),
    "albert_config.json": (
        ModelConfig().to_dict(),
        ModelConfig.from_json_file,
    ),
    "hugging_face.json": (
        {"model_type": "albert", "hidden_act": "gelu", "vocab_size": 30},
        lambda path: read_config(files.load_json(path), path),
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

    @fuzz(250)
    @hypothesis.given(JSON_EDITS)
    def check_values(edits):
        path.write_text(json.dumps(edit_json(content, edits)))
        refuse_or_read(read, str(path))

    check_values()
    path.write_text(json.dumps(content))
    fuzz_file(path, 100, read, str(path))
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
