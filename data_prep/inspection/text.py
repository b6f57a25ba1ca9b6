"""An example as text, its masks marked, for people to read."""

import textwrap
from collections.abc import Mapping

import numpy as np

from albert_tf.records.features import MASK_ID, SENTENCE_LABEL, SEP_ID
from albert_tf.records.tokenization import WORD_MARK, Tokenizer

LEGEND = (
    "[MASK:piece] hidden, [kept:piece] left as it is, [piece->other] replaced; "
    "all three are to be restored"
)

_LABELS = {
    "sop": ("in order", "swapped"),
    "nsp": ("the text that follows", "of another document"),
}


def show_example(
    example: Mapping[str, np.ndarray],
    tokenizer: Tokenizer | None,
    sentence_objective: str,
    width: int = 79,
) -> str:
    """The segments of an example and what it teaches.

    Args:
        example: Features by name, with "restored", the pieces before
            masking.
        tokenizer: The vocabulary; None shows ids.
        sentence_objective: What the label means.
        width: Of the lines, characters.
    """
    restored, shown = example["restored"], example["input_ids"]
    num_pieces = int(np.count_nonzero(example["input_mask"]))
    weights = example.get("masked_lm_weights", np.zeros(0))
    positions = example.get("masked_lm_positions", np.zeros(0))
    masked = {int(p) for p in positions[weights > 0]}
    segments = [""]
    for place in range(1, num_pieces - 1):
        if restored[place] == SEP_ID:
            segments.append("")
            continue
        space, original = _spell(restored[place], tokenizer)
        if place in masked:
            other = _spell(shown[place], tokenizer)[1]
            if shown[place] == MASK_ID:
                original = f"[MASK:{original}]"
            elif shown[place] == restored[place]:
                original = f"[kept:{original}]"
            else:
                original = f"[{original}->{other}]"
        segments[-1] += space + original
    label = int(example[SENTENCE_LABEL][0])
    head = f"{num_pieces} pieces, {len(masked)} masked"
    if len(segments) > 1:
        meaning = _LABELS.get(sentence_objective)
        head += f"; label {label}" + (f", {meaning[label]}" if meaning else "")
    lines = [head]
    for name, text in zip("AB", segments, strict=False):
        indent = f"  {name}: "
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=" " * len(indent),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _spell(piece_id: int, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """What stands before a piece, and the piece."""
    if tokenizer is None:
        return " ", str(piece_id)
    piece = tokenizer.id_to_piece(int(piece_id))
    rest = piece.removeprefix(WORD_MARK)
    # The mark may be all there is to a piece.
    return (" " if rest != piece else ""), rest or piece
