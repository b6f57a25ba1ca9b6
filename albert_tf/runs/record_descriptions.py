"""Descriptions, as JSON, of the records that a run reads.

They tell whether a run resumes with its own records, and whether the losses of
two evaluations are comparable.
"""

import posixpath
from collections import Counter
from typing import Any

from albert_tf.config import PretrainingConfig
from albert_tf.input.record_sets import RecordSet, TrainingData


def describe_records(data: TrainingData) -> list[dict[str, Any]]:
    """Describes the shards of each phase in the order of `RecordSet.files`.

    Directories are left out. If there are several datasets, the dataset of each
    shard is given, too.
    """

    def sets(records: RecordSet) -> dict[str, list[int]]:
        set_of = {
            file: number
            for number, files in enumerate(records.sets)
            for file in files
        }
        numbers = [set_of[file] for file in records.files]
        return {"sets": numbers} if len(records.sets) > 1 else {}

    return [
        {
            "first_step": phase.first_step,
            "shards": _describe_shards(phase.records),
            **sets(phase.records),
        }
        for phase in data.phases
    ]


def _describe_shards(records: RecordSet) -> list[list[Any]]:
    """Name, number of records and checksum of each shard."""
    return [
        [posixpath.basename(file), count, checksum]
        for file, count, checksum in zip(
            records.files, records.counts, records.checksums, strict=True
        )
    ]


def describe_evaluation(
    config: PretrainingConfig, held_out: RecordSet
) -> dict[str, Any]:
    """Describes the examples of an evaluation, as JSON.

    The losses of two evaluations are comparable if they have the same
    description. Directories are left out.
    """
    return {
        "shards": _describe_shards(held_out),
        **config.data.evaluation_limits(),
    }


def describe_differences(stored: list[Any], now: list[Any]) -> str:
    """Names the first difference of two results of `describe_records`."""
    if len(stored) != len(now):
        return f"{len(stored)} phases of data before and {len(now)} now"
    for before, after in zip(stored, now, strict=True):
        old_shards, new_shards = (
            Counter(map(tuple, phase["shards"])) for phase in (before, after)
        )
        missing = [name for name, *_ in (old_shards - new_shards).elements()]
        added = [name for name, *_ in (new_shards - old_shards).elements()]
        if missing or added:
            return (
                f"from step {after['first_step']}: missing shards: "
                f"{_name_first(missing)}; new shards: {_name_first(added)}"
            )
        if before["shards"] != after["shards"]:
            return (
                f"from step {after['first_step']}: the same shards, but their "
                "paths sort in another order, so they are read in another "
                "order"
            )
        if before.get("sets") != after.get("sets"):
            return (
                f"from step {after['first_step']}: the same shards, but in "
                "other datasets, so their records alternate differently"
            )
    return "the phases of data begin at other steps"


def _name_first(names: list[str], number: int = 3) -> str:
    rest = len(names) - number
    listed = ", ".join(names[:number]) or "none"
    return f"{listed} and {rest} more" if rest > 0 else listed
