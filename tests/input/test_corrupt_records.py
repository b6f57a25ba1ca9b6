"""Real records, damaged on purpose: found, reported, and replaced."""

import json
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input import batch_stream, corrupt_records, damage_search
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.corrupt_records import CorruptRecord, CorruptRecords
from albert_tf.input.lanes import shuffled_files
from albert_tf.input.record_sets import find_training_data
from albert_tf.io.tfrecord import read_records
from albert_tf.runs.log import read_events
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.damaged_records import (
    change,
    damage_content,
    offsets_of,
    rewrite,
    set_token,
    set_value,
)
from tests.helpers.dataset_graph import operations_of
from tests.helpers.run_processes import RunProcesses, lines_without_timing

ONE = tf.distribute.InputContext()
SEED = 12345


def damage_checksum(path, number):
    offsets = offsets_of(path)
    change(path, offsets[number + 1] - 1)


def damage_length(path, number):
    change(path, offsets_of(path)[number] + 1)


def cut_off(path, number):
    content = path.read_bytes()
    path.write_bytes(content[: offsets_of(path)[number] + 30])


def shorten_feature(path, number):
    """An intact record with one token less."""

    def change_one(records):
        example = tf.train.Example.FromString(records[number])
        del example.features.feature["input_ids"].int64_list.value[-1]
        records[number] = example.SerializeToString()
        return records

    rewrite(path, change_one)


def cut_between(path, number):
    """All checksums fit: the shard ends after a complete record."""
    rewrite(path, lambda records: records[:number])


DAMAGES = {
    damage_content: "checksum of the content",
    damage_checksum: "checksum of the content",
    damage_length: "unreadable",
    cut_off: "the file ends",
    cut_between: "the file ends after 30 records",
    shorten_feature: "input_ids must have 32 values and has 31",
}


@pytest.fixture
def copied(request, tmp_path):
    """A function that copies records, which the test may damage."""

    def copy(masking):
        name = "tiny_records" if masking == "static" else "tiny_dynamic_records"
        source = request.getfixturevalue(name)
        shutil.copytree(source, tmp_path / "records", dirs_exist_ok=True)
        return tmp_path / "records"

    return copy


def shard_of(records):
    return sorted((records / "train").glob("*.tfrecord"))[1]


def stream(config, damaged=()):
    return BatchStream(
        find_training_data(config),
        config.data,
        SEED,
        damaged=CorruptRecords("", damaged),
        format_of=Pretraining(config).record_format,
    )


def batches(config, num_batches, damaged=(), start=0):
    make = stream(config, damaged).open(start)
    return list(make(ONE).take(num_batches).as_numpy_iterator())


def find(config, first_step, last_step, known=()):
    return stream(config, known).find_damage(first_step, last_step)


