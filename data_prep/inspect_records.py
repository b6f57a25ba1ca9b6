r"""Check records, and show their contents.

    python -m data_prep.inspect_records --input_file=build/records

Prints some examples as text, with their masks marked; the numbers of records,
examples and tokens; and faults. It compares the shards with the checksums of
the metadata, and the values of each record with their ranges. A fault names the
shard and the number of the record, and the exit status is then 1.

Records of google-research/albert have no metadata, so fewer checks apply; their
examples are text if their vocabulary is next to them, as spiece.model.
"""

import functools
import itertools
import posixpath
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures

import numpy as np
from tqdm import tqdm

from albert_tf.config import flags
from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.records.features import (
    MASK_ID,
    METADATA_FILE,
    SENTENCE_LABEL,
    SEP_ID,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    read_metadata,
)
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.config import InspectConfig
from data_prep.inspection import (
    MAX_FAULTS,
    RowShape,
    read_rows,
    read_shape,
    restore_tokens,
    use_cpu,
)

_LEGEND = (
    "[MASK:piece] is masked, [kept:piece] is unchanged, [piece->other] is "
    "replaced;\nthe model predicts the original of all three"
)

_LABELS = {
    "sop": (", in order", ", swapped"),
    "nsp": (", adjacent text", ", text of another document"),
}


def main(config: InspectConfig) -> int:
    """Inspects records; returns 1 if there is a fault, else 0."""
    config.require("input_file")
    # Text can hold characters that the terminal cannot show.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    use_cpu()
    num_faults = sum(
        _inspect_directory(directory, shards, config)
        for directory, shards in _find_shards(config.input_file).items()
    )
    if num_faults:
        print(f"NOT passed: {num_faults} faults")
        return 1
    print("all checks passed")
    return 0


def _find_shards(patterns: Sequence[str]) -> dict[str, list[str]]:
    """The shards to inspect, sorted, by directory."""
    found: set[str] = set()
    for pattern in patterns:
        shards = files.find(pattern)
        if not shards and files.exists(pattern):
            for glob in ("*.tfrecord", "*/*.tfrecord"):
                shards += files.list_files(pattern, glob)
        if not shards:
            raise UserError(
                "input_file must match records", received=f"none at {pattern}"
            )
        found.update(shards)
    by_directory: dict[str, list[str]] = {}
    for path in sorted(found):
        by_directory.setdefault(posixpath.dirname(path), []).append(path)
    return by_directory


def _inspect_directory(
    directory: str, shards: list[str], config: InspectConfig
) -> int:
    """Prints examples, counts and faults; returns the number of faults."""
    tokenizer, checksums, faults = _read_description(directory)
    shape = read_shape(shards[0], tokenizer.vocab_size if tokenizer else 0)
    print(
        f"\n{directory}: {shape.max_seq_length} tokens, sentence objective "
        f"{shape.sentence_objective or 'unknown'}, {shape.masking} masking, up "
        f"to {shape.max_examples_per_row} examples per record\n"
    )
    _print_examples(shards[0], shape, tokenizer, config.num_examples)
    present = map(posixpath.basename, files.list_files(directory, "*.tfrecord"))
    faults += [
        f"{posixpath.join(directory, name)}: must exist; the metadata lists it"
        for name in sorted(checksums.keys() - set(present))
    ]
    inspect = functools.partial(
        _inspect_shard, shape=shape, checksums=checksums
    )
    counts: Counter[str] = Counter()
    with futures.ThreadPoolExecutor() as pool:
        inspected = pool.map(inspect, shards)
        for counts_of_shard, faults_of_shard in tqdm(
            inspected, "inspecting", len(shards), unit="shard"
        ):
            counts += counts_of_shard
            faults += faults_of_shard
    tokens = counts["tokens"]
    num_positions = counts["records"] * shape.max_seq_length
    print(f"records           {counts['records']:,}")
    print(f"examples          {counts['examples']:,}")
    print(f"tokens            {tokens:,}")
    print(f"positions filled  {tokens / max(num_positions, 1):.1%}")
    print(f"tokens masked     {counts['masked'] / max(tokens, 1):.2%}")
    for fault in faults[:MAX_FAULTS]:
        print(f"fault: {fault}")
    return len(faults)


