"""The search for damaged records: what it reads, and how."""

import contextlib
import pathlib
import shutil
import threading

import pytest

from albert_tf.cluster.watchdog import Watchdog
from albert_tf.input import batch_stream, damage_search
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.lanes import shuffled_files
from albert_tf.input.record_sets import find_training_data
from albert_tf.io.tfrecord import read_records
from albert_tf.training.pretraining import Pretraining
from tests.helpers import tiny_run
from tests.helpers.damaged_records import (
    damage_content,
    offsets_of,
    set_token,
)

SEED = 12345


@pytest.fixture
def config(tiny_records, tmp_path):
    """Settings of a run that reads each shard in its stored order."""
    shutil.copytree(tiny_records, tmp_path / "records")
    return tiny_run.make_config(
        tmp_path / "records", tmp_path / "run", shuffle_block_size=1
    )


@pytest.fixture
def shards(config):
    """The shards in the order in which the first epoch reads them."""
    files = find_training_data(config).phases[0].records.files
    names = shuffled_files(files, SEED, 0).numpy()
    return [pathlib.Path(name.decode()) for name in names]


def find(config, first_step, last_step, watchdog=None):
    """The names and numbers of the damaged records."""
    stream = BatchStream(
        find_training_data(config),
        config.data,
        SEED,
        format_of=Pretraining(config).record_format,
        watchdog=watchdog,
    )
    found = stream.find_damage(first_step, last_step)
    return [(pathlib.Path(r.file), r.number) for r in found]


def test_only_records_that_the_steps_may_have_read_are_searched(
    config, shards, monkeypatch
):
    """Of those before them in the shard, only the checksums count."""
    monkeypatch.setattr(batch_stream, "READ_AHEAD_BATCHES", 1)
    shard = shards[0]
    last = len(offsets_of(shard)) - 1
    middle = last // 2 // 8  # a step
    assert 8 * middle > 30
    assert last > 8 * (middle + 4)
    set_token(shard, 3)
    set_token(shard, 8 * middle)
    damage_content(shard, 5)
    damage_content(shard, last)
    assert find(config, middle, middle + 1) == [
        (shard, 5),
        (shard, 8 * middle),
    ]


def test_python_reads_only_shards_with_damage(config, shards, monkeypatch):
    read = []

    def note(file):
        read.append(file.name)
        return read_records(file)

    monkeypatch.setattr(damage_search, "read_records", note)
    assert not find(config, 0, 200)
    assert not read
    damage_content(shards[1], 7)
    assert find(config, 0, 200) == [(shards[1], 7)]
    assert set(read) == {str(shards[1])}


def test_several_shards_are_searched_at_the_same_time(
    config, shards, monkeypatch
):
    barrier = threading.Barrier(len(shards), timeout=300)

    def read_together(file):
        barrier.wait()  # an error if the others are not read now
        return read_records(file)

    monkeypatch.setattr(damage_search, "read_records", read_together)
    for shard in shards:
        damage_content(shard, 7)
    assert sorted(find(config, 0, 200)) == [(s, 7) for s in sorted(shards)]


def test_each_shard_has_a_time_limit_and_the_log_shows_progress(
    config, caplog, monkeypatch
):
    monkeypatch.setattr(damage_search, "PROGRESS_S", 0.0)
    limits = []

    class Recorder(Watchdog):
        @contextlib.contextmanager
        def limit(self, activity, usual_s=None):
            limits.append(activity)
            yield
            limits.append("")

    assert not find(config, 0, 200, Recorder(60))
    search = "the search of a shard for damaged records"
    assert limits == [search, ""] * 3
    for number in 1, 2, 3:
        assert f"searched {number} of 3 shards" in caplog.text