def test_a_damaged_record_of_a_lane_is_found_and_replaced(copied, tmp_path):
    records = copied("static")
    config = tiny_run.make_config(
        records, tmp_path / "run", global_batch_size=12, input_lanes=3
    )
    shard = shard_of(records)  # of lane 1
    damage_content(shard, 30)
    count = len(offsets_of(shard))
    steps = -(-count // 4)  # each takes 4 records of the shard
    with pytest.raises(corrupt_records.READING_ERRORS):
        batches(config, steps)
    found = find(config, 0, steps)
    assert [(r.file, r.number) for r in found] == [(str(shard), 30)]
    padding = sum(
        not row.any()
        for batch in batches(config, steps, found)
        for row in batch["input_mask"][4:8]
    )
    assert padding >= 1


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_a_damaged_record_does_not_move_the_others(
    copied, tmp_path, damage, masking
):
    """Records after it are replaced, too, if their start cannot be found."""
    records = copied(masking)
    config = tiny_run.make_config(records, tmp_path / "run")
    total = find_training_data(config).phases[0].records.num_records
    epochs = -(-2 * total // 8)
    before = batches(config, epochs)
    shard = shard_of(records)
    number, count = 30, len(offsets_of(shard))
    damage(shard, number)

    with pytest.raises(corrupt_records.READING_ERRORS):
        batches(config, epochs)
    found = find(config, 0, epochs)
    to_the_end = damage in (damage_length, cut_off, cut_between)
    lost = count - number if to_the_end else 1
    assert [(r.file, r.number) for r in found] == [
        (str(shard), n) for n in range(number, number + lost)
    ]
    assert DAMAGES[damage] in found[0].reason

    assert not find(config, 0, epochs, found)
    after = batches(config, epochs, found)
    changed = 0
    for one, other in zip(before, after, strict=True):
        for row in range(8):
            same = all((one[n][row] == other[n][row]).all() for n in one)
            changed += not same
            if not same:
                assert not other["input_mask"][row].any()
                assert not other["masked_lm_weights"][row].any()
                assert one["input_mask"][row].any()
    seen = 8 * epochs
    assert changed in (2 * lost, 2 * lost + lost * (seen > 2 * total))
    # A stream that starts at step 7 has the same batches.
    resumed = batches(config, 5, found, 7)
    for one, other in zip(after[7:12], resumed, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name])


def test_a_shard_with_too_many_records_is_an_error(copied, tmp_path):
    """If it were read, all later records would move."""
    records = copied("static")
    config = tiny_run.make_config(records, tmp_path / "run")
    total = find_training_data(config).phases[0].records.num_records
    before = batches(config, total // 8)
    shard = shard_of(records)
    count = len(offsets_of(shard))
    rewrite(shard, lambda records: [*records, records[0]])
    with pytest.raises(corrupt_records.READING_ERRORS):
        batches(config, total // 8)
    (found,) = find(config, 0, total // 8)
    assert found.number == count
    assert f"must hold {count} records" in found.reason
    after = batches(config, total // 8, [found])
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])


def test_new_damage_in_a_shard_with_known_damage_is_an_error(copied, tmp_path):
    records = copied("static")
    config = tiny_run.make_config(records, tmp_path / "run")
    shard = shard_of(records)
    damage_content(shard, 3)
    found = find(config, 0, 200)
    damage_content(shard, 7)
    with pytest.raises(corrupt_records.READING_ERRORS):
        batches(config, 200, found)
    assert [r.number for r in find(config, 0, 200, found)] == [7]


def test_damaged_records_need_no_python_in_the_pipeline(copied, tmp_path):
    """On a TPU slice, hosts read the records, but only one runs Python."""
    records = copied("static")
    config = tiny_run.make_config(records, tmp_path / "run")
    damaged = CorruptRecord(str(shard_of(records)), 3, "")
    dataset = stream(config, [damaged]).open(0)(ONE)
    operations = operations_of(dataset)
    assert "TFRecordDatasetV2" in operations, "part of the shard is read"
    assert not {op for op in operations if "PyFunc" in op}


@pytest.mark.slow
def test_a_token_id_out_of_range_stops_the_run(copied, tmp_path):
    records = copied("static")
    set_token(shard_of(records), 5)
    config = tiny_run.make_config(
        records, tmp_path / "run", num_train_steps=150
    )
    with pytest.raises(UserError, match=r"record 5 of .*to 1000000"):
        train(config)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_out_of_range_is_named(copied, tmp_path, label):
    records = copied("static")
    set_value(shard_of(records), 5, "next_sentence_labels", 0, label)
    config = tiny_run.make_config(records, tmp_path / "run")
    (found,) = find(config, 0, 200)
    assert found.number == 5
    assert (
        f"next_sentence_labels must be from 0 to below 2, and is from {label}"
        in found.reason
    )


def test_a_damaged_held_out_record_is_named(copied, tmp_path):
    records = copied("static")
    (shard,) = (records / "eval").glob("*.tfrecord")
    damage_content(shard, 2)
    config = tiny_run.make_config(records, tmp_path / "run", num_train_steps=2)
    with pytest.raises(UserError, match=rf"held-out .*record 2 of {shard}"):
        train(config)


def test_only_shards_near_the_position_are_searched(
    copied, tmp_path, monkeypatch
):
    monkeypatch.setattr(batch_stream, "READ_AHEAD_BATCHES", 1)
    records = copied("static")
    config = tiny_run.make_config(records, tmp_path, shuffle_block_size=1)
    data = find_training_data(config)
    order = [
        name.decode()
        for name in shuffled_files(
            data.phases[0].records.files, SEED, 0
        ).numpy()
    ]
    last = tmp_path / "records" / "train" / order[-1].rpartition("/")[2]
    damage_content(last, 3)
    assert not find(config, 0, 1)
    total = data.phases[0].records.num_records
    assert len(find(config, total // 8 - 2, total // 8)) == 1


def test_a_damaged_record_of_a_mixture_is_found(copied, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_stream, "READ_AHEAD_BATCHES", 1)
    records = copied("static")
    one, two, three = sorted((records / "train").glob("*.tfrecord"))
    config = tiny_run.make_config(
        records,
        tmp_path / "run",
        input_file=(),
        dataset=(f"a={one},{three}", f"b={two}"),
        data_schedule="0:a+b",
        shuffle_block_size=16,
    )
    total = find_training_data(config).phases[0].records.num_records
    before = batches(config, total // 8)
    number = len(offsets_of(two)) // 2
    damage_content(two, number)
    with pytest.raises(corrupt_records.READING_ERRORS):
        batches(config, total // 8)
    # The smaller set is read all along; of the other, one shard at a time.
    for first_step in total // 16 - 1, total // 8 - 2:
        (found,) = find(config, first_step, first_step + 1)
        assert (found.file, found.number) == (str(two), number)
    assert not find(config, 0, 1), "the record is in the middle of the epoch"
    damage_content(one, 3)
    damage_content(three, 3)
    orders = [
        [
            name.decode()
            for name in shuffled_files(
                [str(one), str(three)], SEED, epoch
            ).numpy()
        ]
        for epoch in range(2)
    ]
    for first_step, files in (
        (0, [orders[0][0]]),
        (total // 8 - 6, [orders[0][1], str(two)]),
        (total // 8 - 1, [orders[0][1], orders[1][0], str(two)]),
    ):
        found = find(config, first_step, first_step)
        assert {record.file for record in found} == set(files)

    known = find(config, 0, total // 8)
    assert len(known) == 3
    after = batches(config, total // 8, known)
    changed = sum(
        (a["input_ids"][row] != b["input_ids"][row]).any()
        for a, b in zip(before, after, strict=True)
        for row in range(8)
    )
    assert changed in range(1, 4)


@pytest.mark.slow
def test_a_run_that_skips_damaged_records_notes_them_once(copied, tmp_path):
    """In corrupt_records.json, and in one event."""
    records = copied("static")
    shard = shard_of(records)
    for number in range(0, 60, 5):
        damage_content(shard, number)
    config = tiny_run.make_config(
        records,
        tmp_path / "run",
        on_corrupt_record="skip",
        num_train_steps=150,
    )
    train(config)
    noted = json.loads((tmp_path / "run/corrupt_records.json").read_text())
    assert [r["number"] for r in noted] == list(range(0, 60, 5))
    assert all(r["file"] == str(shard) for r in noted)
    (event,) = (
        e
        for e in read_events(str(tmp_path / "run"))
        if e["event"] == "corrupt_records"
    )
    assert len(event["records"]) == 12


@pytest.mark.slow
def test_a_run_over_damage_is_the_same_however_it_is_interrupted(
    copied, tmp_path
):
    records = copied("static")
    rng = random.Random(0)
    for number in rng.sample(range(100), 5):
        damage_content(shard_of(records), number)

    def run(name):
        return RunProcesses(
            tiny_run.make_config(
                records,
                tmp_path / name,
                num_train_steps=200,
                steps_per_loop=10,
                save_checkpoints_steps=15,
                on_corrupt_record="skip",
            ),
            tmp_path,
        )

    alone, killed = run("alone"), run("killed")
    killed.wait_for_step(40)
    killed.kill()
    assert run("killed").wait() == alone.wait() == [0]
    assert lines_without_timing(tmp_path / "alone") == lines_without_timing(
        tmp_path / "killed"
    )


def test_by_default_the_run_stops_and_names_the_records(copied, tmp_path):
    records = copied("static")
    damage_content(shard_of(records), 3)
    config = tiny_run.make_config(
        records, tmp_path / "run", num_train_steps=150
    )
    with pytest.raises(
        UserError, match=rf"record 3 of {shard_of(records)}: at byte \d+, its"
    ):
        train(config)
    assert not (tmp_path / "run/corrupt_records.json").exists()


def test_too_many_damaged_records_are_refused(tmp_path, caplog):
    config = tiny_run.make_config(
        tmp_path, tmp_path, on_corrupt_record="skip", max_corrupt_records=3
    ).data
    known = CorruptRecords(str(tmp_path / "corrupt_records.json"))
    known.add([CorruptRecord("a", n, "bad") for n in (1, 5)], config)
    known.add([CorruptRecord("b", 7, "bad")], config)
    assert "skipping 1 more (3 so far, max_corrupt_records=3)" in caplog.text
    with pytest.raises(UserError, match=r"max_corrupt_records=3.*Received: 4"):
        known.add([CorruptRecord("b", 8, "bad")], config)
    read = CorruptRecords.read(str(tmp_path))
    assert read.in_files({"a": "", "b": ""}) == {
        "a": frozenset({1, 5}),
        "b": frozenset({7}),
    }


def test_a_damaged_note_is_refused(tmp_path):
    (tmp_path / "corrupt_records.json").write_text('[{"file": "a"}]')
    with pytest.raises(UserError, match=r"corrupt_records\.json must hold"):
        CorruptRecords.read(str(tmp_path))


def test_a_fault_of_a_single_read_is_not_reported(
    copied, tmp_path, monkeypatch
):
    """A network may return a wrong bit or too few bytes once."""
    shard = shard_of(copied("static"))
    damage_content(shard, 31)
    config = tiny_run.make_config(shard.parents[1], tmp_path / "run")
    faults = [{30: "a bit"}, {}, {29: "another"}]

    def read_with_faults(file):
        for record in read_records(file):
            if file.name == str(shard) and record.number in faults[0]:
                yield record._replace(content=b"", fault="a wrong bit")
            elif file.name != str(shard) or record.number < 40 or faults[1:]:
                yield record
        if file.name == str(shard) and faults[1:]:
            del faults[0]

    monkeypatch.setattr(damage_search, "read_records", read_with_faults)
    assert [record.number for record in find(config, 0, 200)] == [31]
    assert len(faults) == 1, "the shard is read three times"
