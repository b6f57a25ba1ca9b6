import dataclasses
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import DataConfig
from albert_tf.errors import UserError
from albert_tf.input import pipeline
from albert_tf.input.record_format import parse_records, pretraining_format
from albert_tf.input.record_sets import (
    RecordSet,
    find_records,
    find_training_data,
)
from albert_tf.io.tfrecord import write_records
from albert_tf.records.array_ops import random_bits
from albert_tf.records.features import features_to_read
from albert_tf.records.masking import mask_rows
from albert_tf.training.pretraining import Pretraining
from data_prep import build_tfrecords
from tests.helpers import tiny_run
from tests.helpers.step_program import make_dataset

ONE = tf.distribute.InputContext()


@pytest.fixture(scope="module")
def config(tiny_records, tmp_path_factory):
    return tiny_run.make_config(tiny_records, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def records(config):
    return find_records("input_file", config.data.input_file, config)


@pytest.fixture(scope="module")
def dynamic(tiny_dynamic_records, config):
    """Records without masks, built from the same text as `records`."""
    return find_records(
        "input_file", [f"{tiny_dynamic_records}/train/*.tfrecord"], config
    )


def take(
    records,
    config,
    start_step,
    num_batches,
    context=ONE,
    **changes,
):
    config = config.replace(seed=7, **changes)
    record_format = pretraining_format(records, config.data)
    make = pipeline.training_dataset(records, config, record_format, start_step)
    return list(make(context).take(num_batches).as_numpy_iterator())


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


def numbered(directory, *sizes_by_directory):
    """Shards of these sizes, whose records are 0, 1, 2, ..."""
    numbers = itertools.count()
    counts = {}
    for index, sizes in enumerate(sizes_by_directory):
        (directory / str(index)).mkdir()
        for size in sizes:
            name = str(directory / f"{index}/{len(counts)}.tfrecord")
            own = itertools.islice(numbers, size)
            with open(name, "wb") as file:
                write_records(file, (bytes([number]) for number in own))
            counts[name] = size
    return RecordSet(counts)


def stream(records, position, count, lane=0, seed=7, **settings):
    """The numbers of `count` records of a lane, from a position on."""
    data = DataConfig(**{"global_batch_size": 2, **settings})
    read = pipeline.shuffled_stream(records, data, seed, lane, position)
    return [record[0] for record in read.take(count).as_numpy_iterator()]


@pytest.mark.parametrize(
    ("changes", "seed", "said"),
    [
        ({}, 7, ""),
        ({"global_batch_size": 6}, 7, "10 are left out, 0 are read again"),
        ({"global_batch_size": 2}, 7, "0 are left out, 10 are read again"),
        ({"shuffle_block_size": 8}, 7, "at record 20, .* in another order"),
        ({"global_batch_size": 8}, 8, "at record 40, .* in another order"),
    ],
)
def test_changed_settings_name_the_records_left_out_and_read_again(
    tmp_path, changes, seed, said
):
    """After five batches of four."""
    records = numbered(tmp_path, [16] * 6)
    before = {"global_batch_size": 4, "shuffle_block_size": 32}
    after = {**before, **changes}
    found = pipeline.describe_reread(
        DataConfig(**before), DataConfig(**after), same_seed=seed == 7, step=5
    )
    assert re.search(said, found) and bool(found) == bool(said)
    position = 5 * after["global_batch_size"]
    read = {*stream(records, 0, 20, **before)}
    rest = {*stream(records, position, 96 - position, seed=seed, **after)}
    left_out, again = 96 - len(read | rest), len(read & rest)
    if "another order" in said:
        assert left_out and again
    elif said:
        assert said == f"{left_out} are left out, {again} are read again"


def test_shards_and_blocks_are_shuffled_in_each_epoch_and_lane(tmp_path):
    """Two shards of sixteen records in each lane, in blocks of eight."""
    records = numbered(tmp_path, [16] * 4)
    settings = {"input_lanes": 2, "shuffle_block_size": 16}
    orders, shards = [], []
    for lane, own in enumerate(([0, 2], [1, 3])):
        read = np.array(stream(records, 0, 96, lane, **settings))
        for epoch in np.split(read, 3):
            for block in np.split(epoch, 4):
                first = block.min()
                assert sorted(block) == list(range(first, first + 8))
                orders.append(tuple(block - first))
            shards.append(list(dict.fromkeys((epoch // 16).tolist())))
            assert sorted(shards[-1]) == own
            assert sorted(epoch) == [16 * n + i for n in own for i in range(16)]
    assert len(set(orders)) == len(orders) == 24
    assert len(set(map(tuple, shards))) > 2


@pytest.mark.slow
def test_directories_alternate_wherever_the_stream_starts(tmp_path):
    """In proportion to their sizes; each record occurs once in an epoch. One
    may have no records left in the last block."""
    sets = [(2,), (0,), (20, 9), (1,)]
    records = numbered(tmp_path, *sets)
    size = records.num_records
    in_order = stream(records, 0, 2 * size, shuffle_block_size=1)
    ends = np.cumsum([sum(sizes) for sizes in sets])
    for epoch in np.split(np.array(in_order), 2):
        assert sorted(epoch) == list(range(size))
        of_sets = np.searchsorted(ends, epoch, "right")
        for number, sizes in enumerate(sets):
            seen = np.cumsum(of_sets == number)
            expected = np.arange(1, size + 1) * sum(sizes) / size
            assert np.abs(seen - expected).max() < len(sets)
    for block_size in 1, 8:
        settings = {"shuffle_block_size": block_size}
        straight = stream(records, 0, 2 * size + 9, **settings)
        for start in (1, size - 1, size, size + 2):
            found = stream(records, start, size, **settings)
            assert found == straight[start : start + size]


def test_the_batch_of_a_step_does_not_depend_on_the_start_of_the_run(
    records, config
):
    straight = rows(take(records, config, 0, 20))
    assert rows(take(records, config, 12, 8)) == straight[12 * 8 :]


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


def test_a_host_reads_no_shards_of_other_lanes(records, config):
    gone = [f"{file}-of-another-host" for file in records.files]
    gone[1] = records.files[1]
    counts = dict(zip(gone, records.counts.values(), strict=True))
    others_gone = dataclasses.replace(records, counts=counts)
    first, second, _ = (tf.distribute.InputContext(3, n, 3) for n in range(3))
    assert take(others_gone, config, 0, 2, second, **LANES)
    with pytest.raises(tf.errors.NotFoundError):
        take(others_gone, config, 0, 2, first, **LANES)


def test_evaluation_sees_each_record_once_and_pads_with_weight_0(config):
    held_out = find_records(
        "eval_input_file", config.data.eval_input_file, config
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
    records = find_training_data(config)
    file = records.files[0]
    counts = {file: records.counts[file]}
    one = dataclasses.replace(records, counts=counts)
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


def test_single_segments_among_pairs_have_no_sentence_label(
    tiny_dynamic_packed_records, tmp_path
):
    """Single segments alone are refused."""
    pairs = tiny_dynamic_packed_records
    build_tfrecords.main(
        tiny_run.records_config(pairs.parent, "dynamic", "best_fit").replace(
            sentence_objective="none", output_dir=str(tmp_path / "single")
        )
    )
    files = f"{tmp_path}/single/train/*.tfrecord"
    config = tiny_run.make_config(
        pairs,
        tmp_path / "run",
        input_file=(f"{pairs}/train/*.tfrecord", files),
        **tiny_run.PACKING,
    )
    records = find_training_data(config)
    examples = []
    for batch in take(records, config, 0, 4):
        weights, numbers = batch["next_sentence_weights"], batch["input_mask"]
        for row, number in np.ndindex(weights.shape):
            segments = batch["segment_ids"][row][numbers[row] == number + 1]
            assert weights[row, number] == segments.any()
            examples += [bool(weights[row, number])] * (len(segments) > 0)
    assert 0.2 < np.mean(examples) < 0.8

    config = config.replace(input_file=(files,))
    with pytest.raises(UserError, match="sentence_objective 'none' and 'sop'"):
        find_training_data(config)


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
    configs = (
        tiny_run.make_config(records, tmp_path, **settings),
        tiny_run.make_synthetic_config(tmp_path, **settings),
    )
    real, made = (
        make_dataset(config, Pretraining(config)) for config in configs
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
    graph = tf.compat.v1.GraphDef.FromString(
        real(ONE)._as_serialized_graph().numpy()
    )
    operations = {n.op for f in graph.library.function for n in f.node_def}
    assert ("RaggedRange" in operations) == (masking == "dynamic")
    assert not {op for op in operations if "PyFunc" in op}
