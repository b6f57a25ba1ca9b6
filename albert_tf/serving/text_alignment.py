"""Finds the characters of each token of texts, inside a TensorFlow graph.

The result equals that of `records.alignment`, which explains it. Here, the
characters of all texts of a batch form one list, and most positions are indices
of this list.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.serving.text_tokenizer import TextTokenizer


class AlignedTexts(NamedTuple):
    """The tokens of several texts, and their characters.

    Attributes:
        ids: int32, `(batch, tokens)`, as `TextTokenizer.encode` returns them.
        begins, ends: int64, `(batch, tokens)`. The characters of the text that
            a token stands for, as in `records.alignment.AlignedTokens`.
        is_white_space: bool, `(batch, characters)`.
    """

    ids: tf.RaggedTensor
    begins: tf.RaggedTensor
    ends: tf.RaggedTensor
    is_white_space: tf.RaggedTensor


def align(tokenizer: TextTokenizer, texts: tf.Tensor) -> AlignedTexts:
    """Tokenizes raw texts, and finds the characters of each token.

    Args:
        tokenizer: The vocabulary.
        texts: string, `(batch,)`, valid UTF-8.

    Example:
        >>> tokenizer = TextTokenizer("30k-clean.model")  # doctest: +SKIP
        >>> found = align(tokenizer, ["The ﬁnal  Café"])  # doctest: +SKIP
        >>> found.begins.to_list(), found.ends.to_list()  # doctest: +SKIP
        ([[0, 4, 10]], [[3, 8, 14]])
    """
    characters = tf.strings.unicode_split(texts, "UTF-8")
    is_white = characters.with_values(
        tokenizer.is_white_space(characters.values)
    )
    places = tf.range(tf.size(characters.values, tf.int64))
    if tokenizer.is_google_albert:
        texts, origin_begins, origin_ends = _normalize(
            tokenizer, characters, is_white.values
        )
        normalized = tf.strings.unicode_split(texts, "UTF-8")
    else:
        normalized, origin_begins, origin_ends = characters, places, places + 1

    ids, begins, ends = tokenizer.encode_with_spans(texts)
    rows = ids.value_rowids()
    row_begins = tf.gather(normalized.row_starts(), rows)
    first, end = begins.values + row_begins, ends.values + row_begins
    is_space = tokenizer.is_white_space(normalized.values)
    first = tf.minimum(_next(~is_space, first), end)

    # A token without characters stands before the next character.
    text_begins, text_ends = (
        tf.gather(limits, rows)
        for limits in (characters.row_starts(), characters.row_limits())
    )
    begins_at = tf.where(
        first < tf.gather(normalized.row_limits(), rows),
        tf.gather(tf.concat([origin_begins, [0]], 0), first),
        text_ends,
    )
    ends_at = tf.where(
        first < end,
        tf.gather(tf.concat([[0], origin_ends], 0), end),
        begins_at,
    )
    return AlignedTexts(
        ids,
        ids.with_values(begins_at - text_begins),
        ids.with_values(ends_at - text_begins),
        is_white,
    )


def _normalize(
    tokenizer: TextTokenizer, characters: tf.RaggedTensor, is_white: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalises texts as `TextTokenizer.normalize`, and finds the origins.

    Args:
        tokenizer: The vocabulary.
        characters: string, `(batch, characters)`, of raw texts.
        is_white: bool, `(all characters,)`.

    Returns:
        Normalised texts, string, `(batch,)`; and int64, `(all characters of
        normalised texts,)`: begins and ends of their origins.
    """
    rows = characters.value_rowids()
    row_begins = tf.gather(characters.row_starts(), rows)
    row_ends = tf.gather(characters.row_limits(), rows)
    places = tf.range(tf.size(is_white, tf.int64))

    kept = tf.where(is_white, "", tokenizer.decompose(characters.values))
    sizes = tf.strings.length(kept, unit="UTF8_CHAR")
    starts_word = ~is_white & (
        tf.concat([[True], is_white[:-1]], 0) | (places == row_begins)
    )
    # A space precedes each word of a text except the first one.
    words = tf.cumsum(tf.cast(starts_word, tf.int64), exclusive=True)
    has_space = starts_word & (words > tf.gather(words, row_begins))
    texts = tf.strings.unsorted_segment_join(
        tf.where(has_space, " ", "") + kept, rows, characters.nrows()
    )

    # From here on, an entry for each character of the normalised texts.
    counts = sizes + tf.cast(has_space, tf.int32)
    origins = tf.repeat(places, counts)
    order = tf.ragged.range(counts).values
    is_space = tf.gather(has_space, origins) & (order == 0)
    is_last = order == tf.gather(counts, origins) - 1
    # The last character from an origin also stands for the combining marks
    # after it.
    next_kept = tf.minimum(_next(is_white | (sizes > 0), places + 1), row_ends)
    ends = tf.where(is_last, tf.gather(next_kept, origins), origins + 1)
    ends = tf.where(is_space, origins, ends)
    # A space begins where the character before it ends.
    first = tf.gather(row_begins, origins)
    begins_space = tf.maximum(tf.concat([[0], ends[:-1]], 0), first)
    return (
        tokenizer.lower(texts),
        tf.where(is_space, begins_space, origins),
        ends,
    )


def _next(is_member: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The first member at or after each place; the end if there is none.

    Args:
        is_member: bool, `(characters,)`.
        places: int64, `(places,)`.
    """
    members = tf.where(is_member)[:, 0]
    end = tf.size(is_member, tf.int64)[tf.newaxis]
    return tf.gather(
        tf.concat([members, end], 0),
        tf.searchsorted(members, places, out_type=tf.int64),
    )
