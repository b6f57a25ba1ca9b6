"""Checks that shards can be divided into the lanes of `--input_lanes`."""

from collections.abc import Mapping, Sequence

from albert_tf.errors import UserError


def check_lanes(
    name: str,
    sets: Sequence[Sequence[str]],
    count_of: Mapping[str, int],
    num_lanes: int,
) -> None:
    """Checks that all lanes get equally many shards, and records.

    Args:
        name: The setting that names the shards.
        sets: Shards by dataset or directory; lane k reads the shards k,
            k + num_lanes, ... of each.
        count_of: Number of records by shard.

    Raises:
        UserError: If the number of shards is not divisible, or if all shards
            of a lane are empty: the lane could not fill its rows of a batch.
    """
    for files in sets:
        if len(files) % num_lanes:
            raise UserError(
                f"the number of shards of {name} must be divisible by "
                f"input_lanes={num_lanes}, in each directory or dataset",
                received=f"{len(files)} shards, beginning with {files[0]}",
                remedy="Build the records with another --num_shards, or change "
                "--input_lanes.",
            )
    for lane in range(num_lanes):
        of_lane = [file for files in sets for file in files[lane::num_lanes]]
        if not any(count_of[file] for file in of_lane):
            raise UserError(
                f"each of the input_lanes={num_lanes} lanes must hold records "
                f"of {name}",
                received=f"no record in {', '.join(of_lane[:3])}"
                + (", ..." if len(of_lane) > 3 else ""),
                remedy="Build the records with fewer --num_shards, or lower "
                "--input_lanes.",
            )
