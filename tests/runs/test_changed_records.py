"""Runs that continue, or are evaluated, on other records."""

import functools
import json

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input.record_sets import find_held_out
from albert_tf.runs import directory as run_directory
from tests.helpers import tiny_run
from tests.helpers.changed_runs import (
    FIRST,
    SECOND,
    THIRD,
    begin,
    check,
    copy_records,
    copy_without_metadata,
)


def refused(run, caplog, **changes):
    """Checks that --allow_config_change is needed; returns the difference."""
    with pytest.raises(UserError, match=r"training_records\.json") as error:
        check(run(**changes))
    assert "--allow_config_change" in error.value.remedy
    check(run(**changes, allow_config_change=True))
    said = error.value.fault.partition("Received: ")[2].removesuffix(".")
    assert caplog.records[-1].getMessage().endswith(f"as allowed: {said}")
    return said


def test_moved_records_are_accepted(run, tiny_records, tmp_path, caplog):
    pattern = copy_records(tiny_records, tmp_path / "elsewhere")
    check(run(input_file=(pattern,)))
    check(
        run(
            input_file=tuple(
                f"{tmp_path}/elsewhere/{name}"
                for name in (THIRD, FIRST, SECOND)
            )
        )
    )
    assert not caplog.records


def test_a_narrowed_glob_is_refused(run, tiny_records, caplog):
    narrowed = f"{tiny_records}/train/*-0000[12]-*"
    assert refused(run, caplog, input_file=(narrowed,)) == (
        f"from step 0: missing shards: {FIRST}; new shards: none"
    )


def test_additional_shards_are_refused(run, tiny_records, tmp_path, caplog):
    begin(run(input_file=(f"{tiny_records}/train/{FIRST}",)))
    assert refused(run, caplog) == (
        f"from step 0: missing shards: none; new shards: {SECOND}, {THIRD}"
    )


def test_a_shard_given_twice_counts_as_new(run, tiny_records, tmp_path, caplog):
    copy_records(tiny_records, tmp_path / "copy")
    twice = (*run().data.input_file, f"{tmp_path}/copy/{THIRD}")
    assert refused(run, caplog, input_file=twice) == (
        f"from step 0: missing shards: none; new shards: {THIRD}"
    )


def test_rebuilt_shards_of_the_same_names_are_refused(
    run, tiny_records, tmp_path, caplog
):
    """Even with equal numbers of records."""
    metadata = json.loads((tiny_records / "train/metadata.json").read_text())
    pattern = copy_records(
        tiny_records,
        tmp_path / "copy",
        checksums=metadata["checksums"] | {SECOND: "0" * 64},
    )
    assert refused(run, caplog, input_file=(pattern,)) == (
        f"from step 0: missing shards: {SECOND}; new shards: {SECOND}"
    )


def test_records_without_checksums_are_identified_by_name_and_count(
    run, tiny_records, tmp_path, caplog
):
    one, same, fewer = (
        copy_without_metadata(tiny_records, tmp_path / name)
        for name in ("one", "same", "fewer")
    )
    shard = str(tmp_path / "fewer" / THIRD)
    records = list(tf.data.TFRecordDataset(shard).as_numpy_iterator())
    with tf.io.TFRecordWriter(shard) as writer:
        for record in records[:-1]:
            writer.write(record)
    begin(run(input_file=(one,)))
    check(run(input_file=(same,)))
    assert THIRD in refused(run, caplog, input_file=(fewer,))


def test_shards_in_another_sort_order_are_refused(
    run, tiny_records, tmp_path, caplog
):
    """The order of the paths decides when each shard is read."""
    for name in ("a", "b", "c"):
        copy_records(tiny_records, tmp_path / name)

    def shards(first, second):
        return (
            f"{tmp_path}/{first}/{FIRST}",
            f"{tmp_path}/{second}/{SECOND}",
        )

    begin(run(input_file=shards("a", "b")))
    check(run(input_file=shards("b", "c")))
    said = refused(run, caplog, input_file=shards("b", "a"))
    assert "the same shards" in said
    assert "another order" in said


