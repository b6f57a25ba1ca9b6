"""An example as readable text with its masked tokens marked."""

import textwrap
from collections.abc import Mapping

import numpy as np

from albert_tf.records.features import MASK_ID, SENTENCE_LABEL, SEP_ID
from albert_tf.records.tokenization import WORD_MARK, Tokenizer

LEGEND = (
    "[MASK:piece] is masked, [kept:piece] is unchanged, [piece->other] is "
    "replaced;\nthe model predicts the original of all three"
)

_LABELS = {
    "sop": ("in order", "swapped"),
    "nsp": ("adjacent text", "text of another document"),
}


def show_example(
    example: Mapping[str, np.ndarray],
    tokenizer: Tokenizer | None,
    sentence_objective: str,
    width: int = 79,
) -> str:
    """The segments and the label of an example.

    Args:
        example: Features by name, and "restored", the token ids before
            masking.
        tokenizer: The vocabulary; if None, ids are shown.
        sentence_objective: "sop", "nsp" or "none"; with any other value, the
            meaning of the label is not shown.
        width: Characters per line.
    """
    restored, shown = example["restored"], example["input_ids"]
    num_tokens = int(np.count_nonzero(example["input_mask"]))
    weights = example.get("masked_lm_weights", np.zeros(0))
    positions = example.get("masked_lm_positions", np.zeros(0))
    masked = {int(p) for p in positions[weights > 0]}
    segments = [""]
    for position in range(1, num_tokens - 1):
        if restored[position] == SEP_ID:
            segments.append("")
            continue
        space, text = _spell(restored[position], tokenizer)
        if position in masked:
            other = _spell(shown[position], tokenizer)[1]
            if shown[position] == MASK_ID:
                text = f"[MASK:{text}]"
            elif shown[position] == restored[position]:
                text = f"[kept:{text}]"
            else:
                text = f"[{text}->{other}]"
        segments[-1] += space + text
    label = int(example[SENTENCE_LABEL][0])
    head = f"{num_tokens} tokens, {len(masked)} masked"
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


def _spell(token_id: int, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """The space before a token, and its text."""
    if tokenizer is None:
        return " ", str(token_id)
    piece = tokenizer.id_to_piece(int(token_id))
    text = piece.removeprefix(WORD_MARK)
    # A piece can consist of the mark alone.
    return (" " if text != piece else ""), text or piece