def _read_description(
    directory: str,
) -> tuple[Tokenizer | None, dict[str, str], list[str]]:
    """The vocabulary, the checksums of the shards, and faults of both."""
    faults = []
    # On gs://, ".." is a name like any other.
    parent = posixpath.dirname(directory)
    unfinished = posixpath.join(parent, UNFINISHED_FILE)
    if files.exists(unfinished):
        faults.append(f"{unfinished}: the build is unfinished")
    path = posixpath.join(directory, TOKENIZER_FILE)
    if not files.exists(posixpath.join(directory, METADATA_FILE)):
        tokenizer = Tokenizer(path) if files.exists(path) else None
        return tokenizer, {}, faults
    metadata = read_metadata(directory)
    tokenizer = Tokenizer(path)
    if tokenizer.sha256 != metadata.vocabulary_sha256:
        faults.append(f"{path}: must have the SHA-256 of the metadata")
    return tokenizer, metadata.checksums, faults


def _inspect_shard(
    shard: str, shape: RowShape, checksums: Mapping[str, str]
) -> tuple[Counter[str], list[str]]:
    """Counts the intact rows of a shard; also returns its faults."""
    faults: list[str] = []
    counts: Counter[str] = Counter()
    for rows in read_rows(shard, shape, faults):
        numbers = rows["input_mask"]
        counts["records"] += len(numbers)
        counts["examples"] += int(numbers.max(axis=1).sum())
        counts["tokens"] += int(np.count_nonzero(numbers))
        if "masked_lm_weights" in rows:
            counts["masked"] += int(rows["masked_lm_weights"].sum())
    expected = checksums.get(posixpath.basename(shard))
    if checksums and expected is None:
        faults.insert(0, f"{shard}: the metadata must list it")
    elif checksums and files.digest(shard) != expected:
        fault = f"{shard}: must have the SHA-256 of the metadata, {expected}"
        faults.insert(0, fault)
    return counts, faults


# --- examples ----------------------------------------------------------------


def _print_examples(
    shard: str, shape: RowShape, tokenizer: Tokenizer | None, num_examples: int
) -> None:
    """Prints the first examples of a shard."""
    if num_examples and shape.masking == "static":
        print(f"{_LEGEND}\n")
    examples = itertools.islice(_read_examples(shard, shape), num_examples)
    for number, (tokens, label) in enumerate(examples):
        shown = show_example(tokens, label, tokenizer, shape.sentence_objective)
        print(f"example {number}: {shown}\n")


def _read_examples(
    shard: str, shape: RowShape
) -> Iterator[tuple[np.ndarray, int]]:
    """Yields the tokens, see `show_example`, and the label of each example."""
    for rows in read_rows(shard, shape, []):
        restored, is_masked = restore_tokens(rows)
        tokens = np.stack([restored, rows["input_ids"], is_masked], axis=2)
        numbers = rows["input_mask"]
        for row, labels in enumerate(rows[SENTENCE_LABEL]):
            for number in range(1, numbers[row].max() + 1):
                yield tokens[row][numbers[row] == number], labels[number - 1]


def show_example(
    tokens: np.ndarray,
    label: int,
    tokenizer: Tokenizer | None,
    sentence_objective: str,
) -> str:
    """The segments and the label of an example.

    Args:
        tokens: Integers, `(tokens, 3)`: the token before masking, the token of
            the record, and whether it is masked.
        tokenizer: None shows ids.
    """
    segments = [""]
    for token, shown, is_masked in tokens[1:-1].tolist():
        if token == SEP_ID:
            segments.append("")
            continue
        space, text = _spell(token, tokenizer)
        if is_masked and shown == MASK_ID:
            text = f"[MASK:{text}]"
        elif is_masked and shown == token:
            text = f"[kept:{text}]"
        elif is_masked:
            text = f"[{text}->{_spell(shown, tokenizer)[1]}]"
        segments[-1] += space + text
    head = f"{len(tokens)} tokens, {tokens[:, 2].sum()} masked"
    if len(segments) > 1:
        meaning = _LABELS.get(sentence_objective, ("", ""))[label]
        head += f"; label {label}{meaning}"
    lines = [head]
    for name, text in zip("AB", segments, strict=False):
        lines.append(f"  {name}: {text}")
    return "\n".join(lines)


def _spell(token_id: int, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """The space before a token, and its text."""
    if tokenizer is None:
        return " ", str(token_id)
    piece = tokenizer.id_to_piece(token_id)
    text = piece.removeprefix(WORD_MARK)
    # A piece can consist of the mark alone.
    return (" " if text != piece else ""), text or piece


if __name__ == "__main__":
    flags.run(main, InspectConfig)
