"""A directory of records: what is in it, and whether it is whole.

`unfinished.json` stands in it from before the first shard until all is there.
It names the build, so that the next one knows whether shards are its own, or
none while those of another are removed; notes in unfinished/ say what whole
shards hold.
"""

import json
import posixpath
from collections.abc import Mapping, Sequence

from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.records.features import (
    METADATA_FILE,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    RecordsMetadata,
)
from data_prep.builder.examples import EVAL, TRAIN
from data_prep.builder.shards import NOTES_DIR
from data_prep.config import RecordsConfig
from data_prep.text.sources import Source


def is_up_to_date(
    output_dir: str, inputs_sha256: str, *, overwrite: bool
) -> bool:
    """Whether the records wanted are there.

    Raises:
        UserError: If others are there, and are not to be replaced.
    """
    if files.exists(posixpath.join(output_dir, UNFINISHED_FILE)):
        return False
    path = posixpath.join(output_dir, TRAIN, METADATA_FILE)
    metadata = files.load_json_if_any(path) or {}
    if metadata.get("inputs_sha256") == inputs_sha256:
        return True
    others = _find_records(output_dir)
    if others and not overwrite:
        raise UserError(
            "output_dir must not hold records of other settings or text",
            received=others[0],
            remedy="Choose another --output_dir, or replace them by "
            "--overwrite.",
        )
    return False


def make_room(output_dir: str, inputs_sha256: str) -> None:
    """Removes the records of another build; from here on it is unfinished."""
    path = posixpath.join(output_dir, UNFINISHED_FILE)
    content = {"inputs_sha256": inputs_sha256}
    if files.load_json_if_any(path) != content:
        # Nobody's, until all is gone: what is left of the others would be
        # taken for shards of this build, were it killed on the way.
        files.write_text(path, json.dumps({"inputs_sha256": None}))
        for other in _find_records(output_dir):
            files.remove(other)
        remove_notes(output_dir)
        files.write_text(path, json.dumps(content))


def check_not_empty(
    config: RecordsConfig,
    found: Mapping[str, int],
    skipped: Mapping[str, int],
    sources: Sequence[Source],
) -> None:
    """Refuses a corpus that gives no examples for a split.

    Args:
        config: How records are to be.
        found: Examples by split.
        skipped: Counts of what was left out, by reason.
        sources: What was read.

    Raises:
        UserError: If train/ or a wanted eval/ would be empty.
    """
    if not sum(found.values()):
        raise UserError(
            "the text must hold a document of at least two words",
            received=f"{join_counts(skipped) or 'blank lines alone'}, in "
            + ", ".join(source.name for source in sources[:3])
            + (f" and {len(sources) - 3} more" if len(sources) > 3 else ""),
        )
    wanted = (TRAIN, EVAL) if config.holdout_fraction else (TRAIN,)
    if not all(found.get(split) for split in wanted):
        raise UserError(
            "holdout_fraction must leave documents for train/ and for eval/",
            received=f"{config.holdout_fraction}, which leaves "
            f"{found.get(TRAIN, 0)} and {found.get(EVAL, 0)} examples",
            remedy="Documents are chosen by a hash of their text: choose a "
            "share that is many documents, or 0.",
        )


def finish(
    output_dir: str, metadata: Mapping[str, RecordsMetadata], vocabulary: bytes
) -> None:
    """Completes a directory whose shards are all there.

    Args:
        output_dir: The directory.
        metadata: By split.
        vocabulary: Content of the SentencePiece model file.
    """
    for split, of_split in metadata.items():
        directory = posixpath.join(output_dir, split)
        files.write_bytes(posixpath.join(directory, TOKENIZER_FILE), vocabulary)
        files.write_text(
            posixpath.join(directory, METADATA_FILE), of_split.to_json()
        )
    files.remove(posixpath.join(output_dir, UNFINISHED_FILE))
    remove_notes(output_dir)


def remove_notes(output_dir: str) -> None:
    """Removes the notes of which shards are whole, if there are any."""
    files.remove_directory(posixpath.join(output_dir, NOTES_DIR))


def join_counts(counts: Mapping[str, int]) -> str:
    """Counts as a person reads them; empty where there are none."""
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _find_records(output_dir: str) -> list[str]:
    """What a build, finished or not, left in a directory."""
    patterns = (
        "*.tfrecord",
        "*" + files.PARTIAL_SUFFIX,
        METADATA_FILE,
        TOKENIZER_FILE,
    )
    return [
        path
        for split in (TRAIN, EVAL)
        for pattern in patterns
        for path in files.find(posixpath.join(output_dir, split, pattern))
    ]