@pytest.mark.parametrize(
    ("schedule", "difference"),
    [
        ("0:one", "2 phases of data before and 1 now"),
        ("0:one,6:one+two,8:two", "2 phases of data before and 3 now"),
        ("0:one,8:one+two", "the phases of data begin at other steps"),
        (
            "0:one,6:two",
            f"from step 6: missing shards: {FIRST}; new shards: none",
        ),
    ],
)
def test_changed_phases_are_refused(
    run_in_phases, schedule, difference, caplog
):
    with pytest.raises(UserError, match="own settings") as error:
        check(run_in_phases(data_schedule=schedule))
    change = f"data_schedule was '0:one,6:one+two' and is {schedule!r}"
    assert change in str(error.value)
    check(run_in_phases(data_schedule=schedule, allow_config_change=True))
    settings, records = (r.getMessage() for r in caplog.records)
    assert change in settings
    assert records.endswith(f"as allowed: {difference}")


def test_a_changed_dataset_of_the_same_name_is_refused(
    run_in_phases, tiny_records, caplog
):
    dataset = (
        f"one={tiny_records}/train/{FIRST}",
        f"two={tiny_records}/train/{THIRD}",
    )
    assert refused(run_in_phases, caplog, dataset=dataset) == (
        f"from step 6: missing shards: {SECOND}; new shards: {THIRD}"
    )


def test_a_shard_moved_to_another_dataset_of_a_mixture_is_refused(
    tiny_records, tmp_path, caplog
):
    """The shards are equal but are read in another order."""
    first, second, third = (
        f"{tiny_records}/train/{name}" for name in (FIRST, SECOND, THIRD)
    )
    run = functools.partial(
        tiny_run.make_config,
        tiny_records,
        tmp_path / "run",
        input_file=(),
        dataset=(f"one={first},{second}", f"two={third}"),
        data_schedule="0:one+two",
    )
    begin(run())
    check(run())
    changed = (f"one={first}", f"two={second},{third}")
    said = refused(run, caplog, dataset=changed)
    assert "the same shards, but in other datasets" in said


def test_moved_and_unused_datasets_are_accepted(
    run_in_phases, tiny_records, tmp_path, caplog
):
    pattern = copy_records(tiny_records, tmp_path / "elsewhere")
    dataset = (
        f"one={tmp_path}/elsewhere/{FIRST}",
        f"two={tmp_path}/elsewhere/{SECOND}",
        f"all={pattern}",
    )
    check(run_in_phases(dataset=dataset))
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocabulary_sha256", "0" * 64), ("do_lower_case", False)],
)
def test_a_changed_vocabulary_is_always_refused(
    run, tiny_records, tmp_path, name, value
):
    pattern = copy_records(tiny_records, tmp_path / "copy", **{name: value})
    in_phases = {
        "input_file": (),
        "dataset": (f"copy={pattern}",),
        "data_schedule": "0:copy",
    }
    for changes in ({"input_file": (pattern,)}, in_phases):
        with pytest.raises(
            UserError, match=f"copy.* must agree with .*Received: {name} "
        ) as error:
            check(run(**changes, allow_config_change=True))
        assert "run/records_metadata.json" in str(error.value)
        assert "run/spiece.model" in error.value.remedy


def test_the_vocabulary_of_a_converted_model_is_compared(
    run, tiny_records, tmp_path, caplog
):
    """Such a run has no metadata of records."""
    (tmp_path / "run" / "records_metadata.json").unlink()
    other = run(
        eval_input_file=(
            copy_records(
                tiny_records, tmp_path / "copy", vocabulary_sha256="0" * 64
            ),
        )
    )
    run_directory.check_evaluation(run(), find_held_out(run()))
    assert not caplog.records
    with pytest.raises(UserError, match=r"run/spiece\.model.*sha256 '000"):
        run_directory.check_evaluation(other, find_held_out(other))
    (tmp_path / "run" / "spiece.model").unlink()
    run_directory.check_evaluation(other, find_held_out(other))
    assert "is not compared with that of the model" in caplog.text
