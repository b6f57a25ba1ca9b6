import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import DataConfig
from albert_tf.input import pipeline
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_format import parse_records, pretraining_format
from albert_tf.input.record_sets import (
    Phase,
    RecordSet,
    TrainingData,
    find_records,
    find_training_data,
)
from albert_tf.io.tfrecord import TFRecordWriter
from albert_tf.records.array_ops import random_bits
from albert_tf.records.features import features_to_read
from albert_tf.records.masking import mask_rows
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.dataset_graph import operations_of

ONE = tf.distribute.InputContext()


@pytest.fixture(scope="module")
def config(tiny_records, tmp_path_factory):
    return tiny_run.make_config(tiny_records, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def records(config):
    return find_records({"input_file": config.data.input_file}, config)


@pytest.fixture(scope="module")
def dynamic(tiny_dynamic_records, config):
    """Records without masks, built from the same text as `records`."""
    return find_records(
        {"input_file": [f"{tiny_dynamic_records}/train/*.tfrecord"]}, config
    )


def one_phase(records):
    return TrainingData((Phase(0, "", records),))


def take(
    records,
    config,
    start_step,
    num_batches,
    context=ONE,
    **changes,
):
    data = dataclasses.replace(config.data, **changes)
    dataset = BatchStream(one_phase(records), data, 7).open(start_step)
    return list(dataset(context).take(num_batches).as_numpy_iterator())


def rows(batches):
    """Returns one hashable value per example."""
    return [
        tuple(np.concatenate([b["input_ids"][i], b["masked_lm_ids"][i]]))
        for b in batches
        for i in range(len(b["input_ids"]))
    ]


def stored_rows(files, config):
    dataset = tf.data.TFRecordDataset(list(files)).batch(10**6)
    return rows(
        [parse_records(next(iter(dataset)), features_to_read("static"), config)]
    )


def test_epochs_hold_each_record_once_in_different_orders(records, config):
    count = records.num_records
    stream = rows(take(records, config, 0, -(-2 * count // 8)))
    stored = stored_rows(records.files, config.data)
    epochs = stream[:count], stream[count : 2 * count]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(stored)
    assert epochs[0] != stored, "records must be shuffled"
    assert epochs[0] != epochs[1]


def test_files_and_the_records_within_them_are_shuffled(records, config):
    """With blocks of one record, each file is read in its stored order."""
    count = records.num_records
    batches = -(-4 * count // 8)
    stored = [stored_rows([file], config.data) for file in records.files]

    def files_in_order(stream):
        # Two files may hold the same short example.
        return [
            next(i for i, rows in enumerate(stored) if row in rows)
            for row in stream
            if sum(row in rows for rows in stored) == 1
        ]

    stream = rows(take(records, config, 0, batches, shuffle_block_size=1))
    orders = set()
    for epoch in range(4):
        part = stream[epoch * count : (epoch + 1) * count]
        order = list(dict.fromkeys(files_in_order(part)))
        assert part == [row for file in order for row in stored[file]]
        orders.add(tuple(order))
    assert len(orders) > 1

    shuffled = rows(take(records, config, 0, count // 8))
    first_file = [row for row in shuffled if row in stored[0]]
    assert first_file != [row for row in stored[0] if row in first_file]


def test_each_block_epoch_and_lane_is_shuffled_differently(tmp_path):
    """One shard in each lane, which is read in blocks of eight records."""
    files = tuple(str(tmp_path / f"{lane}.tfrecord") for lane in range(2))
    for name in files:
        with open(name, "wb") as file, TFRecordWriter(file) as writer:
            for number in range(16):
                writer.write(bytes([number]))
    records = RecordSet(dict.fromkeys(files, 16), (files,))
    data = DataConfig(global_batch_size=2, input_lanes=2, shuffle_block_size=16)
    orders = []
    for number in range(2):
        stream = pipeline.shuffled_stream(
            pipeline.Lane.of(number, records, data, 7),
            0,
            tf.data.TFRecordDataset,
        )
        read = [record[0] for record in stream.take(32).as_numpy_iterator()]
        blocks = [read[begin : begin + 8] for begin in range(0, 32, 8)]
        for block, first in zip(blocks, (0, 8, 0, 8), strict=True):
            assert sorted(block) == list(range(first, first + 8))
            orders.append(tuple(n - first for n in block))
    assert len(set(orders)) == 2 * 2 * 2


@pytest.mark.parametrize("epochs", [0, 0.3, 1, 2.5])
def test_the_batch_of_a_step_does_not_depend_on_the_start_of_the_run(
    records, config, epochs
):
    step = int(epochs * records.num_records / 8) + 1
    straight = rows(take(records, config, 0, step + 5))
    resumed = rows(take(records, config, step, 5))

    assert resumed == straight[step * 8 :]


LANES = {"global_batch_size": 12, "input_lanes": 3}


@pytest.mark.parametrize(
    ("source", "num_hosts", "num_replicas", "settings"),
    [
        ("records", 2, 4, {}),
        ("dynamic", 2, 4, {}),
        # A host reads one and a half lanes, or a half.
        ("records", 2, 4, LANES),
        ("records", 6, 6, LANES),
    ],
)
def test_hosts_and_replicas_share_the_batch_of_a_single_replica(
    request, config, source, num_hosts, num_replicas, settings
):
    some = request.getfixturevalue(source)
    per_host = num_replicas // num_hosts
    of_hosts = [
        take(
            some,
            config,
            9,
            3 * per_host,
            tf.distribute.InputContext(num_hosts, host, num_replicas),
            **settings,
        )
        for host in range(num_hosts)
    ]
    together = [
        batches[step * per_host + replica]
        for step in range(3)
        for batches in of_hosts
        for replica in range(per_host)
    ]
    assert rows(together) == rows(take(some, config, 9, 3, **settings))


def test_each_lane_fills_its_rows_from_its_own_shards(records, config):
    """Shuffled, and each record once in an epoch of the lane."""
    counts = records.counts.values()
    batches = take(records, config, 0, -(-max(counts) // 4), **LANES)
    for lane, (file, count) in enumerate(
        zip(records.files, counts, strict=True)
    ):
        of_lane = [
            row
            for batch in batches
            for row in rows([batch])[4 * lane : 4 * lane + 4]
        ]
        stored = stored_rows([file], config.data)
        assert sorted(of_lane[:count]) == sorted(stored)
        assert of_lane[:count] != stored


def test_a_host_reads_no_shards_of_other_lanes(records, config):
    gone = [f"{file}-of-another-host" for file in records.files]
    gone[1] = records.files[1]
    counts = dict(zip(gone, records.counts.values(), strict=True))
    others_gone = dataclasses.replace(
        records, counts=counts, sets=(tuple(gone),)
    )
    first, second, _ = (tf.distribute.InputContext(3, n, 3) for n in range(3))
    assert take(others_gone, config, 0, 2, second, **LANES)
    with pytest.raises(tf.errors.NotFoundError):
        take(others_gone, config, 0, 2, first, **LANES)


@pytest.fixture(scope="module")
def joined(tiny_records, config):
    """Three sets: two shards, one shard, and the few held-out records."""
    one, two, three = sorted((tiny_records / "train").glob("*.tfrecord"))
    config = config.replace(
        input_file=(),
        dataset=(
            f"large={one},{three}",
            f"small={two}",
            f"few={tiny_records}/eval/*.tfrecord",
        ),
        data_schedule="0:large+small+few",
    )
    found = find_training_data(config)
    return found.phases[0].records


def sets_of(stream, records, config):
    """Number of the set of each row; None for a row that two sets hold."""
    stored = [set(stored_rows(files, config.data)) for files in records.sets]

    def set_of(row):
        held = [number for number, rows in enumerate(stored) if row in rows]
        return held[0] if len(held) == 1 else None

    return [set_of(row) for row in stream]


def test_joined_sets_alternate_in_proportion_to_their_sizes(joined, config):
    total = joined.num_records
    batches = take(joined, config, 0, -(-2 * total // 8), shuffle_block_size=1)
    stream = rows(batches)
    stored = stored_rows(joined.files, config.data)
    assert sorted(stream[:total]) == sorted(stored)
    assert sorted(stream[total : 2 * total]) == sorted(stored)

    sizes = [
        sum(joined.counts[file] for file in files) for files in joined.sets
    ]
    assert len(set(sizes)) == 3
    numbers = np.array(sets_of(stream, joined, config))
    unknown = np.cumsum(numbers == None)  # noqa: E711
    assert unknown[-1] < len(stream) / 20
    for number, size in enumerate(sizes):
        seen = np.cumsum(numbers == number)
        for end in range(total):
            expected = (end + 1) * size / total
            # `num_of_sets` rounds the numbers of the sets before this one.
            assert expected - 2 - unknown[end] <= seen[end] <= expected + 2


def test_the_batch_of_a_step_of_a_mixture_does_not_depend_on_the_start(
    joined, config
):
    """Also in the last blocks, when a set may have no records left."""
    batches = functools.partial(take, joined, config, shuffle_block_size=50)
    epoch = joined.num_records // 8
    straight = rows(batches(0, 2 * epoch))
    for step in (3, epoch // 2, epoch - 7, epoch - 1, epoch, epoch + 2):
        assert rows(batches(step, 3)) == straight[step * 8 : step * 8 + 24]


@pytest.mark.parametrize("sizes", [(7, 3), (3, 7, 5), (2, 0, 40, 1), (1, 0)])
def test_the_numbers_of_sets_grow_by_one_and_end_at_the_sizes(records, sizes):
    """`num_of_sets(n)` splits the first n records of an epoch by set."""
    files = tuple("abcd"[: len(sizes)])
    counts = dict(zip(files, sizes, strict=True))
    sets = tuple((file,) for file in files)
    mixture = dataclasses.replace(records, counts=counts, sets=sets)
    total = sum(sizes)
    numbers = np.array([mixture.num_of_sets(n) for n in range(total + 1)])
    assert numbers[0].tolist() == [0] * len(sizes)
    assert numbers[-1].tolist() == list(sizes)
    steps = np.diff(numbers, axis=0)
    assert set(steps.ravel()) <= {0, 1}
    assert (steps.sum(axis=1) == 1).all()

    in_proportion = np.arange(total + 1)[:, np.newaxis] * sizes / total
    assert np.abs(numbers - in_proportion).max() < len(sizes)


def test_evaluation_sees_each_record_once_and_pads_with_weight_0(config):
    held_out = find_records(
        {"eval_input_file": config.data.eval_input_file}, config
    )
    data = dataclasses.replace(config.data, eval_batch_size=7, max_eval_steps=0)
    make, num_batches = pipeline.evaluation_dataset(
        held_out, data, pretraining_format(held_out, data)
    )
    batches = list(make(ONE).as_numpy_iterator())
    stream = rows(batches)

    assert num_batches == len(batches) == -(-held_out.num_records // 7)
    assert held_out.num_records % 7, "the last batch must be partial"
    assert stream[: held_out.num_records] == stored_rows(
        held_out.files, config.data
    )
    padding = len(stream) - held_out.num_records
    assert not batches[-1]["input_mask"][-padding:].any()
    assert not batches[-1]["masked_lm_weights"][-padding:].any()


@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_dynamic_masks_depend_on_seed_position_and_number(
    packing, tiny_dynamic_records, tiny_dynamic_packed_records, tmp_path
):
    """They equal masks computed with NumPy, on records in stored order."""
    of_packing = {
        "none": (tiny_dynamic_records, {}),
        "best_fit": (tiny_dynamic_packed_records, tiny_run.PACKING),
    }
    directory, settings = of_packing[packing]
    config = tiny_run.make_config(
        directory, tmp_path, shuffle_block_size=1, **settings
    )
    (phase,) = find_training_data(config).phases
    file = phase.records.files[0]
    counts = {file: phase.records.counts[file]}
    one = dataclasses.replace(phase.records, counts=counts, sets=((file,),))
    serialized = next(iter(tf.data.TFRecordDataset(file).batch(10**6)))
    features = features_to_read("dynamic", packing)
    stored = parse_records(serialized, features, config.data)
    size = len(serialized)
    step = size // 8 + 2  # in the second epoch
    positions = np.arange(step * 8, step * 8 + 24)
    keys = random_bits(np.full(24, 7, np.uint64), positions)[:, np.newaxis]
    if packing == "best_fit":
        keys = random_bits(keys, np.arange(settings["max_examples_per_row"]))
    rows = {n: v.numpy()[positions % size] for n, v in stored.items()}
    expected = mask_rows(rows, keys, 400, config.data)
    assert (rows["input_mask"].max() > 1) == (packing == "best_fit")
    masked = take(one, config, step, 3)
    for name, values in expected.items():
        found = np.concatenate([batch[name] for batch in masked])
        np.testing.assert_array_equal(found, values, err_msg=name)


@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_batches_of_all_records_have_the_same_features(
    request, tmp_path, masking, packing
):
    """Synthetic batches, too. Masks have the lengths of the settings of a run,
    and no Python runs in the pipeline: on a TPU slice, there is none."""
    source = "tiny"
    source += "_dynamic" * (masking == "dynamic")
    source += "_packed" * (packing != "none")
    records = request.getfixturevalue(f"{source}_records")
    settings, num_slots = {}, 6
    if packing != "none":
        settings, num_slots = tiny_run.PACKING, 6 + 4 - 1
    elif masking == "dynamic":
        settings, num_slots = {"max_predictions_per_seq": 4}, 4
    real, made = (
        BatchStream(
            Pretraining(config).find_training_data(),
            config.data,
            7,
            format_of=Pretraining(config).record_format,
        ).open(7)
        for config in (
            tiny_run.make_config(records, tmp_path, **settings),
            tiny_run.make_synthetic_config(tmp_path, **settings),
        )
    )
    for num_rows, context in (8, ONE), (4, tf.distribute.InputContext(1, 0, 2)):
        spec = real(context).element_spec
        assert spec == made(context).element_spec
        assert {n: v.dtype for n, v in spec.items()} == {
            f.name: tf.float32 if f.dtype == "float32" else tf.int32
            for f in features_to_read("static", packing)
        }
        assert spec["input_ids"].shape == (num_rows, 32)
        assert spec["masked_lm_ids"].shape == (num_rows, num_slots)
        num_labels = 1 if packing == "none" else 4
        assert spec["next_sentence_labels"].shape == (num_rows, num_labels)
    batch = next(iter(made(ONE)))
    ids = batch["input_ids"].numpy()
    # Gathering the same few rows of the embedding might be faster.
    assert len(set(ids.ravel())) > 50 and ids.max() < tiny_run.MODEL.vocab_size
    assert batch["masked_lm_positions"].numpy().max() < ids.shape[1]
    assert batch["input_mask"].numpy().min() == 1
    operations = operations_of(real(ONE))
    assert ("RaggedRange" in operations) == (masking == "dynamic")
    assert not {op for op in operations if "PyFunc" in op}


def test_no_iterator_of_a_run_has_a_tuning_thread(
    tiny_records, tmp_path, monkeypatch
):
    """In training and in evaluation. Such threads delay the end of a run."""
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", num_train_steps=4
    )
    iterate, autotuned = pipeline.iterate, []

    def iterate_and_note(batches):
        autotuned.append(
            [d.options().autotune.enabled for d in batches._datasets]
        )
        return iterate(batches)

    monkeypatch.setattr(pipeline, "iterate", iterate_and_note)
    train(config)
    assert autotuned == [[False], [False]]
