"""Held-out records beside the training records of a run."""

import os

from absl import logging

from albert_tf.errors import UserError
from albert_tf.input.record_sets import RecordSet, check_same_text
from albert_tf.io.files import is_remote


def check_held_out(train: RecordSet, held_out: RecordSet) -> None:
    """Checks that the held-out set fits the training records.

    Raises:
        UserError: If a file is in both sets, possibly under different paths,
            or if their vocabularies or lower-casing differ.
    """
    of_train = set().union(*_identities(train).values())
    in_both = [
        file for file, own in _identities(held_out).items() if own & of_train
    ]
    if in_both:
        raise UserError(
            "eval_input_file must hold no file of input_file",
            received=", ".join(in_both[:3]),
        )
    if train.metadata is None or held_out.metadata is None:
        return
    check_same_text(held_out, train)
    if train.metadata.inputs_sha256 != held_out.metadata.inputs_sha256:
        logging.warning(
            "%s and %s come from different builds, so documents of one may "
            "also be in the other",
            train.directory,
            held_out.directory,
        )


def _identities(records: RecordSet) -> dict[str, set[str]]:
    """What identifies each file that has records: its path and its content."""
    return {
        file: {
            file if is_remote(file) else os.path.realpath(file),
            *filter(None, [checksum]),
        }
        for file, count, checksum in zip(
            records.files, records.counts, records.checksums, strict=True
        )
        if count
    }
